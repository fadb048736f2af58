package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"postern/internal/testkit"
)

func TestSocketFamiliesThatLeaveTheNamespaceAreRefused(t *testing.T) {
	refused := []string{"vsock", "packet", "packet-dgram", "xdp", "alg", "key", "bluetooth", "can", "tipc", "rds", "smc", "qipcrtr", "nfc", "pppox", "raw", "raw6", "raw-icmp", "gre", "netlink-netfilter", "netlink-audit", "netlink-uevent"}
	needed := []string{"inet", "inet6", "unix", "netlink-route"}
	everyUser(t, func(t *testing.T, w *world) {
		var commands [][]string
		for _, f := range append(slices.Clone(refused), needed...) {
			commands = append(commands, []string{"socket", f})
		}
		for i, f := range w.probe(t, commands...) {
			if want := i >= len(refused); f.OK != want {
				t.Errorf("want success %t: %s", want, describe(f))
			}
		}
	})
}

func TestSystemCallsThatUndoASandboxAreRefused(t *testing.T) {
	calls := []string{
		"io_uring_setup", "io_uring_enter", "io_uring_register", "unshare-user", "unshare-net", "unshare-mount", "clone-user", "clone-net", "setns", "setns-init",
		"mount", "remount", "umount", "pivot_root", "chroot", "open_tree", "fsopen", "move_mount", "ptrace-init", "process_vm_readv", "pidfd_getfd", "keyctl", "add_key", "request_key",
		"bpf", "userfaultfd", "perf_event_open", "fanotify_init", "open_by_handle_at", "kexec_load", "init_module", "delete_module", "reboot", "swapon", "acct", "settimeofday",
		"sethostname", "quotactl", "mknod", "setuid0", "raise-priority", "vhangup", "tiocsti", "tioclinux",
	}
	everyUser(t, func(t *testing.T, w *world) {
		var commands [][]string
		for _, c := range calls {
			commands = append(commands, []string{"syscall", c})
		}
		for _, f := range w.probe(t, commands...) {
			if f.OK {
				t.Errorf("allowed: %s", describe(f))
			}
		}
		// The other system call table of the same machine: refused, or the process ends.
		if r := w.ProbeRun(t, nil, "syscall", "x32"); r.Exit == 0 && testkit.Findings(t, r)[0].OK {
			t.Errorf("allowed: %s", r.Stdout)
		}
	})
}

func TestTheCommandHasNoPrivilegeAndNoInheritance(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		found := w.probe(t, []string{"status"}, []string{"fds"}, []string{"links"}, []string{"mounts"})
		st := found[0].Data
		for key, want := range map[string]string{"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapBnd": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"} {
			if st[key] != want {
				t.Errorf("%s is %v, want %s", key, st[key], want)
			}
		}
		if st["uid"] == 0.0 || st["gid"] == 0.0 {
			t.Errorf("runs as uid %v, gid %v", st["uid"], st["gid"])
		}
		if !found[1].OK {
			t.Errorf("file descriptors: %s", describe(found[1]))
		}
		if links := fmt.Sprint(found[2].Data["links"]); links != "[lo]" {
			t.Errorf("links: %s", links)
		}
	})
}

func TestFilesOfTheHostAreHiddenOrReadOnly(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		for _, name := range []string{".ssh/id_ed25519", ".aws/credentials", ".netrc", ".config/gh/hosts.yml", ".gnupg/secring.gpg", ".bash_history"} {
			full := filepath.Join(w.Home, name)
			if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(full, []byte("host secret\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var commands [][]string
		hidden := []string{w.Home + "/.ssh/id_ed25519", w.Home + "/.aws/credentials", w.Home + "/.netrc", w.Home + "/.config/gh/hosts.yml", w.Home + "/.gnupg/secring.gpg", w.Home + "/.bash_history",
			w.Config, w.Home + "/.config/postern/secrets/echo", w.State + "/audit/ledger.jsonl", "/etc/shadow", "/proc/1/environ", "/proc/kcore", "/dev/mem", "/dev/sda", "/dev/kmsg"}
		for _, p := range hidden {
			commands = append(commands, []string{"read", p})
		}
		fixed := []string{"/usr", "/etc", "/bin", "/lib", "/", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel", "/sys/fs/cgroup"}
		for _, p := range fixed {
			commands = append(commands, []string{"write", p})
		}
		free := []string{"/tmp", w.Work, w.Home, "/dev/null", "/dev/shm"}
		for _, p := range free {
			commands = append(commands, []string{"write", p})
		}
		for i, f := range w.probe(t, commands...) {
			if want := i >= len(hidden)+len(fixed); f.OK != want {
				t.Errorf("%v: want success %t: %s", commands[i], want, describe(f))
			}
		}
	})
}

func TestDangerousMountsAreRefused(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	link := filepath.Join(w.Home, "innocent")
	for _, d := range []string{".ssh", ".aws"} {
		if err := os.MkdirAll(filepath.Join(w.Home, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(w.Home, ".ssh"), link); err != nil {
		t.Fatal(err)
	}
	for _, src := range []string{"/", "/proc", "/sys", "/dev", "/run", "/var/run", w.Home, w.Home + "/.ssh", w.Home + "/.ssh/../.ssh", w.Home + "/.aws", link, filepath.Dir(w.Config), w.State} {
		r := w.RunWith(t, []string{"--mount", src + ":/mnt/x"}, "true")
		if r.Exit != 125 || !strings.Contains(r.Stderr, "mount") {
			t.Errorf("--mount %s: exit %d: %s", src, r.Exit, r.Stderr)
		}
	}
	if err := os.MkdirAll(filepath.Join(w.Home, "harmless"), 0o755); err != nil {
		t.Fatal(err)
	}
	ok(t, w.RunWith(t, []string{"--mount", w.Home + "/harmless:/mnt/x"}, "true"))
}

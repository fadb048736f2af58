package inspect

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

func fileChecks() []Check {
	return []Check{
		{ID: "files.root", Title: "the root is a file system of the sandbox's own, read-only", Essential: true, Means: "the host's files can be seen or changed", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return ownRoot("/") }},
		{ID: "files.system", Title: "the system is read-only", Essential: true, Means: "programs of the host can be replaced", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return readOnly("/usr", "/etc", "/bin") }},
		{ID: "files.propagation", Title: "no mount is shared with the host", Essential: true, Means: "mounts of the host appear in the sandbox, or the other way round", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return privateMounts("/proc/self/mountinfo") }},
		{ID: "files.home", Title: "home is empty but for what was declared", Essential: true, Means: "credentials and history of the host's user can be read", Remedy: mendMounts,
			run: func(_ context.Context, p *Plan) Result { return onlyDeclaredBelow(p.Declared, p.Homes...) }},
		{ID: "files.scratch", Title: "/tmp, /var/tmp, /run and /dev/shm are empty", Essential: true, Means: "sockets and files of the host's programs are open", Remedy: mendMounts,
			run: func(_ context.Context, p *Plan) Result {
				return onlyDeclaredBelow(append([]string{"/run/lock", "/var/run", "/var/lock"}, p.Declared...), "/tmp", "/var/tmp", "/run", "/dev/shm")
			}},
		{ID: "files.credentials", Title: "no credential of the host is readable", Essential: true, Means: "the sandbox can use it", Remedy: mendMounts,
			run: func(_ context.Context, p *Plan) Result { return noneReadable(credentialPaths(p), p.Declared) }},
		{ID: "files.system_secrets", Title: "/etc/shadow and the like are hidden", Essential: true, Means: "password hashes and host keys can be read", Remedy: mendStart,
			run: func(_ context.Context, p *Plan) Result { return noneReadable(systemSecrets(), p.Declared) }},
		{ID: "files.sockets", Title: "no socket of the host's daemons", Essential: true, Means: "container engines, agents and buses act with the host's authority", Remedy: mendMounts,
			run: func(ctx context.Context, p *Plan) Result {
				return noSocket(ctx, append(daemonSockets(p.Homes), p.Sockets...))
			}},
		{ID: "files.policy", Title: "the policy cannot be changed from inside", Essential: true, Means: "the sandbox can widen what it may do", Remedy: mendMounts,
			run: func(_ context.Context, p *Plan) Result { return noneWritable(p.ReadOnly) }},
		{ID: "files.proc", Title: "kernel settings are read-only and kernel memory hidden", Essential: true, Means: "settings of the host can be read or changed", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return tameProc("/proc") }},
		{ID: "files.sys", Title: "/sys is absent", Essential: true, Means: "the host's hardware and drivers can be seen", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return emptyOrAbsent("/sys") }},
		{ID: "files.devices", Title: "/dev holds harmless devices only", Essential: true, Means: "disks, memory or hardware of the host can be opened", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return harmlessDevices("/dev") }},
	}
}

const mendMounts = "mount less: see `mounts:` of the profile and --mount; if no mount explains it, please report this with the output of `postern doctor --json`"

func ownRoot(path string) Result {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return notHeld("%v", err)
	}
	switch {
	case st.Type != unix.TMPFS_MAGIC:
		return notHeld("a file system of type %#x", st.Type)
	case st.Flags&unix.ST_RDONLY == 0:
		return notHeld("writable")
	}
	return held("a read-only tmpfs")
}

func readOnly(paths ...string) Result {
	for _, p := range paths {
		var st unix.Statfs_t
		if err := unix.Statfs(p, &st); err != nil {
			return notHeld("%s: %v", p, err)
		}
		if st.Flags&unix.ST_RDONLY == 0 {
			return notHeld("%s is mounted writable", p)
		}
		if st.Flags&unix.ST_NOSUID == 0 {
			return notHeld("set-user-id programs work in %s", p)
		}
	}
	return held("%s are mounted read-only, nosuid", strings.Join(paths, ", "))
}

// privateMounts reads the optional fields of proc_pid_mountinfo(5): none may be there.
func privateMounts(file string) Result {
	text, err := readSmall(file)
	if err != nil {
		return notHeld("%v", err)
	}
	n := 0
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 7 {
			continue
		}
		n++
		if f[6] != "-" {
			return notHeld("%s is %s", f[4], f[6])
		}
	}
	if n == 0 {
		return notHeld("%s is empty", file)
	}
	return held("%d mounts, all private", n)
}

const (
	mostEntries = 2000
	mostNamed   = 5
)

// onlyDeclaredBelow walks directories down to what was declared. Everything else in them is too much.
func onlyDeclaredBelow(declared []string, dirs ...string) Result {
	var extra []string
	seen := 0
	for _, dir := range dirs {
		if err := undeclared(dir, declared, &seen, &extra); err != nil {
			return notHeld("%s: %v", dir, err)
		}
	}
	switch {
	case len(extra) > mostNamed:
		return notHeld("%s and %d more", strings.Join(extra[:mostNamed], ", "), len(extra)-mostNamed)
	case len(extra) > 0:
		return notHeld("%s", strings.Join(extra, ", "))
	}
	return held("%d entries, all declared", seen)
}

func undeclared(dir string, declared []string, seen *int, extra *[]string) error {
	if slices.ContainsFunc(declared, func(d string) bool { return within(dir, d) }) {
		return nil
	}
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(mostEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		p := filepath.Join(dir, name)
		*seen++
		switch {
		case slices.ContainsFunc(declared, func(d string) bool { return within(p, d) }):
		case slices.ContainsFunc(declared, func(d string) bool { return within(d, p) }):
			if err := undeclared(p, declared, seen, extra); err != nil {
				return err
			}
		default:
			*extra = append(*extra, p)
		}
	}
	return nil
}

func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// noneReadable tries to open each path that was not declared.
func noneReadable(paths, declared []string) Result {
	var open []string
	for _, p := range paths {
		if slices.ContainsFunc(declared, func(d string) bool { return within(p, d) }) {
			continue
		}
		if readable(p) {
			open = append(open, p)
		}
	}
	if len(open) > 0 {
		return notHeld("%s", strings.Join(open[:min(len(open), mostNamed)], ", "))
	}
	return held("%d places looked at", len(paths))
}

// readable opens a file, or lists a directory that has something in it.
func readable(p string) bool {
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.IsDir() {
		return true
	}
	names, err := f.Readdirnames(1)
	return err == nil && len(names) > 0
}

func credentialPaths(p *Plan) []string {
	list := slices.Clone(p.Absent)
	for _, home := range p.Homes {
		for _, name := range []string{
			".ssh", ".aws", ".azure", ".kube", ".gnupg", ".docker/config.json", ".netrc", ".npmrc", ".yarnrc.yml", ".pypirc", ".git-credentials", ".gitconfig",
			".cargo/credentials", ".cargo/credentials.toml", ".terraform.d", ".vault-token", ".password-store", ".mozilla", ".pgpass", ".my.cnf", ".boto", ".s3cfg",
			".config/gcloud", ".config/gh", ".config/glab-cli", ".config/hub", ".config/op", ".config/git", ".config/rclone", ".config/sops", ".config/doctl", ".config/containers",
			".config/google-chrome", ".config/chromium", ".config/postern", ".local/share/keyrings", ".local/state/postern", ".m2/settings.xml", ".gradle/gradle.properties",
			".claude/.credentials.json", ".claude.json", ".codex/auth.json", ".gemini/oauth_creds.json", ".qwen/oauth_creds.json", ".bash_history", ".zsh_history",
		} {
			list = append(list, filepath.Join(home, name))
		}
	}
	return list
}

func systemSecrets() []string {
	return []string{
		"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/ssh", "/etc/ssl/private", "/etc/sudoers", "/etc/sudoers.d", "/etc/krb5.keytab",
		"/etc/docker", "/etc/kubernetes", "/etc/wireguard", "/etc/apt/auth.conf.d", "/etc/netrc", "/etc/postern", "/var/lib/postern", "/var/lib/docker", "/var/lib/containerd",
		"/var/lib/kubelet", "/root/.ssh", "/boot", "/proc/kcore", "/proc/kmsg", "/proc/kallsyms", "/proc/keys",
	}
}

func daemonSockets(homes []string) []string {
	list := []string{
		"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock", "/run/dbus/system_bus_socket",
		"/run/systemd/private", "/run/systemd/resolve/io.systemd.Resolve", "/run/systemd/journal/stdout", "/run/nscd/socket", "/run/postern/control.sock", "/run/snapd.socket",
		"/run/libvirt/libvirt-sock", "/run/user", "/tmp/.X11-unix/X0", "/tmp/.X11-unix/X1",
	}
	for _, h := range homes {
		list = append(list, filepath.Join(h, ".docker/run/docker.sock"), filepath.Join(h, ".gnupg/S.gpg-agent"), filepath.Join(h, ".docker/desktop/docker.sock"))
	}
	return list
}

// noSocket connects to each path as a client would.
func noSocket(ctx context.Context, paths []string) Result {
	var open []string
	for _, p := range paths {
		if readable(p) {
			open = append(open, p)
			continue
		}
		for _, network := range []string{"unix", "unixgram", "unixpacket"} {
			if c, err := dial(ctx, network, p); err == nil {
				c.Close()
				open = append(open, p)
				break
			}
		}
	}
	if len(open) > 0 {
		return notHeld("%s", strings.Join(open[:min(len(open), mostNamed)], ", "))
	}
	return held("%d places looked at", len(paths))
}

func noneWritable(paths []string) Result {
	for _, p := range paths {
		if unix.Access(p, unix.W_OK) == nil {
			return notHeld("%s is writable", p)
		}
	}
	if len(paths) == 0 {
		return held("there is no policy file")
	}
	return held("%d files", len(paths))
}

func tameProc(proc string) Result {
	var st unix.Statfs_t
	sys := filepath.Join(proc, "sys")
	if err := unix.Statfs(sys, &st); err != nil {
		return notHeld("%v", err)
	}
	if st.Flags&unix.ST_RDONLY == 0 {
		return notHeld("%s is mounted writable", sys)
	}
	for _, name := range []string{"kcore", "kmsg", "kallsyms", "keys", "timer_list", "sysrq-trigger"} {
		p := filepath.Join(proc, name)
		if readable(p) || unix.Access(p, unix.W_OK) == nil {
			return notHeld("%s can be opened", p)
		}
	}
	return held("%s is mounted read-only; kcore, kmsg, kallsyms and keys are masked", sys)
}

func emptyOrAbsent(dir string) Result {
	names, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return held("absent")
	case err != nil:
		return held("%v", err)
	case len(names) > 0:
		return notHeld("%d entries", len(names))
	}
	return held("empty")
}

// harmlessDevices names what a sandbox may have; whatever else is there is too much.
func harmlessDevices(dir string) Result {
	harmless := []string{"null", "zero", "full", "random", "urandom", "tty", "console", "pts", "ptmx", "shm", "fd", "stdin", "stdout", "stderr"}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return notHeld("%v", err)
	}
	var extra []string
	for _, e := range entries {
		if !slices.Contains(harmless, e.Name()) {
			extra = append(extra, e.Name())
		}
	}
	if len(extra) > 0 {
		return notHeld("also %s", strings.Join(extra[:min(len(extra), mostNamed)], ", "))
	}
	return held("%d entries", len(entries))
}

package native

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setupCapabilities are what B keeps over its first exec, in its own user namespace, to make the network and the root. All of them
// are gone before the command exists.
func setupCapabilities() []uintptr {
	return []uintptr{
		unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE, unix.CAP_SETPCAP, unix.CAP_SYS_RESOURCE,
		unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_CHOWN, unix.CAP_SETUID, unix.CAP_SETGID,
	}
}

// Locked secure bits: root means nothing, ids change nothing, and no capability can be kept or made ambient again.
const secureBits = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<5 | 1<<6 | 1<<7

// namespaceSwitches opens the kernel's limits on namespaces of the new user namespace, while /proc/sys can still be written. They are
// thrown when the root is finished: a detached mount lives in a mount namespace of its own.
func (t *tree) namespaceSwitches() error {
	for _, kind := range []string{"user", "mnt", "net", "pid", "ipc", "uts", "cgroup", "time"} {
		name := "/proc/sys/user/max_" + kind + "_namespaces"
		fd, err := unix.Openat(t.root, "."+name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // this kernel has no such namespace
		}
		if err != nil {
			return &Error{Op: "forbid namespaces", Path: name, Err: err}
		}
		t.switches = append(t.switches, fd)
	}
	return nil
}

// forbidNamespaces makes new namespaces impossible below this one, whatever capability a bug may hand back.
func (t *tree) forbidNamespaces() error {
	for _, fd := range t.switches {
		_, err := unix.Write(fd, []byte("0"))
		unix.Close(fd)
		if err != nil {
			return &Error{Op: "forbid namespaces", Err: err}
		}
	}
	return nil
}

const defaultProcesses = 4096

// coreLimit allows no core file, for none is so small, and, unlike 0, keeps the kernel from starting the program of a core pattern that is
// a pipe: as root, in the host's namespaces (core(5), coredump_pipe in fs/coredump.c).
const coreLimit = 1

func resourceLimits(l Limits) error {
	set := func(resource int, value uint64) error {
		var now unix.Rlimit
		if err := unix.Getrlimit(resource, &now); err != nil {
			return err
		}
		value = min(value, now.Max)
		return unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: value})
	}
	processes := uint64(defaultProcesses)
	if l.Processes > 0 {
		processes = uint64(l.Processes)
	}
	err := errors.Join(set(unix.RLIMIT_CORE, coreLimit), set(unix.RLIMIT_NPROC, processes))
	if l.FileSize > 0 {
		err = errors.Join(err, set(unix.RLIMIT_FSIZE, uint64(l.FileSize)))
	}
	if l.OpenFiles > 0 {
		// By way of package syscall, which otherwise puts the limit that it found at start back at exec.
		v := syscall.Rlimit{Cur: uint64(l.OpenFiles), Max: uint64(l.OpenFiles)}
		err = errors.Join(err, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &v))
	}
	if err != nil {
		return &Error{Op: "limits", Err: err}
	}
	// When memory runs out, the sandbox goes before the gateway. Raising this needs no privilege; failing changes nothing else.
	os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(500)), 0)
	return nil
}

// drop takes everything from the calling thread that it does not need to exec the second stage, for good. The thread must be locked:
// the exec that follows kills the others.
func drop(p *plan, notes *[]string) error {
	if _, _, e := unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); e != 0 && e != unix.ENOSYS {
		return &Error{Op: "session keyring", Err: e}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return &Error{Op: "no_new_privs", Err: err}
	}
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, secureBits, 0, 0, 0); err != nil {
		return &Error{Op: "securebits", Err: err}
	}
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > unix.CAP_SETPCAP {
			break // past the kernel's last capability
		}
		if err != nil {
			return &Error{Op: "bounding set", Err: err}
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return &Error{Op: "ambient set", Err: err}
	}
	note, err := restrictSelf(p.writable())
	if err != nil {
		return &Error{Op: "landlock", Err: err}
	}
	if note != "" {
		*notes = append(*notes, note)
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&hdr, &none[0]); err != nil {
		return &Error{Op: "capabilities", Err: err}
	}
	if err := installFilter(); err != nil {
		return &Error{Op: "seccomp", Err: err}
	}
	return nil
}

// installFilter puts the calling thread, and all that it starts, behind the filter.
func installFilter() error {
	program, err := assemble()
	if err != nil {
		return err
	}
	f := make([]unix.SockFilter, len(program))
	for i, ins := range program {
		f[i] = unix.SockFilter{Code: ins.Op, Jt: ins.Jt, Jf: ins.Jf, K: ins.K}
	}
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
		return fmt.Errorf("install %d instructions: %w", len(f), err)
	}
	return nil
}

// undumpable hides a process from ptrace and /proc/PID/mem of others with its uid, and from core dumps.
func undumpable() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("undumpable: %w", err)
	}
	return nil
}

// Harden makes the gateway itself undumpable and keeps it from writing core files. Call it after Start has returned: an ordinary
// user's kernel refuses to write the id maps of a child of an undumpable process.
func Harden() error {
	if err := undumpable(); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("core limit: %w", err)
	}
	return nil
}

// armed makes the kernel kill this process when the one that started it is gone. Changes of credentials disarm it.
func armed() error {
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
}

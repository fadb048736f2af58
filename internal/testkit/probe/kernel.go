package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket NAME creates a socket of a family. Success is a descriptor; nothing is sent on it.
func socket(args []string) (map[string]any, error) {
	if len(args) != 1 {
		return usage("socket NAME")
	}
	families := map[string][3]int{
		"inet": {unix.AF_INET, unix.SOCK_STREAM, 0}, "inet6": {unix.AF_INET6, unix.SOCK_STREAM, 0}, "unix": {unix.AF_UNIX, unix.SOCK_STREAM, 0},
		"mptcp": {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, "udplite": {unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE}, "sctp": {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP},
		"raw": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, "raw-icmp": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, "raw6": {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW}, "gre": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_GRE},
		"packet": {unix.AF_PACKET, unix.SOCK_RAW, 0}, "packet-dgram": {unix.AF_PACKET, unix.SOCK_DGRAM, 0}, "vsock": {unix.AF_VSOCK, unix.SOCK_STREAM, 0}, "xdp": {unix.AF_XDP, unix.SOCK_RAW, 0}, "alg": {unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
		"key": {unix.AF_KEY, unix.SOCK_RAW, 2}, "bluetooth": {unix.AF_BLUETOOTH, unix.SOCK_RAW, 1}, "can": {unix.AF_CAN, unix.SOCK_RAW, 1}, "tipc": {unix.AF_TIPC, unix.SOCK_STREAM, 0}, "rds": {unix.AF_RDS, unix.SOCK_SEQPACKET, 0}, "smc": {unix.AF_SMC, unix.SOCK_STREAM, 0}, "qipcrtr": {unix.AF_QIPCRTR, unix.SOCK_DGRAM, 0}, "nfc": {unix.AF_NFC, unix.SOCK_STREAM, 0}, "pppox": {unix.AF_PPPOX, unix.SOCK_STREAM, 0},
		"netlink-route": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, "netlink-netfilter": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, "netlink-audit": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, "netlink-uevent": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT}, "netlink-generic": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC}, "netlink-diag": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG},
	}
	f, ok := families[args[0]]
	if !ok {
		return usage("socket: no family " + args[0])
	}
	fd, err := unix.Socket(f[0], f[1]|unix.SOCK_CLOEXEC, f[2])
	if err == nil {
		err = unix.Close(fd)
	}
	return map[string]any{"family": args[0]}, err
}

// systemCall NAME makes a call that a sandbox must refuse, with arguments that do no harm where it is allowed: most then fail with
// EFAULT or EINVAL instead of EPERM. Success is any result but a refusal (EPERM, EACCES, ENOSYS, ENOSPC).
func systemCall(args []string) (map[string]any, error) {
	if len(args) != 1 {
		return usage("syscall NAME")
	}
	call, ok := calls()[args[0]]
	if !ok {
		return usage("syscall: no call " + args[0])
	}
	runtime.LockOSThread() // and never unlocked: what the call did to the thread ends with it
	err := call()
	data := map[string]any{"name": args[0]}
	if err != nil {
		data["result"] = errno(err)
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOSPC) { // ENOSPC: max_user_namespaces is 0
		return data, err
	}
	return data, nil
}

func raw(number uintptr, a ...uintptr) error {
	var six [6]uintptr
	copy(six[:], a)
	if _, _, e := unix.RawSyscall6(number, six[0], six[1], six[2], six[3], six[4], six[5]); e != 0 {
		return e
	}
	return nil
}

// calls are named after what they would give. A pointer of 1 is one that the kernel refuses after it has checked permission.
func calls() map[string]func() error {
	const bad = 1
	word := []byte("probe\x00")
	at := uintptr(unsafe.Pointer(&word[0]))
	return map[string]func() error{
		"io_uring_setup":    func() error { return raw(unix.SYS_IO_URING_SETUP, 1, bad) },
		"io_uring_enter":    func() error { return raw(unix.SYS_IO_URING_ENTER, 99, 0, 0, 0, 0, 0) },
		"io_uring_register": func() error { return raw(unix.SYS_IO_URING_REGISTER, 99, 0, 0, 0) },
		"unshare-user":      func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"unshare-net":       func() error { return unix.Unshare(unix.CLONE_NEWNET) },
		"unshare-mount":     func() error { return unix.Unshare(unix.CLONE_NEWNS) },
		"clone-user":        func() error { return cloneInto(unix.CLONE_NEWUSER) },
		"clone-net":         func() error { return cloneInto(unix.CLONE_NEWNET) },
		"setns":             func() error { return setns("/proc/self/ns/net") },
		"setns-init":        func() error { return setns("/proc/1/ns/mnt") },
		"mount":             func() error { return unix.Mount("none", "/tmp", "tmpfs", 0, "size=4k") },
		"remount":           func() error { return unix.Mount("", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
		"umount":            func() error { return unix.Unmount("/proc", unix.MNT_DETACH) },
		"pivot_root":        func() error { return unix.PivotRoot("/", "/") },
		"chroot":            func() error { return unix.Chroot("/tmp") },
		"open_tree":         func() error { return raw(unix.SYS_OPEN_TREE, ^uintptr(99), at, 1) },
		"fsopen":            func() error { return raw(unix.SYS_FSOPEN, bad, 0) },
		"move_mount":        func() error { return raw(unix.SYS_MOVE_MOUNT, 99, bad, 99, bad, 0) },
		"ptrace-init":       func() error { return raw(unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1, 0, 0) },
		"process_vm_readv":  func() error { return readInit() },
		"pidfd_getfd":       func() error { return stealDescriptor() },
		"kcmp":              func() error { return raw(unix.SYS_KCMP, 1, uintptr(os.Getpid()), 0, 0, 0) },
		"keyctl":            func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false); return err },
		"add_key": func() error {
			_, err := unix.AddKey("user", "probe", []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)
			return err
		},
		"request_key":       func() error { _, err := unix.RequestKey("user", "probe", "", 0); return err },
		"bpf":               func() error { return raw(unix.SYS_BPF, 0, bad, 64) },
		"userfaultfd":       func() error { return descriptor(unix.SYS_USERFAULTFD, 1) },
		"perf_event_open":   func() error { return raw(unix.SYS_PERF_EVENT_OPEN, bad, 0, ^uintptr(0), ^uintptr(0), 0) },
		"fanotify_init":     func() error { return descriptor(unix.SYS_FANOTIFY_INIT, 0) },
		"open_by_handle_at": func() error { return raw(unix.SYS_OPEN_BY_HANDLE_AT, 99, bad, 0) },
		"name_to_handle_at": func() error { return raw(unix.SYS_NAME_TO_HANDLE_AT, 99, bad, bad, bad, 0) },
		"kexec_load":        func() error { return raw(unix.SYS_KEXEC_LOAD, 0, 99, bad, 0) },
		"init_module":       func() error { return raw(unix.SYS_INIT_MODULE, bad, 0, bad) },
		"delete_module":     func() error { return raw(unix.SYS_DELETE_MODULE, bad, 0) },
		"reboot":            func() error { return raw(unix.SYS_REBOOT, 0, 0, 0, 0) },
		"swapon":            func() error { return raw(unix.SYS_SWAPON, bad, 0) },
		"acct":              func() error { return raw(unix.SYS_ACCT, bad) },
		"syslog":            func() error { _, err := unix.Klogctl(3, make([]byte, 16)); return err },
		"settimeofday":      func() error { return raw(unix.SYS_SETTIMEOFDAY, bad, 0) },
		"sethostname":       func() error { return raw(unix.SYS_SETHOSTNAME, bad, 5) },
		"quotactl":          func() error { return raw(unix.SYS_QUOTACTL, 0, bad, 0, bad) },
		"mknod":             func() error { return unix.Mknod("/tmp/probe-mem", unix.S_IFCHR|0o600, 1<<8|1) },
		"setuid0":           becomeRoot,
		"raise-priority":    func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -10) },
		"vhangup":           func() error { return raw(unix.SYS_VHANGUP) },
		"tiocsti":           func() error { return stuff(unix.TIOCSTI) },
		"tioclinux":         func() error { return stuff(unix.TIOCLINUX) },
		"x32":               func() error { return foreign() },
	}
}

// becomeRoot fails with EINVAL where the user namespace has no root at all, which is the firmest refusal.
func becomeRoot() error {
	err := raw(unix.SYS_SETRESUID, 0, 0, 0)
	if errors.Is(err, unix.EINVAL) {
		return unix.EPERM
	}
	return err
}

func cloneInto(flags uintptr) error {
	// CLONE_VM|CLONE_VFORK is left out: the child is a copy that ends at once.
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	_, err := unix.Wait4(int(pid), nil, 0, nil)
	return err
}

func setns(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Setns(int(f.Fd()), 0)
}

func readInit() error {
	var b [8]byte
	local := unix.Iovec{Base: &b[0], Len: 8}
	remote := unix.RemoteIovec{Base: 0x400000, Len: 8}
	_, err := unix.ProcessVMReadv(1, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
	return err
}

func stealDescriptor() error {
	fd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	got, err := unix.PidfdGetfd(fd, 0, 0)
	if err == nil {
		err = unix.Close(got)
	}
	return err
}

func descriptor(number, arg uintptr) error {
	fd, _, e := unix.RawSyscall(number, arg, 0, 0)
	if e != 0 {
		return e
	}
	return unix.Close(int(fd))
}

// stuff pushes a byte into the terminal's input, as if the person had typed it.
func stuff(request uintptr) error {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("no terminal: %w", unix.EPERM)
	}
	defer tty.Close()
	b := [2]byte{'#', 0}
	return raw(unix.SYS_IOCTL, tty.Fd(), request, uintptr(unsafe.Pointer(&b[0])))
}

// foreign calls getpid by the number of another ABI of the same machine: filters that look at the number alone miss it.
func foreign() error {
	if runtime.GOARCH != "amd64" {
		return unix.ENOSYS
	}
	return raw(0x40000000 + 39)
}

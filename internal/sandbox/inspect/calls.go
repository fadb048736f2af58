package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// badPointer is an address that no process has mapped.
const badPointer = 1

// badType is a socket type that the kernel rejects (EINVAL) before it looks whether the family exists or is permitted. No filter that
// goes by the family sees a difference.
const badType = 11

// attempt is a system call with arguments that the kernel rejects by itself, for another reason than permission: EPERM, or the ENOSYS
// of a call that exists, is then the word of a filter. Where nothing refuses it, it does nothing.
type attempt struct {
	id, title, means string
	number           uintptr
	args             [6]uintptr
}

func attempts() []attempt {
	const (
		never    = ^uintptr(0) // a descriptor that is not open
		badFlag  = 1 << 30
		families = "kernel code that no agent needs is open to attack"
	)
	family := func(name string, number, protocol uintptr, means string) attempt {
		return attempt{"calls." + strings.ToLower(name), "AF_" + name + " sockets", means, unix.SYS_SOCKET, [6]uintptr{number, badType, protocol}}
	}
	return []attempt{
		family("VSOCK", unix.AF_VSOCK, 0, "a virtual machine's hypervisor is reached around every network namespace"),
		family("PACKET", unix.AF_PACKET, 0, families),
		family("ALG", unix.AF_ALG, 0, families),
		family("XDP", unix.AF_XDP, 0, families),
		{"calls.raw", "raw IP sockets", "packets can be forged", unix.SYS_SOCKET, [6]uintptr{unix.AF_INET, badType, 0}},
		{"calls.io_uring", "io_uring", "operations in a ring run past the filter", unix.SYS_IO_URING_SETUP, [6]uintptr{1, badPointer}},
		{"calls.bpf", "bpf", "programs can be loaded into the kernel", unix.SYS_BPF, [6]uintptr{0, badPointer, 64}},
		{"calls.userfaultfd", "userfaultfd", "the usual help for kernel exploits is at hand", unix.SYS_USERFAULTFD, [6]uintptr{badFlag | 1}},
		{"calls.keyctl", "keyctl", "keys of the host's session can be read", unix.SYS_KEYCTL, [6]uintptr{badFlag}},
		{"calls.perf_event_open", "perf_event_open", "other processes can be observed", unix.SYS_PERF_EVENT_OPEN, [6]uintptr{badPointer, 0, never, never, 0}},
		{"calls.mount", "mount", "the file system can be changed", unix.SYS_MOUNT, [6]uintptr{badPointer, badPointer, badPointer}},
		{"calls.unshare", "unshare of a user namespace", "a new user namespace hands back every capability", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWUSER | badThreadFlags}},
		{"calls.clone", "clone into a user namespace", "a new user namespace hands back every capability", unix.SYS_CLONE, [6]uintptr{unix.CLONE_NEWUSER | unix.CLONE_FS | uintptr(unix.SIGCHLD)}},
		{"calls.setns", "setns", "other namespaces can be entered", unix.SYS_SETNS, [6]uintptr{never, 0}},
		{"calls.ptrace", "ptrace of pid 1", "the sandbox's init can be taken over", unix.SYS_PTRACE, [6]uintptr{unix.PTRACE_SEIZE, 1, 1, 0}},
		{"calls.process_vm_readv", "process_vm_readv of pid 1", "other processes' memory can be read", unix.SYS_PROCESS_VM_READV, [6]uintptr{1, 0, 0, 0, 0, badFlag}},
		{"calls.pidfd_getfd", "pidfd_getfd", "sockets can be taken out of other processes", unix.SYS_PIDFD_GETFD, [6]uintptr{never, 0, badFlag}},
		{"calls.tiocsti", "TIOCSTI", "commands can be typed into the terminal that the host's shell reads next", unix.SYS_IOCTL, [6]uintptr{0, unix.TIOCSTI, badPointer}},
	}
}

// badThreadFlags is a flag that unshare does not know (EINVAL).
const badThreadFlags = unix.CLONE_PARENT_SETTID

func callChecks() []Check {
	var list []Check
	for _, a := range attempts() {
		list = append(list, Check{
			ID: a.id, Title: a.title + " refused", Essential: true, Means: a.means, Remedy: mendFilter,
			run: func(context.Context, *Plan) Result { return refused(a) },
		})
	}
	const families = "kernel code that no agent needs is open to attack, or another machine is reached"
	return append(list,
		Check{ID: "calls.families", Title: "sockets of every family but UNIX, INET, INET6 and NETLINK refused", Essential: true, Means: families, Remedy: mendFilter,
			run: func(context.Context, *Plan) Result { return allRefused(otherFamilies()) }},
		Check{ID: "calls.netlink", Title: "netlink sockets but ROUTE refused", Essential: true, Means: families, Remedy: mendFilter,
			run: func(context.Context, *Plan) Result { return allRefused(otherNetlink()) }},
		Check{
			ID: "calls.foreign", Title: "calls of another architecture end the process", Essential: true,
			Means: "x32 and 32-bit calls have other numbers and go around the filter", Remedy: mendFilter, run: foreignKilled,
		})
}

func otherFamilies() (list []attempt) {
	const families = 46 // AF_MAX of Linux 6.18
	for n := range families {
		switch n {
		case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK:
		default:
			list = append(list, attempt{title: fmt.Sprintf("family %d", n), number: unix.SYS_SOCKET, args: [6]uintptr{uintptr(n), badType}})
		}
	}
	return list
}

func otherNetlink() (list []attempt) {
	for n := unix.NETLINK_ROUTE + 1; n <= unix.NETLINK_SMC; n++ {
		list = append(list, attempt{title: fmt.Sprintf("protocol %d", n), number: unix.SYS_SOCKET, args: [6]uintptr{unix.AF_NETLINK, badType, uintptr(n)}})
	}
	return list
}

func allRefused(list []attempt) Result {
	for _, a := range list {
		if r := refused(a); r.Status != Held {
			return notHeld("%s: %s", a.title, r.Evidence)
		}
	}
	return held("%d tried", len(list))
}

const mendFilter = "the kernel needs CONFIG_SECCOMP_FILTER; if it has it, please report this with the output of `postern doctor --json`"

// refused makes the call on a thread of its own that ends with it, so that nothing a call may have done to the thread lives on.
func refused(a attempt) Result {
	answer := make(chan unix.Errno)
	go func() {
		runtime.LockOSThread() // and never unlocked
		r, _, errno := unix.RawSyscall6(a.number, a.args[0], a.args[1], a.args[2], a.args[3], a.args[4], a.args[5])
		if errno == 0 && a.number == unix.SYS_CLONE && r == 0 { // a child that no kernel makes of these flags
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		answer <- errno
	}()
	switch errno := <-answer; errno {
	case 0:
		return notHeld("the call succeeded")
	case unix.EPERM, unix.ENOSYS:
		return held("%s", unix.ErrnoName(errno))
	default:
		return notHeld("%s is the kernel's own answer: nothing filters the call", unix.ErrnoName(errno))
	}
}

// foreignName makes an inspector make one call by a foreign number.
const foreignName = "foreign-call"

// foreignKilled starts another inspector that makes an x32 call. It must die of it.
func foreignKilled(ctx context.Context, _ *Plan) Result {
	if runtime.GOARCH != "amd64" {
		return unavailable("%s has no second set of calls that a 64-bit program can make", runtime.GOARCH)
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{Name, foreignName}
	cmd.Env = []string{"GOTRACEBACK=none"}
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return notHeld("the process that made one lived: %v", err)
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGSYS {
		return held("SIGSYS")
	}
	return notHeld("the process that made one ended with %v", exit.ProcessState)
}

// child is the life of a process that an inspector starts for a call that may kill it. It returns unless name is one.
func child(name string) {
	if name != foreignName {
		return
	}
	const x32Getpid = 0x4000_0000 + 39
	_, _, errno := unix.RawSyscall(x32Getpid, 0, 0, 0)
	fmt.Fprintln(os.Stderr, unix.ErrnoName(errno))
	os.Exit(0)
}

package native

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probe tries one thing and prints what came of it: "ok" or the name of the errno.
func probe(args []string) int {
	tries := map[string]func([]string) error{
		"call": tryCall, "socket": trySocket, "socketpair": trySocketpair, "fds": tryDescriptors, "tiocsti": tryInjection, "connect": tryConnect,
		"dial": tryDial, "ptrace": tryPtrace, "traceme": tryTraceme, "namespace": tryNamespace, "personality": tryPersonality, "pid1": tryFirst,
		"group": tryGroup, "abstract": tryAbstract, "eat": tryMemory, "mode": tryMode, "fchdir": tryChdir, "allowed": tryAllowed, "foreign": tryForeign, "x32": tryX32, "walled": tryWalled,
	}
	err := tries[args[0]](args[1:])
	if e, ok := err.(syscall.Errno); ok {
		fmt.Println(unix.ErrnoName(e))
	} else if err != nil {
		fmt.Println("error:", err)
	} else {
		fmt.Println("ok")
	}
	return 0
}

// tryForeign executes a program of another architecture: 32-bit x86, whose only instructions leave with status 0.
func tryForeign([]string) error {
	program := []byte("\x7fELF\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00" + // ELF, 32 bits, little-endian
		"\x02\x00\x03\x00\x01\x00\x00\x00\x54\x80\x04\x08\x34\x00\x00\x00" + // executable, 386, entry, program header at 52
		"\x00\x00\x00\x00\x00\x00\x00\x00\x34\x00\x20\x00\x01\x00\x00\x00\x00\x00\x00\x00" +
		"\x01\x00\x00\x00\x00\x00\x00\x00\x00\x80\x04\x08\x00\x80\x04\x08" + // load all of the file
		"\x60\x00\x00\x00\x60\x00\x00\x00\x05\x00\x00\x00\x00\x10\x00\x00" +
		"\xb8\x01\x00\x00\x00\x31\xdb\xcd\x80\x90\x90\x90") // mov eax, 1; xor ebx, ebx; int 0x80
	dir, err := os.MkdirTemp("", "foreign")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(dir+"/program", program, 0o755); err != nil {
		return err
	}
	return exec.Command(dir + "/program").Run()
}

// tryX32 asks for getpid by the x32 number.
func tryX32([]string) error {
	_, _, e := syscall.RawSyscall(x32Bit|syscall.SYS_GETPID, 0, 0, 0)
	return errnoOf(e)
}

// tryWalled stands behind Landlock alone, without any namespace, and tries to write and to signal. The first argument is where it may
// write, the second where it may not.
func tryWalled(args []string) error {
	runtime.LockOSThread()
	if len(args) > 2 {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		if note, err := restrictSelf([]string{args[0], "/dev"}); err != nil || note != "" {
			return fmt.Errorf("%s %w", note, err)
		}
	}
	for _, dir := range args[:2] {
		for what, do := range map[string]func(string) error{
			"create": func(d string) error { return os.WriteFile(d+"/new", nil, 0o644) },
			"write":  func(d string) error { return os.WriteFile(d+"/old", []byte("x"), 0o644) },
			"remove": func(d string) error { return os.Remove(d + "/gone") },
			"mkdir":  func(d string) error { return os.Mkdir(d+"/dir", 0o755) },
			"rename": func(d string) error { return os.Rename(d+"/here", d+"/there") },
		} {
			if err := do(dir); err != nil {
				fmt.Printf("%s %s: %v\n", what, filepath.Base(dir), bare(err))
			}
		}
	}
	return unix.Kill(os.Getppid(), unix.SIGURG) // which Go programs use themselves
}

func errnoOf(e syscall.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}

// tryCall makes a system call with arguments that mean nothing: -1 is no descriptor, no pointer and no known flag.
func tryCall(args []string) error {
	const bad = ^uintptr(0)
	_, _, e := syscall.RawSyscall6(uintptr(callNumbers()[args[0]]), bad, bad, bad, bad, bad, bad)
	return errnoOf(e)
}

func number(s string) int {
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		panic(err)
	}
	return int(n)
}

func trySocket(args []string) error {
	_, err := unix.Socket(number(args[0]), number(args[1]), number(args[2]))
	return err
}

func trySocketpair(args []string) error {
	_, err := unix.Socketpair(number(args[0]), unix.SOCK_STREAM, 0)
	return err
}

// tryDescriptors prints the open descriptors but those of this process's own runtime.
func tryDescriptors([]string) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	var list []string
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.HasPrefix(to, "anon_inode:") && !strings.HasPrefix(to, "/proc/") {
			list = append(list, e.Name())
		}
	}
	slices.Sort(list)
	fmt.Println(strings.Join(list, " "))
	return nil
}

// tryInjection types a character into the controlling terminal; arg is the ioctl, with high bits to hide it in.
func tryInjection(args []string) error {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	c := byte('x')
	_, _, e := syscall.Syscall(syscall.SYS_IOCTL, tty.Fd(), uintptr(number(args[0])), uintptr(unsafe.Pointer(&c)))
	return errnoOf(e)
}

func tryConnect(args []string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	return unix.Connect(fd, &unix.SockaddrUnix{Name: args[0]})
}

func tryDial(args []string) error {
	c, err := net.Dial("tcp4", args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("hello from inside"))
	return err
}

func child() *exec.Cmd {
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	return cmd
}

// tryPtrace attaches to a process of the same user.
func tryPtrace(args []string) error {
	cmd := child()
	defer cmd.Process.Kill()
	_, _, e := syscall.Syscall6(syscall.SYS_PTRACE, uintptr(number(args[0])), uintptr(cmd.Process.Pid), 0, 0, 0, 0)
	return errnoOf(e)
}

// tryTraceme debugs a process that it starts, as debuggers do.
func tryTraceme([]string) error {
	runtime.LockOSThread()
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &ws, 0, nil); err != nil {
		return err
	}
	if !ws.Stopped() {
		return errors.New("the traced process did not stop")
	}
	return syscall.PtraceDetach(cmd.Process.Pid)
}

// tryNamespace starts a process in new namespaces.
func tryNamespace(args []string) error {
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: uintptr(number(args[0]))}
	err := cmd.Run()
	return bare(err)
}

// bare strips an error down to its errno.
func bare(err error) error {
	if e := syscall.Errno(0); errors.As(err, &e) {
		return e
	}
	return err
}

func tryPersonality(args []string) error {
	_, _, e := syscall.RawSyscall(syscall.SYS_PERSONALITY, uintptr(number(args[0])), 0, 0)
	return errnoOf(e)
}

// tryFirst opens a file of the first process of the namespace.
func tryFirst(args []string) error {
	_, err := os.ReadFile("/proc/1/" + args[0])
	return bare(err)
}

// tryGroup sends a signal to the process group, which outside of the sandbox is the gateway's.
func tryGroup(args []string) error {
	signal.Ignore(syscall.Signal(number(args[0])))
	return syscall.Kill(0, syscall.Signal(number(args[0])))
}

func tryAbstract(args []string) error {
	return tryConnect([]string{"@" + args[0]})
}

// tryMemory uses that many MiB.
func tryMemory(args []string) error {
	b, err := unix.Mmap(-1, 0, number(args[0])<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return nil
}

// tryMode makes a file with set-id bits in each way there is.
func tryMode(args []string) error {
	const mode = 0o4755
	at := unix.AT_FDCWD
	err := os.WriteFile("plain", nil, 0o644)
	if err != nil {
		return err
	}
	switch args[0] {
	case "open":
		_, err = unix.Open("f", unix.O_CREAT|unix.O_WRONLY, mode)
	case "tmpfile":
		_, err = unix.Open(".", unix.O_TMPFILE|unix.O_WRONLY, mode)
	case "chmod":
		err = unix.Fchmodat(at, "plain", mode, 0)
	case "fchmod":
		fd, _ := unix.Open("plain", unix.O_WRONLY, 0)
		err = unix.Fchmod(fd, mode)
	case "fchmodat2":
		name, _ := unix.BytePtrFromString("plain")
		_, _, e := syscall.Syscall6(unix.SYS_FCHMODAT2, uintptr(at), uintptr(unsafe.Pointer(name)), mode, 0, 0, 0)
		err = errnoOf(e)
	case "mknod":
		err = unix.Mknodat(at, "n", unix.S_IFREG|mode, 0)
	case "group":
		err = unix.Fchmodat(at, "plain", 0o2755, 0)
	case "openat2":
		_, err = unix.Openat2(at, "o", &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: mode})
	}
	return err
}

// tryChdir leaves the root by way of a descriptor, if there is one.
func tryChdir(args []string) error {
	if err := unix.Fchdir(number(args[0])); err != nil {
		return err
	}
	_, err := os.Stat(args[1])
	return bare(err)
}

// tryAllowed does what programs do all day.
func tryAllowed([]string) error {
	for family, protocols := range map[int][]int{unix.AF_UNIX: {0}, unix.AF_INET: {0, unix.IPPROTO_TCP}, unix.AF_INET6: {0, unix.IPPROTO_TCP}} {
		for _, p := range protocols {
			if _, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, p); err != nil {
				return fmt.Errorf("socket %d %d: %w", family, p, err)
			}
		}
	}
	if _, err := net.Interfaces(); err != nil {
		return err
	}
	if err := exec.Command("sh", "-c", "echo hi | grep -q hi && sleep 0 & wait").Run(); err != nil {
		return err
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_UNSHARE, unix.CLONE_FILES, 0, 0); e != 0 {
		return fmt.Errorf("unshare files: %w", e)
	}
	return nil
}

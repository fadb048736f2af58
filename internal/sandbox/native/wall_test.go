package native

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// wantHeld runs a probe in both arms: inside it must answer with one of the refusals, outside with something else.
func wantHeld(t *testing.T, spec Spec, refusal string, args ...string) {
	t.Helper()
	if got := outside(t, args...); got == refusal {
		t.Errorf("%v outside: %s: this kernel refuses it to anybody, the test shows nothing", args, got)
	}
	if got := inside(t, spec, args...); got != refusal {
		t.Errorf("%v inside: %s, want %s", args, got, refusal)
	}
}

func TestEveryRefusedCallIsRefused(t *testing.T) {
	spec := newSpec(t)
	numbers := callNumbers()
	var script strings.Builder
	want := map[string]string{}
	for _, r := range filterTable() {
		for _, name := range r.Calls {
			if _, ok := numbers[name]; ok && len(r.tests) == 0 {
				want[name] = unix.ErrnoName(r.errno)
				fmt.Fprintf(&script, "echo %s $(%s probe call %s)\n", name, probePath, name)
			}
		}
	}
	out := shell(t, spec, script.String())
	got := map[string]string{}
	for line := range strings.Lines(out) {
		name, answer, _ := strings.Cut(strings.TrimSpace(line), " ")
		got[name] = answer
	}
	for name, answer := range want {
		if got[name] != answer {
			t.Errorf("%s inside: %s, want %s", name, got[name], answer)
		}
		// The arm without the filter is root's: the kernel refuses much of this to others by itself. vhangup would end the terminal.
		if isRoot() && name != "vhangup" && answer != "ENOSYS" {
			if free := outside(t, "call", name); free == answer {
				t.Errorf("%s outside: %s: the test shows nothing", name, free)
			}
		}
	}
	if len(want) < 50 {
		t.Errorf("only %d calls were tried", len(want))
	}
}

func TestSocketsOfOtherFamiliesAreRefused(t *testing.T) {
	spec := newSpec(t)
	const stream, dgram, raw = "1", "2", "3"
	wantHeld(t, spec, "EPERM", "socket", fmt.Sprint(unix.AF_VSOCK), stream, "0")
	wantHeld(t, spec, "EPERM", "socket", fmt.Sprint(unix.AF_NETLINK), raw, fmt.Sprint(unix.NETLINK_KOBJECT_UEVENT))
	wantHeld(t, spec, "EPROTONOSUPPORT", "socket", fmt.Sprint(unix.AF_INET), dgram, fmt.Sprint(unix.IPPROTO_UDPLITE))
	for _, family := range []int{unix.AF_PACKET, unix.AF_ALG, unix.AF_XDP, unix.AF_KEY, unix.AF_CAN, unix.AF_TIPC, unix.AF_BLUETOOTH, unix.AF_RDS, 99} {
		if got := inside(t, spec, "socket", fmt.Sprint(family), dgram, "0"); got != "EPERM" {
			t.Errorf("family %d inside: %s", family, got)
		}
	}
	for _, protocol := range []int{unix.IPPROTO_ICMP, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_MPTCP} {
		if got := inside(t, spec, "socket", fmt.Sprint(unix.AF_INET), stream, fmt.Sprint(protocol)); got != "EPROTONOSUPPORT" {
			t.Errorf("protocol %d inside: %s", protocol, got)
		}
	}
	if got := inside(t, spec, "socket", fmt.Sprint(unix.AF_INET6), raw, "0"); got != "EPERM" {
		t.Errorf("raw socket inside: %s", got)
	}
	if got := inside(t, spec, "socketpair", fmt.Sprint(unix.AF_TIPC)); got != "EPERM" {
		t.Errorf("TIPC pair inside: %s", got)
	}
}

func TestOrdinaryProgramsWork(t *testing.T) {
	spec := newSpec(t)
	for _, args := range [][]string{{"allowed"}, {"traceme"}, {"personality", "0xffffffff"}, {"personality", "0x40000"}, {"socketpair", "1"}} {
		if got := inside(t, spec, args...); got != "ok" {
			t.Errorf("%v inside: %s", args, got)
		}
	}
}

func TestNamespacesAreRefused(t *testing.T) {
	spec := newSpec(t)
	for _, flag := range []int{unix.CLONE_NEWUSER, unix.CLONE_NEWUSER | unix.CLONE_NEWNET} {
		wantHeld(t, spec, "EPERM", "namespace", fmt.Sprint(flag))
	}
	for _, flag := range []int{unix.CLONE_NEWNS, unix.CLONE_NEWPID, unix.CLONE_NEWIPC, unix.CLONE_NEWUTS, unix.CLONE_NEWCGROUP, unix.CLONE_NEWNET} {
		if got := inside(t, spec, "namespace", fmt.Sprint(flag)); got != "EPERM" {
			t.Errorf("clone %#x inside: %s", flag, got)
		}
	}
	// The second wall, behind the filter.
	for _, kind := range []string{"user", "mnt", "net", "pid", "ipc", "uts", "cgroup"} {
		if got := shell(t, spec, "cat /proc/sys/user/max_"+kind+"_namespaces"); got != "0" {
			t.Errorf("max_%s_namespaces inside: %s", kind, got)
		}
	}
}

func TestForeignArchitecturesAreKilled(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		return // this architecture's kernels run only what was built for it
	}
	spec := newSpec(t)
	if got := outside(t, "foreign"); got != "ok" {
		t.Fatalf("32-bit program outside: %s", got)
	}
	if got := inside(t, spec, "foreign"); !strings.Contains(got, "bad system call") {
		t.Errorf("32-bit program inside: %s", got)
	}
	spec.Command = []string{probePath, "probe", "x32"}
	if st := run(t, spec).status; st.Signal != syscall.SIGSYS {
		t.Errorf("x32 call inside: %+v", st)
	}
}

func TestOtherProcessesCannotBeOpened(t *testing.T) {
	spec := newSpec(t)
	wantHeld(t, spec, "EPERM", "ptrace", fmt.Sprint(unix.PTRACE_ATTACH))
	wantHeld(t, spec, "EPERM", "ptrace", fmt.Sprint(unix.PTRACE_SEIZE))
	for _, file := range []string{"environ", "mem", "maps", "auxv", "fd/3", "exe", "root/etc/hosts", "cwd/etc/hosts"} {
		if got := inside(t, spec, "pid1", file); got != "EACCES" && got != "EPERM" {
			t.Errorf("/proc/1/%s inside: %s", file, got)
		}
	}
	if got := shell(t, spec, `cat /proc/self/environ | tr '\0' '\n' | grep -c TERM=dumb`); got != "1" {
		t.Errorf("a process cannot even read its own: %s", got)
	}
}

func TestOnlyTheSandboxsProcessesAreSeen(t *testing.T) {
	spec := newSpec(t)
	if got := shell(t, spec, "ls -d /proc/[0-9]* | wc -l"); number(got) > 6 {
		t.Errorf("%s processes inside", got)
	}
	if got := shell(t, spec, "tr '\\0' ' ' </proc/1/cmdline"); got != InitName+" "+secondStage {
		t.Errorf("process 1 is %q", got)
	}
}

func TestPrivilegesAreGone(t *testing.T) {
	spec := newSpec(t)
	status := shell(t, spec, "cat /proc/self/status; umask; ulimit -c")
	first := shell(t, spec, "cat /proc/1/status")
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if !strings.Contains(status, set+":\t0000000000000000") {
			t.Errorf("%s is not empty:\n%s", set, status)
		}
		if !strings.Contains(first, set+":\t0000000000000000") {
			t.Errorf("%s of process 1 is not empty:\n%s", set, first)
		}
	}
	for _, text := range []string{status, first} {
		if !strings.Contains(text, "NoNewPrivs:\t1") || !strings.Contains(text, "Seccomp:\t2") {
			t.Errorf("no_new_privs or seccomp is off:\n%s", text)
		}
	}
	want := uint32(os.Getuid())
	if isRoot() {
		want = nobody
	}
	if !strings.Contains(status, fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d", want)) {
		t.Errorf("the command is not uid %d:\n%s", want, status)
	}
	if maps := shell(t, spec, "cat /proc/self/uid_map"); strings.Join(strings.Fields(maps), " ") != fmt.Sprintf("%d %[1]d 1", want) {
		t.Errorf("uid_map is %q", maps)
	}
	if !strings.HasSuffix(status, "\n0") {
		t.Errorf("core files are not off:\n%s", status)
	}
	if got := strings.Fields(shell(t, spec, "grep '^Max core' /proc/self/limits")); len(got) < 6 || got[4] != "1" || got[5] != "1" {
		t.Errorf("a core pattern that is a pipe would run on the host: %q", got) // it does with a limit of 0
	}
	if got := shell(t, spec, "setpriv --dump | grep -i securebits"); strings.Count(got, "locked") < 3 {
		t.Errorf("secure bits: %s", got)
	}
}

func TestNewFilesAreNotWorldWritable(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	if got := shell(t, newSpec(t), "touch f; stat -c %a f"); got != "664" {
		t.Errorf("mode %s", got)
	}
}

func TestLandlockIsAWallOfItsOwn(t *testing.T) {
	dirs := func() []string {
		var list []string
		for _, name := range []string{"mine", "theirs"} {
			d := filepath.Join(t.TempDir(), name)
			for _, f := range []string{"old", "gone", "here"} {
				write(t, filepath.Join(d, f), "")
			}
			list = append(list, d)
		}
		return list
	}
	if got := outside(t, append([]string{"walled"}, dirs()...)...); got != "ok" {
		t.Errorf("without the wall: %s", got)
	}
	got := outside(t, append([]string{"walled"}, append(dirs(), "restrict")...)...)
	for _, what := range []string{"create", "write", "remove", "mkdir", "rename"} {
		if !strings.Contains(got, what+" theirs: permission denied") {
			t.Errorf("%s is not refused: %s", what, got)
		}
	}
	if strings.Contains(got, "mine") || !strings.HasSuffix(got, "EPERM") {
		t.Errorf("behind the wall: %s", got)
	}
}

func TestOutputFilesCanBeOpenedAgainByName(t *testing.T) {
	spec := newSpec(t)
	out, err := os.OpenFile(filepath.Join(t.TempDir(), "out"), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := out.Chmod(0o666); err != nil {
		t.Fatal(err)
	}
	spec.Command = []string{"sh", "-c", "echo again >>/dev/stdout; echo other >>/dev/stderr"}
	spec.Stdout, spec.Stderr = out, out
	p, err := Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Exec(); err != nil {
		t.Fatal(err)
	}
	if st, err := p.Wait(); err != nil || st.Code != 0 {
		t.Errorf("%+v %v", st, err)
	}
	if got := read(t, out.Name()); got != "again\nother\n" {
		t.Errorf("%q", got)
	}
}

func TestInputFileCannotBeOpenedForWriting(t *testing.T) {
	spec := newSpec(t)
	name := filepath.Join(t.TempDir(), "in")
	write(t, name, "precious")
	if err := os.Chmod(name, 0o666); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	attack := exec.Command("sh", "-c", "cat /dev/stdin; echo free >/proc/self/fd/0")
	attack.Stdin = in
	if out, err := attack.CombinedOutput(); err != nil || string(out) != "precious" || read(t, name) != "free\n" {
		t.Fatalf("on the host: %s %v: the test shows nothing", out, err)
	}
	spec.Stdin = in
	if got := shell(t, spec, "(echo stolen >/proc/self/fd/0) 2>&1 || true"); !strings.Contains(got, "Permission denied") {
		t.Errorf("%s", got)
	}
	if got := read(t, name); got != "free\n" {
		t.Errorf("the file is now %q", got)
	}
}

func TestSignalsToTheGroupDoNotReachTheGateway(t *testing.T) {
	// In a group of their own, a probe on the host ends its neighbour.
	neighbour := exec.Command("sleep", "1000")
	neighbour.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := neighbour.Start(); err != nil {
		t.Fatal(err)
	}
	attack := exec.Command("/proc/self/exe", "probe", "group", fmt.Sprint(int(syscall.SIGUSR1)))
	attack.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: neighbour.Process.Pid}
	if out, err := attack.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "ok" {
		t.Fatalf("%s %v", out, err)
	}
	if neighbour.Wait(); neighbour.ProcessState.Success() {
		t.Fatal("the neighbour lives: the test shows nothing")
	}
	// The tests and the command share a process group too. Without the scope, SIGUSR1 would end this process.
	if got := inside(t, newSpec(t), "group", fmt.Sprint(int(syscall.SIGUSR1))); got != "ok" {
		t.Errorf("inside: %s", got)
	}
}

func TestAbstractSocketsOfTheHostAreOutOfReach(t *testing.T) {
	name := "postern-test-" + filepath.Base(t.TempDir()) + fmt.Sprint(os.Getpid())
	l, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wantHeld(t, newSpec(t), "ECONNREFUSED", "abstract", name)
}

func TestSetIDBitsCannotBeMade(t *testing.T) {
	spec := newSpec(t)
	t.Chdir(t.TempDir())
	for way, want := range map[string]string{
		"open": "EPERM", "tmpfile": "EPERM", "chmod": "EPERM", "fchmod": "EPERM", "fchmodat2": "EPERM", "mknod": "EPERM", "group": "EPERM", "openat2": "ENOSYS",
	} {
		wantHeld(t, spec, want, "mode", way)
	}
}

func TestPersonalitiesAreRefused(t *testing.T) {
	wantHeld(t, newSpec(t), "EPERM", "personality", "0x0400000") // READ_IMPLIES_EXEC
}

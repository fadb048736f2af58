package native

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal and a process that leads a session on it.
type testTerminal struct {
	t      *testing.T
	master *os.File
	fd     int // of master
	cmd    *exec.Cmd
	seen   string // not yet expected output
}

// onTerminal starts a program on a new terminal.
func onTerminal(t *testing.T, args ...string) *testTerminal {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	master := os.NewFile(uintptr(fd), "master") // not blocking, so that deadlines work
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.Env = append(os.Environ(), "PS1=$ ", "TERM=dumb")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	term := &testTerminal{t: t, fd: fd, master: master, cmd: cmd}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		master.Close()
	})
	return term
}

// gatewayOn starts the gateway role on a new terminal.
func gatewayOn(t *testing.T, spec Spec) *testTerminal {
	t.Helper()
	return onTerminal(t, "/proc/self/exe", "gateway", encoded(t, spec))
}

func encoded(t *testing.T, spec Spec) string {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (x *testTerminal) send(keys string) {
	x.t.Helper()
	if _, err := x.master.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

// expect reads until the pattern has appeared and returns all that came up to its end.
func (x *testTerminal) expect(pattern string) string {
	x.t.Helper()
	re := regexp.MustCompile(pattern)
	if err := x.master.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		x.t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		if at := re.FindStringIndex(x.seen); at != nil {
			got := x.seen[:at[1]]
			x.seen = x.seen[at[1]:]
			return got
		}
		n, err := x.master.Read(buf)
		x.seen += string(buf[:n])
		if err != nil && n == 0 {
			x.t.Fatalf("waiting for %q: %v; seen: %q", pattern, err, x.seen)
		}
	}
}

func (x *testTerminal) code() int {
	x.cmd.Wait()
	return x.cmd.ProcessState.ExitCode()
}

const ctrlC, ctrlZ, ctrlD, ctrlBackslash = "\x03", "\x1a", "\x04", "\x1c"

func TestInteractiveShellHasJobControl(t *testing.T) {
	spec := newSpec(t)
	spec.Env = append(spec.Env, "PS1=inside> ")
	spec.Command = []string{"bash", "--norc", "--noprofile", "-i"}
	x := gatewayOn(t, spec)
	if got := x.expect("inside> "); strings.Contains(got, "job control") {
		t.Errorf("the shell says %q", got)
	}
	x.send("echo $((6*7)); tty; test -t 0 && echo is-a-tty; echo through >/dev/tty\n")
	x.expect("42\r\n/dev/console\r\nis-a-tty\r\nthrough\r\n")
	x.send("bash -c 'trap \"echo resum''ed\" CONT; echo star''ted; while :; do sleep 0.01; done'\n")
	x.expect("started\r\n")
	x.send(ctrlZ)
	x.expect(`Stopped\s+bash`)
	x.send("jobs\n")
	x.expect(`Stopped\s+bash`)
	x.send("fg\n")
	x.expect("resumed\r\n")
	x.send(ctrlC)
	x.expect("inside> ")
	x.send("echo status $?\n")
	x.expect("status 130\r\n")
	x.send("exit 5\n")
	if code := x.code(); code != 5 {
		t.Errorf("code %d", code)
	}
}

// shellOn starts the host's shell on a terminal, with the gateway at hand as the command "postern".
func shellOn(t *testing.T, spec Spec) *testTerminal {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	x := onTerminal(t, "bash", "--norc", "--noprofile", "-i")
	x.expect(`\$ $`)
	x.send(fmt.Sprintf("postern() { %s gateway '%s'; }; PS1='ho''st> '; echo rea''dy\n", self, strings.ReplaceAll(encoded(t, spec), "'", `'\''`)))
	x.expect("ready\r\n")
	x.expect("host> ")
	return x
}

func TestHostShellStopsAndResumesTheCommand(t *testing.T) {
	spec := newSpec(t)
	spec.Command = []string{"bash", "-c", "trap \"echo resumed\" CONT; echo up; while :; do sleep 0.01; done"}
	x := shellOn(t, spec)
	x.send("postern\n")
	x.expect("up\r\n")
	for range 3 {
		x.send(ctrlZ)
		x.expect("Stopped")
		x.expect("host> ")
		x.send("fg\n")
		x.expect("resumed\r\n")
	}
	x.send(ctrlC)
	x.expect("host> ")
	x.send("echo status $?\n")
	x.expect("status 130")
	x.send("exit 0\n")
	x.code()
}

func TestCommandThatStopsItselfStopsTheGateway(t *testing.T) {
	spec := newSpec(t)
	spec.Command = []string{"sh", "-c", "echo up; kill -TSTP $$; echo resumed; kill -STOP $$; echo again"}
	x := shellOn(t, spec)
	x.send("postern\n")
	x.expect("up\r\n")
	x.expect("Stopped")
	x.expect("host> ")
	x.send("fg\n")
	x.expect("resumed\r\n")
	x.expect("Stopped")
	x.expect("host> ")
	x.send("fg\n")
	x.expect("again\r\n")
	x.expect("host> ")
	x.send("exit 0\n")
	x.code()
}

func TestTerminalComesBackAfterAnInteractiveShell(t *testing.T) {
	spec := newSpec(t)
	spec.Env = append(spec.Env, "PS1=inside> ")
	spec.Command = []string{"bash", "--norc", "--noprofile", "-i"}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	x := onTerminal(t, "bash", "-c", fmt.Sprintf("%s gateway '%s'; read line && echo read $line", self, encoded(t, spec)))
	x.expect("inside> ")
	x.send("exit\n")
	x.expect("exit\r\n")
	x.send("hello\n")
	x.expect("read hello\r\n")
}

func TestInterruptArrivesOnce(t *testing.T) {
	spec := newSpec(t)
	spec.Command = []string{"bash", "-c", "trap 'echo INT; n=$((n+1))' INT; trap 'echo total $n; exit 0' USR1; echo up; while :; do sleep 0.01; done"}
	x := gatewayOn(t, spec)
	x.expect("up\r\n")
	x.send(ctrlC)
	x.expect("INT\r\n")
	<-time.NewTimer(3 * sameSignal).C // a second copy would come by then
	x.send(ctrlC)
	x.expect("INT\r\n")
	<-time.NewTimer(3 * sameSignal).C
	if err := x.cmd.Process.Signal(syscall.SIGINT); err != nil { // sent with kill, to the gateway alone
		t.Fatal(err)
	}
	x.expect("INT\r\n")
	if err := x.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if got := x.expect(`total \d+`); !strings.HasSuffix(got, "total 3") || strings.Contains(got, "INT") {
		t.Errorf("%q", got)
	}
	if code := x.code(); code != 0 {
		t.Errorf("code %d", code)
	}
}

func TestSignalsEndTheCommandAsTheyWould(t *testing.T) {
	spec := newSpec(t)
	spec.Command = []string{"sh", "-c", "echo up; exec sleep 1000"}
	for keys, code := range map[string]int{ctrlC: 130, ctrlBackslash: 131} {
		x := gatewayOn(t, spec)
		x.expect("up\r\n")
		x.send(keys)
		if got := x.code(); got != code {
			t.Errorf("%q: code %d, want %d", keys, got, code)
		}
	}
	x := gatewayOn(t, spec)
	x.expect("up\r\n")
	if err := x.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := x.code(); got != 143 {
		t.Errorf("SIGTERM: code %d", got)
	}
}

func TestWindowSizeIsTheTerminals(t *testing.T) {
	spec := newSpec(t)
	spec.Command = []string{"bash", "-c", "trap 'stty size' WINCH; stty size; echo up; while :; do sleep 0.01; done"}
	x := gatewayOn(t, spec)
	x.expect("up\r\n")
	if err := unix.IoctlSetWinsize(x.fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 77}); err != nil {
		t.Fatal(err)
	}
	x.expect("33 77\r\n")
}

func TestEndOfInputReachesTheCommand(t *testing.T) {
	spec := newSpec(t)
	spec.Command = []string{"sh", "-c", "cat; echo end"}
	x := gatewayOn(t, spec)
	x.send("line\n" + ctrlD)
	x.expect("line\r\nline\r\nend\r\n")
	if code := x.code(); code != 0 {
		t.Errorf("code %d", code)
	}
}

func TestNothingCanBeTypedIntoTheTerminal(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sti := fmt.Sprint(unix.TIOCSTI)
	x := onTerminal(t, self, "probe", "tiocsti", sti)
	x.expect("ok\r\n") // without the filter, this machine lets it happen
	spec := newSpec(t)
	for _, request := range []string{sti, fmt.Sprint(unix.TIOCSTI | 1<<32), fmt.Sprint(unix.TIOCLINUX), fmt.Sprint(unix.TIOCSETD)} {
		spec.Command = []string{probePath, "probe", "tiocsti", request}
		gatewayOn(t, spec).expect("EPERM\r\n")
	}
}

func TestNewTerminalsCanBeMadeInside(t *testing.T) {
	spec := newSpec(t)
	if got := shell(t, spec, "script -qec 'test -t 0 && tty' /dev/null </dev/null"); !strings.Contains(got, "/dev/pts/0") {
		t.Errorf("%q", got)
	}
	if got := shell(t, spec, "ls /dev/pts"); got != "ptmx" {
		t.Errorf("terminals of the host: %q", got)
	}
}

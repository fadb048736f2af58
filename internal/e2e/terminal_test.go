package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal: what a person has.
type terminal struct {
	master, slave *os.File
}

func newTerminal(t *testing.T, uid, rows, cols int) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("/dev/pts/%d", n)
	if os.Getuid() == 0 {
		if err := os.Chown(name, uid, -1); err != nil {
			t.Fatal(err)
		}
	}
	slave, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	tty := &terminal{master, slave}
	tty.resize(t, rows, cols)
	return tty
}

func (tty *terminal) resize(t *testing.T, rows, cols int) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(tty.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(cols)}); err != nil {
		t.Fatal(err)
	}
}

func (tty *terminal) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty.slave, tty.slave, tty.slave
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty, cmd.SysProcAttr.Ctty = false, true, true, 0
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = tty.master.SetReadDeadline(time.Now().Add(30 * time.Second))
}

func TestATerminalBehavesAsUsual(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		tty := newTerminal(t, w.User.UID, 40, 100)
		cmd := w.Command(within(t, time.Minute), "run", "--quiet", "--config", w.Config, "--", "sh", "-c",
			`test -t 0 && test -t 1 && stty size; trap 'stty size; echo resized' WINCH; trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.05; done`)
		tty.start(t, cmd)
		text := readUntil(t, tty.master, "ready")
		if !strings.Contains(text, "40 100") {
			t.Errorf("no terminal, or not its size: %q", text)
		}
		tty.resize(t, 50, 120)
		if text := readUntil(t, tty.master, "resized"); !strings.Contains(text, "50 120") {
			t.Errorf("after a change of size: %q", text)
		}
		if _, err := io.WriteString(tty.master, "\x03"); err != nil {
			t.Fatal(err)
		}
		readUntil(t, tty.master, "interrupted")
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 5 {
			t.Errorf("exit %d, want the command's own 5", code)
		}
	})
}

func TestJobControlWorksInATerminal(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		tty := newTerminal(t, w.User.UID, 24, 80)
		cmd := w.Command(within(t, time.Minute), "run", "--quiet", "--config", w.Config, "--env", "PS1=prompt> ", "--", "bash", "--norc", "--noprofile", "-i")
		tty.start(t, cmd)
		readUntil(t, tty.master, "prompt>")
		for _, step := range []struct{ send, want string }{
			{"sleep 100\n", "sleep 100"}, {"\x1a", "Stopped"}, {"jobs\n", "sleep 100"}, {"kill %1; wait; echo gone-$?\n", "gone-"}, {"echo $((6*7))\n", "42"},
			{"exit 4\nexit 4\n", "exit"}, // twice: a shell that has not noticed the job's death warns of stopped jobs once
		} {
			if step.send == "\x1a" {
				waitFor(t, func() bool { return processNamed(foreground(tty), "sleep") })
			}
			if _, err := io.WriteString(tty.master, step.send); err != nil {
				t.Fatal(err)
			}
			readUntil(t, tty.master, step.want)
		}
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 4 {
			t.Errorf("exit %d, want 4", code)
		}
	})
}

// foreground is the foreground process group of the terminal, as the host numbers it. Only the master tells it to strangers.
func foreground(tty *terminal) int {
	pgid, err := unix.IoctlGetInt(int(tty.master.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return pgid
}

// processNamed reports whether a process is that program by now.
func processNamed(pid int, name string) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return err == nil && strings.TrimSpace(string(b)) == name
}

// TestNothingIsTypedIntoTheTerminal: a process in the sandbox must not put input into the terminal that outlives it.
func TestNothingIsTypedIntoTheTerminal(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		tty := newTerminal(t, w.User.UID, 24, 80)
		cmd := w.Command(within(t, time.Minute), "run", "--quiet", "--config", w.Config, "--mount", probeDir(t)+":/mnt/probe", "--", probePath(t), "syscall", "tiocsti", "--", "syscall", "tioclinux")
		tty.start(t, cmd)
		text := readUntil(t, tty.master, `"tioclinux"`)
		if strings.Contains(text, `"ok":true`) || strings.Contains(text, "no terminal") {
			t.Errorf("%s", text)
		}
		_ = cmd.Wait()
		if cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
			t.Errorf("postern was killed: %s", cmd.ProcessState)
		}
	})
}

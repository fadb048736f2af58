package native

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// supervisor is B in its second stage: the init of the pid namespace. It has no capability, stands behind the same filter and the same
// Landlock rules as the command, and does nothing but start it, reap, and carry signals and news.
type supervisor struct {
	mu   sync.Mutex
	pid  int                          // the command, 0 before it runs
	last map[syscall.Signal]time.Time // when the terminal sent it to all of us
}

// A signal that comes from A and from the terminal within this time is one signal.
const sameSignal = 100 * time.Millisecond

// supervise never returns without an error: when the command ends, it exits.
func supervise() error {
	if err := errors.Join(armed(), undumpable()); err != nil {
		return &Error{Op: "second stage", Err: err}
	}
	if err := unix.CloseRange(controlFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return &Error{Op: "close descriptors", Err: err}
	}
	p, _, err := readPlan(planFD)
	if err != nil {
		return &Error{Op: "plan", Err: err}
	}
	unix.Close(planFD)
	s := &supervisor{last: map[syscall.Signal]time.Time{}}
	s.watchSignals()
	if o, err := receiveOrder(); err != nil || !o.Exec {
		syscall.Exit(125)
	}
	pid, err := launch(p)
	if err != nil {
		sendReport(report{NoExec: notExecuted(p.Command[0], err)})
		syscall.Exit(125)
	}
	s.mu.Lock()
	s.pid = pid
	s.mu.Unlock()
	sendReport(report{Started: true})
	go s.obey()
	return s.reap(pid)
}

// watchSignals takes note of what the terminal sends to the process group. With a handler for it this process survives whatever the
// command sends to pid 1; a handler, unlike SIG_IGN, is not inherited by the command.
func (s *supervisor) watchSignals() {
	got := make(chan os.Signal, 64)
	for n := syscall.SIGHUP; n <= syscall.SIGSYS; n++ {
		if n != syscall.SIGCHLD && n != syscall.SIGURG && !signal.Ignored(n) { // the runtime uses SIGURG itself
			signal.Notify(got, n)
		}
	}
	go func() {
		for n := range got {
			if n, ok := n.(syscall.Signal); ok {
				s.mu.Lock()
				s.last[n] = time.Now()
				s.mu.Unlock()
			}
		}
	}()
}

// obey carries out A's orders. When the socket closes A is gone, and the sandbox goes with it.
func (s *supervisor) obey() {
	for {
		o, err := receiveOrder()
		if err != nil {
			syscall.Exit(125)
		}
		if o.Signal <= 0 {
			continue
		}
		n := syscall.Signal(o.Signal)
		if !o.Unless || !s.sharesGroup() {
			syscall.Kill(s.pid, n)
			continue
		}
		// What was sent to the whole group has reached the command too, but may still be on its way to this process.
		time.AfterFunc(sameSignal/2, func() {
			s.mu.Lock()
			last := s.last[n]
			s.mu.Unlock()
			if time.Since(last) > sameSignal {
				syscall.Kill(s.pid, n)
			}
		})
	}
}

// sharesGroup says whether the command still is in the process group that this process and A are in. Seen from inside that group has no
// number.
func (s *supervisor) sharesGroup() bool {
	group, err := unix.Getpgid(s.pid)
	return err == nil && group == 0
}

// reap waits for every process of the namespace and exits with the command.
func (s *supervisor) reap(command int) error {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WUNTRACED|unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return &Error{Op: "wait", Err: err}
		case pid != command:
		case ws.Stopped():
			sendReport(report{Stopped: true})
		case ws.Exited():
			sendReport(report{Exit: &ExitStatus{Code: ws.ExitStatus()}})
			syscall.Exit(0)
		case ws.Signaled():
			sendReport(report{Exit: &ExitStatus{Code: 128 + int(ws.Signal()), Signal: ws.Signal()}})
			syscall.Exit(0)
		}
	}
}

var errNotFound = errors.New("command not found")

// launch starts the command with exactly three descriptors.
func launch(p *plan) (int, error) {
	if err := os.Chdir(p.Workdir); err != nil {
		return 0, &Error{Op: "workdir", Path: p.Workdir, Err: err}
	}
	name, err := lookPath(p.Command[0], p.Env)
	if err != nil {
		return 0, err
	}
	env := p.Env
	if env == nil {
		env = []string{}
	}
	return syscall.ForkExec(name, p.Command, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}})
}

// lookPath is execvp's search, in the command's own PATH: the first match that can be executed, else the reason why the first one
// cannot.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	dirs := "/usr/local/bin:/usr/bin:/bin"
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			dirs = v
		}
	}
	first := errNotFound
	for _, dir := range filepath.SplitList(dirs) {
		if dir == "" {
			dir = "."
		}
		p := filepath.Join(dir, name)
		if !strings.Contains(p, "/") {
			p = "./" + p
		}
		err := executable(p)
		if err == nil {
			return p, nil
		}
		if errors.Is(err, fs.ErrPermission) && errors.Is(first, errNotFound) {
			first = err
		}
	}
	return "", first
}

func executable(p string) error {
	var st unix.Stat_t
	if err := unix.Stat(p, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EACCES
	}
	return unix.Access(p, unix.X_OK)
}

// notExecuted tells an exec failure as shells do.
func notExecuted(name string, err error) *ExecError {
	e := &ExecError{Name: name, Code: 126, Reason: err.Error()}
	if errors.Is(err, errNotFound) || errors.Is(err, fs.ErrNotExist) {
		e.Code = 127
	}
	if w := (*Error)(nil); errors.As(err, &w) && w.Op == "workdir" {
		e.Code, e.Name, e.Reason = 126, w.Path, "cannot change to the working directory: "+w.Err.Error()
	}
	return e
}

package native

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ExitStatus says how the command ended.
type ExitStatus struct {
	Code   int            // as a shell tells it: the command's own code, or 128 plus the signal
	Signal syscall.Signal // 0 when it was not killed
}

// Process is a sandbox: prepared after Start, running after Exec, gone after Wait.
type Process struct {
	child    *os.Process // B
	pidfd    *os.File
	control  *net.UnixConn
	sockets  []*os.File
	notes    []string
	group    *cgroup
	terminal foreground

	heard   chan struct{} // closed when everything that B said was read; nil when nobody listens
	done    chan struct{} // closed when B is dead, and with it everything in the pid namespace
	state   *os.ProcessState
	waitErr error

	mu      sync.Mutex
	started chan error // Exec waits here
	follows bool       // ForwardSignals was called: stop when the command stops
	exit    *ExitStatus
}

// Sockets are what the setup function opened, in its order. The caller owns them.
func (p *Process) Sockets() []*os.File { return p.sockets }

// PID is the host's number of the sandbox's first process.
func (p *Process) PID() int { return p.child.Pid }

// PIDFD stands for the sandbox's first process: readable when it, and all of the sandbox, is dead. It stays open until Wait returns.
func (p *Process) PIDFD() *os.File { return p.pidfd }

// Notes are the protections that are not held on this machine, and the relaxations that the Spec asked for.
func (p *Process) Notes() []string { return p.notes }

// Exec lets the command run. Call it once, when the sockets are served. An *ExecError says that there is no such command (127) or that
// it cannot be executed (126); the sandbox is over then.
func (p *Process) Exec() error {
	started := make(chan error, 1)
	p.mu.Lock()
	p.started = started
	p.mu.Unlock()
	if err := p.send(order{Exec: true}); err != nil {
		return err
	}
	select {
	case err := <-started:
		return err
	case <-p.done:
	}
	select {
	case err := <-started: // both: the report came first
		return err
	default:
		return &Error{Op: "exec", Err: errors.New("the sandbox ended before the command started")}
	}
}

// listen is the owner of what B reports until B is gone.
func (p *Process) listen() {
	defer close(p.heard)
	for {
		r, rights, err := p.receive()
		for _, fd := range rights {
			unix.Close(fd)
		}
		if err != nil {
			return
		}
		switch {
		case r.Started:
			p.answer(nil)
		case r.NoExec != nil:
			p.answer(r.NoExec)
		case r.Failed != nil:
			p.answer(r.Failed.err())
		case r.Stopped:
			p.stop()
		case r.Exit != nil:
			p.mu.Lock()
			p.exit = r.Exit
			p.mu.Unlock()
		}
	}
}

func (p *Process) answer(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started != nil {
		p.started <- err
		p.started = nil
	}
}

// Wait returns when nothing of the sandbox is left: not the command, not what it left in the background, not its cgroup.
// A sandbox that was killed from outside has the status of a command that was.
func (p *Process) Wait() (ExitStatus, error) {
	<-p.done
	p.abandon()
	if p.waitErr != nil {
		return ExitStatus{}, fmt.Errorf("sandbox: wait: %w", p.waitErr)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit != nil {
		return *p.exit, nil
	}
	if ws, ok := p.state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return ExitStatus{Code: 128 + int(ws.Signal()), Signal: ws.Signal()}, nil
	}
	return ExitStatus{}, &Error{Op: "wait", Err: fmt.Errorf("the sandbox's first process ended by itself: %v", p.state)}
}

// Signal sends a signal to the command alone, from outside its process group.
func (p *Process) Signal(s os.Signal) error {
	n, ok := s.(syscall.Signal)
	if !ok {
		return fmt.Errorf("sandbox: signal %v is none of this system", s)
	}
	return p.send(order{Signal: int(n)})
}

// Kill ends the sandbox and everything in it at once.
func (p *Process) Kill() error {
	if err := p.child.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) { // by pidfd: never another process
		return fmt.Errorf("sandbox: kill: %w", err)
	}
	return nil
}

// abandon ends what there is and frees what A holds of it.
func (p *Process) abandon() {
	if p.child != nil {
		p.child.Kill()
		<-p.done
	}
	if p.heard != nil {
		<-p.heard
	}
	if p.control != nil {
		p.control.Close()
	}
	if p.pidfd != nil {
		p.pidfd.Close()
	}
	p.terminal.restore()
	p.group.remove()
}

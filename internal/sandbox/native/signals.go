package native

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that somebody may send to postern and mean the command.
func forwarded() []os.Signal {
	return []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2}
}

// stopping are the signals with which a terminal stops a process group. A takes no part in them: when the command has stopped, B says
// so and A stops itself, which is what the shell that started it waits for.
func stopping() []os.Signal {
	return []os.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}
}

// ForwardSignals passes the signals that this process gets on to the command until ctx is over. A signal that the terminal sent to the
// whole process group has reached the command already and is not sent twice. What was ignored when this process started stays ignored,
// as under nohup.
func (p *Process) ForwardSignals(ctx context.Context) {
	p.mu.Lock()
	p.follows = true
	p.mu.Unlock()
	got := make(chan os.Signal, 16)
	for _, s := range append(forwarded(), stopping()...) {
		if !signal.Ignored(s) {
			signal.Notify(got, s)
		}
	}
	go func() {
		defer signal.Stop(got)
		for {
			select {
			case s := <-got:
				if n, ok := s.(syscall.Signal); ok && n != syscall.SIGTSTP && n != syscall.SIGTTIN && n != syscall.SIGTTOU {
					p.send(order{Signal: int(n), Unless: true}) // an error means that the command is gone
				}
			case <-ctx.Done():
				return
			case <-p.done:
				return
			}
		}
	}()
}

// stop stops this process because the command was stopped, so that the shell's job control sees it, and sets the command going again
// when the shell does so with this one. It is SIGSTOP whatever stopped the command: once Go has caught SIGTSTP it never lets the
// default action happen again.
func (p *Process) stop() {
	p.mu.Lock()
	follows := p.follows
	p.mu.Unlock()
	if !follows {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP) // to this thread: the call returns when the process goes on
	p.send(order{Signal: int(syscall.SIGCONT), Unless: true})
}

// foreground remembers which process group had the terminal. An interactive shell in the sandbox takes it and, since it cannot see
// process groups outside its pid namespace, cannot give it back.
type foreground struct {
	fd    int // -1 when there is no terminal, or it was somebody else's
	group int
}

func foregroundOf(tty int) foreground {
	if tty < 0 {
		return foreground{fd: -1}
	}
	group, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	if err != nil || group != unix.Getpgrp() {
		return foreground{fd: -1}
	}
	fd, err := unix.FcntlInt(uintptr(tty), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return foreground{fd: -1}
	}
	return foreground{fd, group}
}

// restore gives the terminal back, once.
func (f *foreground) restore() {
	if f.fd < 0 {
		return
	}
	defer func() { f.fd = -1 }()
	defer unix.Close(f.fd)
	if group, err := unix.IoctlGetInt(f.fd, unix.TIOCGPGRP); err == nil && group == f.group {
		return
	}
	// A process in the background that changes the terminal is stopped unless it blocks SIGTTOU.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var block, old unix.Sigset_t
	block.Val[0] = 1 << (uint(unix.SIGTTOU) - 1)
	if unix.PthreadSigmask(unix.SIG_BLOCK, &block, &old) != nil {
		return
	}
	unix.IoctlSetPointerInt(f.fd, unix.TIOCSPGRP, f.group)
	unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
}

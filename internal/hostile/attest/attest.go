// Package attest holds the evidence of who is behind a sandbox's sockets, and asks the kernel for it again and again.
//
// Evidence is two things that nothing inside the sandbox can choose: the cookie of its network namespace, which every socket made
// there carries and which the kernel never gives twice, and a pidfd of the process whose end is the sandbox's end, which names
// that process and no later one with its number. A process id, a socket's peer address, or anything the sandbox says is not evidence.
package attest

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
)

// Config is what binds a sandbox.
type Config struct {
	// Cookie is the sandbox's network namespace, as SO_NETNS_COOKIE gives it. Zero is refused.
	Cookie uint64
	// Process is a pidfd of the sandbox's first process. New takes it over, also on an error. Nil is refused.
	Process *os.File
}

// Evidence says whether the sandbox that was bound is still there. The zero Evidence says no.
type Evidence struct {
	cookie  uint64
	process syscall.RawConn
	file    *os.File
}

// New binds evidence. It fails when the process has ended, or Process is no pidfd.
func New(c Config) (*Evidence, error) {
	if c.Process == nil {
		return nil, errors.New("attest: no process")
	}
	e, err := bind(c)
	if err != nil {
		c.Process.Close()
		return nil, fmt.Errorf("attest: %w", err)
	}
	return e, nil
}

func bind(c Config) (*Evidence, error) {
	if c.Cookie == 0 {
		return nil, errors.New("no network namespace")
	}
	raw, err := c.Process.SyscallConn()
	if err != nil {
		return nil, err
	}
	var asked error
	if err := raw.Control(func(fd uintptr) { asked = unix.PidfdSendSignal(int(fd), 0, nil, 0) }); err != nil {
		return nil, err
	}
	if asked != nil && !errors.Is(asked, unix.EPERM) { // a process that may not be signalled is there all the same
		return nil, fmt.Errorf("ask for the process: %w", asked)
	}
	e := &Evidence{cookie: c.Cookie, process: raw, file: c.Process}
	if err := e.Check(); err != nil {
		return nil, err
	}
	return e, nil
}

// Check asks whether the sandbox's first process still runs. It costs one system call and never blocks; it may be called from
// several goroutines and during Close. The error is a *gate.Failure with gate.ReasonIdentity.
func (e *Evidence) Check() error {
	if e == nil || e.process == nil {
		return failure(errors.New("nothing was bound"))
	}
	var events int16
	var asked error
	err := e.process.Control(func(fd uintptr) {
		poll := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			if _, asked = unix.Poll(poll[:], 0); !errors.Is(asked, unix.EINTR) {
				break
			}
		}
		events = poll[0].Revents
	})
	switch {
	case err != nil:
		return failure(err)
	case asked != nil:
		return failure(asked)
	case events != 0: // a pidfd becomes readable when the process ends
		return failure(errors.New("the process has ended"))
	}
	return nil
}

// Match is Check, and asks whether conn was made in the sandbox's network namespace. The error is a *gate.Failure with gate.ReasonIdentity.
func (e *Evidence) Match(conn syscall.Conn) error {
	if err := e.Check(); err != nil {
		return err
	}
	got, err := Cookie(conn)
	if err != nil {
		return failure(err)
	}
	if got != e.cookie {
		return failure(errors.New("a socket of another network namespace"))
	}
	return nil
}

// Close gives the pidfd up; every Check fails from then on.
func (e *Evidence) Close() error { return e.file.Close() }

// Cookie is the network namespace a socket was made in (SO_NETNS_COOKIE, Linux 5.14); never zero without an error.
func Cookie(conn syscall.Conn) (uint64, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cookie uint64
	var asked error
	if err := raw.Control(func(fd uintptr) {
		cookie, asked = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	}); err != nil {
		return 0, err
	}
	if asked == nil && cookie == 0 {
		asked = unix.ENODATA
	}
	return cookie, asked
}

func failure(err error) *gate.Failure {
	return &gate.Failure{Reason: gate.ReasonIdentity, Detail: "the sandbox behind this listener is not the one that was bound", Err: err}
}

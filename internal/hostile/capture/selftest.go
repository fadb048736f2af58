package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// selfTestTimeout bounds each step of the self-test, all of which happen within this kernel.
const selfTestTimeout = time.Second

// selfTest connects to addresses that nobody has and sees the connection arrive with its destination intact, so that a kernel
// that accepts the ruleset but does not do what it says is found out before the sandbox starts.
func (s *setup) selfTest() error {
	if !s.rules {
		return nil
	}
	for i, k := range s.kinds {
		var to netip.AddrPort
		switch k {
		case kindTCP4:
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, 9}), 9)
		case kindTCP6:
			to = netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 14: 9, 15: 9}), 9)
		default:
			continue
		}
		if err := testCapture(s.fds[i], to); err != nil {
			return fmt.Errorf("self-test of %s: %w", k, err)
		}
	}
	return nil
}

func testCapture(listener int, to netip.AddrPort) error {
	fd, err := unix.Socket(int(family(to.Addr())), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(selfTestTimeout.Nanoseconds())
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv), abortOnClose(fd)); err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, int(selfTestTimeout.Milliseconds())); n != 1 || err != nil {
		return fmt.Errorf("the connection did not arrive (%v)", err)
	}
	conn, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	defer unix.Close(conn)
	if err := abortOnClose(conn); err != nil {
		return err
	}
	if got, err := localAddr(conn); err != nil || got != to {
		return fmt.Errorf("the connection arrived without its destination (%v)", err)
	}
	return nil
}

// abortOnClose makes close send a reset, so that no TIME_WAIT stays behind.
func abortOnClose(fd int) error {
	return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

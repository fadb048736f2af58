package capture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
)

// Conn is a connection that the sandbox opened.
type Conn struct {
	*net.TCPConn
	// Original is where the sandbox meant to connect: never loopback, IPv4 addresses unmapped.
	Original netip.AddrPort
}

// Listener accepts the captured connections of one sandbox.
type Listener struct {
	l       *net.TCPListener
	at      netip.AddrPort
	cookie  uint64
	refused func(gate.Reason, netip.AddrPort)
	done    chan struct{}
}

// retryAccept is how long Accept waits when the process is out of descriptors or memory. The connection stays in the queue.
const retryAccept = 20 * time.Millisecond

func newListener(c Config, f *os.File, cookie uint64) (*Listener, error) {
	l, err := listenerOf(f)
	if err != nil {
		return nil, err
	}
	refused := c.Refused
	if refused == nil {
		refused = func(gate.Reason, netip.AddrPort) {}
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	return &Listener{l: l, at: netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), cookie: cookie, refused: refused, done: make(chan struct{})}, nil
}

func listenerOf(f *os.File) (*net.TCPListener, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		l.Close()
		return nil, errors.New("not a TCP listener")
	}
	return tcp, nil
}

// Accept returns the next connection, with TCP keep-alive on. One that fails a check is reset, reported to Config.Refused and
// never returned: the socket must live in the sandbox's network namespace (gate.ReasonIdentity), the kernel must say where it was
// going (gate.ReasonOriginUnknown), and it must not have been opened to the listener itself or to a loopback address
// (gate.ReasonDirectToListener), where nothing was captured. Shortage of descriptors is waited out.
// After Close the error is net.ErrClosed.
func (l *Listener) Accept() (*Conn, error) {
	for {
		c, err := l.l.AcceptTCP()
		if err != nil {
			if !shortage(err) {
				return nil, fmt.Errorf("capture: accept: %w", err)
			}
			select {
			case <-time.After(retryAccept):
				continue
			case <-l.done:
				return nil, fmt.Errorf("capture: accept: %w", net.ErrClosed)
			}
		}
		original, reason := l.inspect(c)
		if reason == gate.ReasonNone {
			return &Conn{TCPConn: c, Original: original}, nil
		}
		abort(c)
		l.refused(reason, original)
	}
}

// inspect asks the kernel where a connection was going, and says why it is refused, or ReasonNone.
func (l *Listener) inspect(c *net.TCPConn) (netip.AddrPort, gate.Reason) {
	if err := checkCookie(c, l.cookie); err != nil {
		return netip.AddrPort{}, gate.ReasonIdentity
	}
	// For a connection that TPROXY or AnyIP brought here, the local address is the one the client dialled; Go read it with getsockname.
	local, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, gate.ReasonOriginUnknown
	}
	a := local.AddrPort()
	original := netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
	switch {
	case !original.Addr().IsValid() || original.Addr().IsUnspecified() || original.Port() == 0:
		return netip.AddrPort{}, gate.ReasonOriginUnknown
	case original == l.at || original.Addr().IsLoopback():
		return original, gate.ReasonDirectToListener
	}
	return original, gate.ReasonNone
}

// Addr is the address the listener is bound to inside the sandbox.
func (l *Listener) Addr() net.Addr { return l.l.Addr() }

// Close stops accepting; a waiting Accept returns. It must be called once.
func (l *Listener) Close() error {
	close(l.done)
	return l.l.Close()
}

// streamListener checks the namespace of DNS connections, which may well be addressed to loopback.
type streamListener struct {
	*net.TCPListener
	cookie uint64
}

func (l *streamListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if checkCookie(c, l.cookie) == nil {
			return c, nil
		}
		abort(c)
	}
}

func checkCookie(c syscall.Conn, want uint64) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var got uint64
	var asked error
	if err := raw.Control(func(fd uintptr) { got, asked = cookieOf(int(fd)) }); err != nil {
		return err
	}
	if asked == nil && (got != want || want == 0) {
		asked = errors.New("a socket of another network namespace")
	}
	return asked
}

// abort closes with a reset: the client fails at once and nothing lingers.
func abort(c *net.TCPConn) {
	_ = c.SetLinger(0) // on an error close sends FIN in place of a reset, which refuses as well
	c.Close()
}

// shortage reports whether accept failed for want of something that others will give back.
func shortage(err error) bool {
	for _, e := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"postern/internal/sandbox/inspect"
)

// sinks are servers of the host that a sandbox must not reach: TCP and UDP on every address and on loopback alone, a Unix socket in
// the file system and one without a place in it. They note who said which nonce, in the order of arrival.
//
// Nobody can wait for what does not come. So when the sandbox is over the host knocks at the same targets in the same way: the
// control shows that the sink hears, and since a socket's queue keeps its order, that nothing is left in it from before.
type sinks struct {
	targets []inspect.Target
	attempt string // what the sandbox says
	control string // what the host says

	closers []io.Closer
	serving sync.WaitGroup

	mu    sync.Mutex
	heard map[string]bool // messages
	news  chan struct{}   // holds a token when heard has grown
}

const (
	sinkRead      = 300 * time.Millisecond // for the message of one connection
	sinkWait      = time.Second            // for all controls
	hostAddresses = 8                      // of the host's own addresses that are knocked at
)

func openSinks(dir string) (_ *sinks, err error) {
	s := &sinks{attempt: nonce(), control: nonce(), heard: map[string]bool{}, news: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	own, err := ownAddresses()
	if err != nil {
		return nil, err
	}
	loopback := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	if slices.Contains(own, netip.IPv6Loopback()) {
		loopback = append(loopback, netip.IPv6Loopback())
	}
	if err := s.listen("", own); err != nil {
		return nil, err
	}
	for _, addr := range loopback {
		if err := s.listen(addr.String(), []netip.Addr{addr}); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{filepath.Join(dir, "socket"), "@postern-doctor-" + nonce()} {
		l, err := net.Listen("unix", name)
		if err != nil {
			return nil, fmt.Errorf("control socket: %w", err)
		}
		s.accept(l)
		s.targets = append(s.targets, inspect.Target{Network: "unix", Address: name})
	}
	return s, nil
}

// listen opens a TCP and a UDP server at a host ("" is every address) and makes targets of them at the addresses given.
func (s *sinks) listen(host string, at []netip.Addr) error {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return fmt.Errorf("control server: %w", err)
	}
	s.accept(l)
	p, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	if err != nil {
		return fmt.Errorf("control server: %w", err)
	}
	s.receive(p)
	for network, addr := range map[string]net.Addr{"tcp": l.Addr(), "udp": p.LocalAddr()} {
		bound, err := netip.ParseAddrPort(addr.String())
		if err != nil {
			return err
		}
		for _, a := range at {
			s.targets = append(s.targets, inspect.Target{Network: network, Address: netip.AddrPortFrom(a, bound.Port()).String()})
		}
	}
	return nil
}

// ownAddresses are the host's: loopback first, then those of its interfaces and bridges.
func ownAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var loopback, others []netip.Addr
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || prefix.Addr().IsLinkLocalUnicast() { // link-local addresses mean nothing without their interface
			continue
		}
		if prefix.Addr().IsLoopback() {
			loopback = append(loopback, prefix.Addr())
		} else {
			others = append(others, prefix.Addr())
		}
	}
	return append(loopback, others[:min(len(others), hostAddresses)]...), nil
}

// accept reads one message of each connection, one connection after the other.
func (s *sinks) accept(l net.Listener) {
	s.closers = append(s.closers, l)
	s.serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, len(inspect.Message(s.attempt, 0)))
			if c.SetReadDeadline(time.Now().Add(sinkRead)) == nil {
				n, _ := io.ReadFull(c, b) // strangers may say less
				s.note(string(b[:n]))
			}
			c.Close()
		}
	})
}

func (s *sinks) receive(p net.PacketConn) {
	s.closers = append(s.closers, p)
	s.serving.Go(func() {
		b := make([]byte, 256)
		for {
			n, _, err := p.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				s.note(string(b[:n]))
			}
		}
	})
}

func (s *sinks) note(message string) {
	if !strings.HasPrefix(message, s.attempt) && !strings.HasPrefix(message, s.control) {
		return
	}
	s.mu.Lock()
	s.heard[message] = true
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
}

func (s *sinks) has(nonce string, i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard[inspect.Message(nonce, i)]
}

// settle knocks from the host and waits until every sink has heard that, or a second.
func (s *sinks) settle(ctx context.Context) {
	inspect.Knock(ctx, s.targets, s.control)
	late := time.NewTimer(sinkWait)
	defer late.Stop()
	for !s.confirmed() {
		select {
		case <-s.news:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *sinks) confirmed() bool {
	for i := range s.targets {
		if !s.has(s.control, i) {
			return false
		}
	}
	return true
}

// verdict is about all targets of one network, after settle. made says whether the inspector knocked at all.
func (s *sinks) verdict(network string, made bool) outcome {
	var deaf, heard, reached []string
	for i, t := range s.targets {
		if t.Network != network {
			continue
		}
		if s.has(s.attempt, i) {
			reached = append(reached, t.Address)
		}
		if s.has(s.control, i) {
			heard = append(heard, t.Address)
		} else {
			deaf = append(deaf, t.Address)
		}
	}
	switch {
	case len(reached) > 0:
		return notHeld("reached %s", strings.Join(reached, ", "))
	case !made:
		return notHeld("the inspector did not try")
	case len(heard) == 0:
		return unavailable("the host itself does not reach its servers")
	case len(deaf) > 0:
		return held("%s: heard the host, not the sandbox; the host itself does not reach %s", strings.Join(heard, ", "), strings.Join(deaf, ", "))
	}
	return held("%s: heard the host, not the sandbox", strings.Join(heard, ", "))
}

func (s *sinks) close() {
	for _, c := range s.closers {
		c.Close()
	}
	s.serving.Wait()
}

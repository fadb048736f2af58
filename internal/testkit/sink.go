package testkit

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Sink listens on every address of the host, TCP and UDP, IPv4 and IPv6, and keeps what arrives. It is what a sandbox must not reach.
type Sink struct {
	TCP4, TCP6, UDP4, UDP6 uint16 // ports

	mu       sync.Mutex
	arrivals []Arrival
	changed  chan struct{}
}

// Arrival is a connection or a datagram.
type Arrival struct {
	Network string // tcp4, tcp6, udp4, udp6
	From    string
	Data    string // the first KiB
	At      time.Time
}

// NewSink starts listening; it ends with the test.
func NewSink(t T) *Sink {
	t.Helper()
	s := &Sink{changed: make(chan struct{})}
	s.TCP4 = s.listen(t, "tcp4", "0.0.0.0:0")
	s.TCP6 = s.listen(t, "tcp6", "[::]:0")
	s.UDP4 = s.receive(t, "udp4", "0.0.0.0:0")
	s.UDP6 = s.receive(t, "udp6", "[::]:0")
	return s
}

func (s *Sink) listen(t T, network, addr string) uint16 {
	t.Helper()
	l, err := net.Listen(network, addr)
	l = must(t, l, err)
	var open sync.WaitGroup
	open.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				defer c.Close()
				at := time.Now()
				_ = c.SetDeadline(at.Add(2 * time.Second))
				b := make([]byte, 1024)
				n, _ := c.Read(b)
				s.add(Arrival{network, c.RemoteAddr().String(), string(b[:n]), at})
				_, _ = c.Write([]byte("sink\n"))
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); open.Wait() })
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

func (s *Sink) receive(t T, network, addr string) uint16 {
	t.Helper()
	c, err := net.ListenPacket(network, addr)
	c = must(t, c, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			s.add(Arrival{network, from.String(), string(b[:min(n, 1024)]), time.Now()})
			_, _ = c.WriteTo([]byte("sink\n"), from)
		}
	}()
	t.Cleanup(func() { _ = c.Close(); <-done })
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

func (s *Sink) add(a Arrival) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrivals = append(s.arrivals, a)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Arrivals is everything that came.
func (s *Sink) Arrivals() []Arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Arrival(nil), s.arrivals...)
}

// Holding counts what came with a nonce in it. A TCP connection counts when it is closed or has sent its first bytes.
func (s *Sink) Holding(nonce string) int {
	n := 0
	for _, a := range s.Arrivals() {
		if strings.Contains(a.Data, nonce) {
			n++
		}
	}
	return n
}

// Reach proves that the sink is live: it sends the nonce to every port over loopback, as the host may, and waits for all to arrive.
func (s *Sink) Reach(t T, nonce string) {
	t.Helper()
	want := s.Holding(nonce) + 4
	for _, to := range []struct {
		network string
		host    string
		port    uint16
	}{{"tcp4", "127.0.0.1", s.TCP4}, {"tcp6", "::1", s.TCP6}, {"udp4", "127.0.0.1", s.UDP4}, {"udp6", "::1", s.UDP6}} {
		c, err := net.DialTimeout(to.network, net.JoinHostPort(to.host, strconv.Itoa(int(to.port))), 2*time.Second)
		c = must(t, c, err)
		_, err = c.Write([]byte(nonce))
		must(t, c, err)
		defer c.Close()
	}
	deadline := time.After(5 * time.Second)
	for s.Holding(nonce) < want {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("testkit: %d of 4 controls reached the sink: it is not live", s.Holding(nonce)-want+4)
		}
	}
}

// Targets are host:port pairs under which a program of this machine could reach the sink over TCP: loopback, the machine's own
// addresses on every interface, and the names that resolve to them.
func (s *Sink) Targets(t T) []string {
	t.Helper()
	var out []string
	for _, a := range HostAddrs(t) {
		port := s.TCP4
		if a.Is6() {
			port = s.TCP6
		}
		out = append(out, netip.AddrPortFrom(a, port).String())
	}
	return append(out, fmt.Sprintf("0.0.0.0:%d", s.TCP4), fmt.Sprintf("[::]:%d", s.TCP6))
}

// HostAddrs are the machine's own addresses.
func HostAddrs(t T) []netip.Addr {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	addrs = must(t, addrs, err)
	var out []netip.Addr
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil {
			out = append(out, p.Addr())
		}
	}
	return out
}

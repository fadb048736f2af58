package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"postern/internal/core/gate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a server on loopback sockets.
type running struct {
	udp, tcp string
	stop     func() error
}

func start(t testing.TB, s *Server) running {
	t.Helper()
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, []net.PacketConn{p}, []net.Listener{l}) }()
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	return running{p.LocalAddr().String(), l.Addr().String(), stop}
}

func dial(t testing.TB, network, to string) net.Conn {
	t.Helper()
	c, err := net.Dial(network, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

func framed(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
}

// readFramed reads one reply and returns its code.
func readFramed(c io.Reader) (dnsmessage.RCode, error) {
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return 0, err
	}
	b := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		return 0, err
	}
	var m dnsmessage.Message
	err := m.Unpack(b)
	return m.RCode, err
}

func TestServesDatagramsAndStreams(t *testing.T) {
	s := newServer(t, Config{})
	at := start(t, s)
	v4, _, _ := s.names.Assign(host(t, "a.test"))

	u := dial(t, "udp", at.udp)
	for range 3 {
		if _, err := u.Write(question(t, "a.test.", dnsmessage.TypeA, true)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1500)
		n, err := u.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		var m dnsmessage.Message
		if err := m.Unpack(b[:n]); err != nil || len(m.Answers) != 1 || body(m.Answers[0]) != v4.String() {
			t.Fatalf("%v %v", m, err)
		}
	}

	c := dial(t, "tcp", at.tcp)
	q := framed(question(t, "a.test.", dnsmessage.TypeA, false))
	if _, err := c.Write(append(q, q...)); err != nil { // two in one segment
		t.Fatal(err)
	}
	for range 2 {
		if code, err := readFramed(c); code != 0 || err != nil {
			t.Fatal(code, err)
		}
	}
	for i := range q { // and one byte by byte
		if _, err := c.Write(q[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if code, err := readFramed(c); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	if err := at.stop(); err != nil {
		t.Errorf("Serve returned %v after its context ended", err)
	}
}

func TestGoResolverIsContent(t *testing.T) {
	s := newServer(t, Config{})
	at := start(t, s)
	for network, to := range map[string]string{"udp": at.udp, "tcp": at.tcp} {
		r := &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, to)
		}}
		addrs, err := r.LookupNetIP(t.Context(), "ip", "api.example.com.")
		if err != nil || len(addrs) != 2 {
			t.Fatalf("%s: %v %v", network, addrs, err)
		}
		for _, a := range addrs {
			names, err := r.LookupAddr(t.Context(), a.String())
			if err != nil || len(names) != 1 || names[0] != "api.example.com." {
				t.Errorf("%s: %v is %v, %v", network, a, names, err)
			}
		}
		var dnsErr *net.DNSError
		if _, err := r.LookupTXT(t.Context(), "api.example.com."); !errors.As(err, &dnsErr) || !dnsErr.IsNotFound {
			t.Errorf("%s: TXT: %v", network, err)
		}
		if _, err := r.LookupNetIP(t.Context(), "ip", "-bad-.example.com."); !errors.As(err, &dnsErr) || !dnsErr.IsNotFound {
			t.Errorf("%s: a malformed name: %v", network, err)
		}
	}
}

func TestStreamEndsAfterItsQueries(t *testing.T) {
	at := start(t, newServer(t, Config{}))
	c := dial(t, "tcp", at.tcp)
	q := framed(question(t, "a.test.", dnsmessage.TypeA, false))
	for i := range maxPerStream {
		if _, err := c.Write(q); err != nil {
			t.Fatal(err)
		}
		if _, err := readFramed(c); err != nil {
			t.Fatalf("query %d: %v", i, err)
		}
	}
	if _, err := readFramed(c); !errors.Is(err, io.EOF) {
		t.Errorf("after %d queries: %v, want the end", maxPerStream, err)
	}
}

func TestStreamWithALyingLengthIsClosed(t *testing.T) {
	at := start(t, newServer(t, Config{}))
	for name, b := range map[string][]byte{
		"more than 4 KiB": {0x10, 0x01},
		"zero":            {0, 0},
		"no header":       {0, 3, 1, 2, 3},
	} {
		c := dial(t, "tcp", at.tcp)
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := readFramed(c); !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v, want the end", name, err)
		}
	}
}

func TestOneStreamTooManyIsClosed(t *testing.T) {
	at := start(t, newServer(t, Config{}))
	q := framed(question(t, "a.test.", dnsmessage.TypeA, false))
	var held []net.Conn
	for range maxStreams {
		c := dial(t, "tcp", at.tcp)
		if _, err := c.Write(q); err != nil {
			t.Fatal(err)
		}
		if _, err := readFramed(c); err != nil { // so it has its slot
			t.Fatal(err)
		}
		held = append(held, c)
	}
	if _, err := readFramed(dial(t, "tcp", at.tcp)); err == nil {
		t.Error("one more was served")
	}
	held[0].Close()
	for { // its slot comes free when the server sees the end
		c := dial(t, "tcp", at.tcp)
		_, _ = c.Write(q) // fails when the server has closed already
		if _, err := readFramed(c); err == nil {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal("the slot never came free")
		}
	}
}

// pipeListener hands out one end of a pipe, so that time can be synctest's.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func TestSlowStreamIsClosedAfterTenSeconds(t *testing.T) {
	for name, sent := range map[string][]byte{"silent": nil, "half a length": {0}, "half a message": {0, 40, 1, 2, 3}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
				ctx, cancel := context.WithCancel(t.Context())
				served := make(chan error, 1)
				go func() { served <- newServer(t, Config{}).Serve(ctx, nil, []net.Listener{l}) }()
				ours, theirs := net.Pipe()
				l.conns <- theirs
				begin := time.Now()
				if _, err := ours.Write(sent); err != nil {
					t.Fatal(err)
				}
				if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
					t.Errorf("%v, want the end", err)
				}
				if waited := time.Since(begin); waited != streamIdle {
					t.Errorf("closed after %v, want %v", waited, streamIdle)
				}
				cancel()
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestServeEndsWithOpenStreams(t *testing.T) {
	at := start(t, newServer(t, Config{}))
	c := dial(t, "tcp", at.tcp)
	q := framed(question(t, "a.test.", dnsmessage.TypeA, false))
	if _, err := c.Write(q); err != nil {
		t.Fatal(err)
	}
	if _, err := readFramed(c); err != nil {
		t.Fatal(err)
	}
	if err := at.stop(); err != nil {
		t.Error(err)
	}
	if _, err := readFramed(c); err == nil {
		t.Error("served after the end")
	}
}

func TestServeReportsASocketThatWasClosed(t *testing.T) {
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if err := newServer(t, Config{}).Serve(t.Context(), []net.PacketConn{p}, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve returned %v", err)
	}
}

// packets is a socket that delivers the same query without end.
type packets struct {
	net.PacketConn
	query   []byte
	closed  chan struct{}
	reads   atomic.Int64
	replies atomic.Int64
}

func (p *packets) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case <-p.closed:
		return 0, nil, net.ErrClosed
	default:
		p.reads.Add(1)
		return copy(b, p.query), &net.UDPAddr{}, nil
	}
}

func (p *packets) WriteTo(b []byte, _ net.Addr) (int, error) {
	p.replies.Add(1)
	return len(b), nil
}

func (p *packets) Close() error { close(p.closed); return nil }

// A flood beyond the rate must cost next to nothing: each worker refuses at most 500 queries a second.
func TestFloodBeyondTheRateIsReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, Config{Allow: func(time.Time) gate.Reason { return gate.ReasonLimitDNS }})
		p := &packets{query: question(t, "a.test.", dnsmessage.TypeA, false), closed: make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Serve(ctx, []net.PacketConn{p}, nil); err != nil {
			t.Fatal(err)
		}
		most := int64(packetWorkers) * int64(time.Second/restAfterLimit)
		if n := p.replies.Load(); n < most/2 || n > most+packetWorkers {
			t.Errorf("%d refusals in a second, want about %d", n, most)
		}
	})
}

func TestOversizedDatagramIsIgnored(t *testing.T) {
	at := start(t, newServer(t, Config{}))
	u := dial(t, "udp", at.udp)
	big := append(question(t, "big.test.", dnsmessage.TypeA, false), make([]byte, maxMessage)...)
	if _, err := u.Write(big); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Write(question(t, "small.test.", dnsmessage.TypeAAAA, false)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1500)
	n, err := u.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(b[:n]); err != nil || m.Questions[0].Name.String() != "small.test." {
		t.Errorf("the first reply is to %v, %v", m.Questions, err)
	}
}

func BenchmarkServeUDP(b *testing.B) {
	at := start(b, newServer(b, Config{}))
	msg := question(b, "api.example.com.", dnsmessage.TypeA, true)
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("udp", at.udp)
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		reply := make([]byte, 512)
		for pb.Next() {
			if _, err := c.Write(msg); err != nil {
				b.Error(err)
				return
			}
			if _, err := c.Read(reply); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "queries/s")
}

package proxy

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/core/record"
)

// captured is one request as it arrived at the sink.
type captured struct {
	head string // HTTP/1.1: every byte up to the empty line; HTTP/2: nothing
	*http.Request
}

func (c captured) String() string { return c.Method + " " + c.Host + c.RequestURI }

// sink is the world outside: it answers for every name, over TLS or not, and keeps what arrives.
type sink struct {
	listener net.Listener
	ca       *authority
	config   *tls.Config
	h2       *http.Server
	handed   *feed
	serving  sync.WaitGroup

	mu    sync.Mutex
	seen  []captured
	conns map[net.Conn]struct{}
	// What answers an HTTP/1.1 request: nil reads the body and answers 200 "ok". It may close the connection or write anything.
	raw func(c net.Conn, br *bufio.Reader, r *http.Request)
	// What answers an HTTP/2 request: nil is like that.
	handler http.HandlerFunc
}

func newSink(t testing.TB) *sink {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &sink{listener: l, ca: newAuthority(t), handed: newFeed(), conns: map[net.Conn]struct{}{}}
	leaves := &minter{ca: s.ca}
	s.config = &tls.Config{NextProtos: []string{"h2", "http/1.1"}, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		name, err := gate.ParseHost(h.ServerName)
		if err != nil {
			return nil, err
		}
		return leaves.Leaf(name)
	}}
	s.h2 = &http.Server{Handler: http.HandlerFunc(s.serveH2), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000}}
	s.serving.Go(func() { _ = s.h2.Serve(s.handed) })
	s.serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[c] = struct{}{}
			s.mu.Unlock()
			s.serving.Go(func() { s.serve(c) })
		}
	})
	return s
}

func (s *sink) close() {
	s.listener.Close()
	s.handed.Close()
	s.h2.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.serving.Wait()
}

// take returns what arrived since the last call.
func (s *sink) take() []captured {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

func (s *sink) note(c captured) {
	s.mu.Lock()
	s.seen = append(s.seen, c)
	s.mu.Unlock()
}

// answers sets what answers from now on.
func (s *sink) answers(raw func(net.Conn, *bufio.Reader, *http.Request), h http.HandlerFunc) {
	s.mu.Lock()
	s.raw, s.handler = raw, h
	s.mu.Unlock()
}

// says makes HTTP/1.1 requests be answered with these bytes once their bodies are read.
func (s *sink) says(raw string) {
	s.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(c, raw)
	}, nil)
}

func (s *sink) serve(c net.Conn) {
	handed := false
	defer func() {
		if !handed {
			c.Close()
		}
	}()
	peeked := bufio.NewReader(c)
	first, err := peeked.Peek(1)
	if err != nil {
		return
	}
	c = &peekedConn{c, peeked}
	if first[0] == 22 {
		t := tls.Server(c, s.config)
		if t.Handshake() != nil {
			return
		}
		if t.ConnectionState().NegotiatedProtocol == "h2" {
			handed = s.handed.hand(t)
			return
		}
		c = t
	}
	s.serveH1(c)
}

type peekedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *peekedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

func (s *sink) serveH1(c net.Conn) {
	tap := &tap{Reader: c}
	br := bufio.NewReader(tap)
	for {
		ahead, _ := br.Peek(br.Buffered())
		tap.kept, tap.on = append([]byte{}, ahead...), true
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		tap.on = false
		s.note(captured{string(tap.kept[:len(tap.kept)-br.Buffered()]), r})
		s.mu.Lock()
		raw := s.raw
		s.mu.Unlock()
		if raw == nil {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			continue
		}
		raw(c, br, r)
	}
}

// tap keeps what is read through it while it is on.
type tap struct {
	io.Reader
	on   bool
	kept []byte
}

func (t *tap) Read(b []byte) (int, error) {
	n, err := t.Reader.Read(b)
	if t.on {
		t.kept = append(t.kept, b[:n]...)
	}
	return n, err
}

func (s *sink) serveH2(w http.ResponseWriter, r *http.Request) {
	s.note(captured{"", r})
	s.mu.Lock()
	h := s.handler
	s.mu.Unlock()
	if h != nil {
		h(w, r)
		return
	}
	io.Copy(io.Discard, r.Body)
	io.WriteString(w, "ok")
}

// upstream is the way out: it goes to the sink whatever the name, with the permit's authority, and puts credentials into their slots.
type upstream struct {
	sink        *sink
	h1, h2      *http.Transport
	useH2       atomic.Bool
	secret      string
	ready       func() error
	before      func(*http.Request) // called before a request leaves
	trips       atomic.Int64
	tunnels     atomic.Int64
	tunnelsFail error
}

func newUpstream(s *sink) *upstream {
	var b [16]byte
	rand.Read(b[:])
	u := &upstream{sink: s, secret: fmt.Sprintf("secret-%x", b)}
	transport := func(h2 bool) *http.Transport {
		p := new(http.Protocols)
		p.SetHTTP1(!h2)
		p.SetHTTP2(h2)
		return &http.Transport{
			Protocols: p, DisableCompression: true, MaxIdleConnsPerHost: 64, ExpectContinueTimeout: patience,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", s.listener.Addr().String())
			},
			TLSClientConfig: &tls.Config{RootCAs: s.ca.pool},
			HTTP2:           &http.HTTP2Config{MaxReceiveBufferPerStream: 1 << 20},
		}
	}
	u.h1, u.h2 = transport(false), transport(true)
	return u
}

func (u *upstream) close() {
	u.h1.CloseIdleConnections()
	u.h2.CloseIdleConnections()
}

func (u *upstream) Ready(_ context.Context, p policy.Permit) (record.Receipt, error) {
	if u.ready != nil {
		if err := u.ready(); err != nil {
			return record.Receipt{}, err
		}
	}
	return record.Receipt{Credential: p.Injection().Credential, Fingerprint: "0123abcd"}, nil
}

func (o *upstream) RoundTrip(p policy.Permit, slot policy.Slot, r *http.Request) (*http.Response, error) {
	o.trips.Add(1)
	if o.before != nil {
		o.before(r)
	}
	r = r.WithContext(r.Context()) // not a clone: trailers come later
	u := *r.URL
	r.Header, r.URL = r.Header.Clone(), &u
	r.URL.Scheme, r.URL.Host, r.Host = p.Scheme().String(), p.Host().String(), ""
	if p.Port() != p.Scheme().DefaultPort() {
		r.URL.Host += ":" + p.Port().String()
	}
	switch slot.Kind {
	case policy.HeaderSlot:
		r.Header.Set(slot.Name, slot.Prefix+o.secret+slot.Suffix)
	case policy.BasicSlot:
		r.SetBasicAuth(slot.User, o.secret)
	case policy.QuerySlot:
		if r.URL.RawQuery != "" {
			r.URL.RawQuery += "&"
		}
		r.URL.RawQuery += slot.Name + "=" + o.secret
	}
	t := o.h1
	if o.useH2.Load() && r.Header.Get("Upgrade") == "" {
		t = o.h2
	}
	resp, err := t.RoundTrip(r)
	if err != nil {
		return nil, &gate.Failure{Reason: gate.ReasonUpstream, Err: err}
	}
	return resp, nil
}

func (u *upstream) Tunnel(ctx context.Context, _ policy.Permit) (*net.TCPConn, error) {
	u.tunnels.Add(1)
	if u.tunnelsFail != nil {
		return nil, u.tunnelsFail
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", u.sink.listener.Addr().String())
	if err != nil {
		return nil, &gate.Failure{Reason: gate.ReasonDial, Err: err}
	}
	return c.(*net.TCPConn), nil
}

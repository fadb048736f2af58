package egress

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

const (
	idlePerHost  = 64      // idle HTTP/1.1 connections of one pool to one host; net/http's 2 costs a proxy most of its throughput
	streamWindow = 1 << 20 // bytes of one HTTP/2 stream that may wait for a slow client
	pingAfter    = 30 * time.Second
	pingWait     = 15 * time.Second
	writeStall   = 60 * time.Second // an HTTP/2 connection that takes no byte for so long is dead
)

// Session is one session's way out: its connections are its own. Safe for concurrent use.
type Session struct {
	e     *Egress
	id    gate.SessionID
	slots chan struct{} // one for each open connection

	mu      sync.Mutex
	closed  bool
	pools   map[poolKey]*http.Transport
	live    map[*link]struct{}
	tunnels map[*net.TCPConn]struct{} // some of them already closed by their users
	dials   map[*context.CancelFunc]struct{}
}

// poolKey tells pools apart. Whatever a connection's making depended on is in it, or in the scheme, host and port that net/http keys by.
type poolKey struct {
	credential gate.CredentialName
	inside     netip.Prefix
	http1      bool // the client spoke HTTP/1, or asks for an upgrade, which HTTP/2 does not have
}

// Session begins a session's pools. Close ends them.
func (e *Egress) Session(id gate.SessionID) *Session {
	return &Session{e: e, id: id, slots: make(chan struct{}, e.MaxConns), pools: map[poolKey]*http.Transport{},
		live: map[*link]struct{}{}, tunnels: map[*net.TCPConn]struct{}{}, dials: map[*context.CancelFunc]struct{}{}}
}

// Close cuts every connection, also those in use, and refuses what comes after.
func (s *Session) Close() {
	s.mu.Lock()
	s.closed = true
	for cancel := range s.dials {
		(*cancel)()
	}
	live := s.live
	s.live = nil
	tunnels := s.tunnels
	s.tunnels = nil
	s.mu.Unlock()
	for l := range live {
		_ = l.Close()
	}
	for t := range tunnels {
		_ = t.Close()
		s.release()
	}
	s.closeIdle()
}

func (s *Session) closeIdle() {
	s.mu.Lock()
	pools := make([]*http.Transport, 0, len(s.pools))
	for _, t := range s.pools {
		pools = append(pools, t)
	}
	s.mu.Unlock()
	for _, t := range pools {
		t.CloseIdleConnections()
	}
}

// pool is the transport that serves a permit's destination with a credential.
func (s *Session) pool(k poolKey) (*http.Transport, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errEnded()
	}
	if t := s.pools[k]; t != nil {
		return t, nil
	}
	alpn, protocols := []string{"h2", "http/1.1"}, new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(!k.http1)
	if k.http1 {
		alpn = alpn[1:]
	}
	t := &http.Transport{
		DialContext:            func(ctx context.Context, _, addr string) (net.Conn, error) { return s.dial(ctx, addr, nil) },
		DialTLSContext:         func(ctx context.Context, _, addr string) (net.Conn, error) { return s.dial(ctx, addr, alpn) },
		Protocols:              protocols,
		DisableCompression:     true, // the client's own wishes travel
		MaxIdleConns:           4 * idlePerHost,
		MaxIdleConnsPerHost:    idlePerHost,
		IdleConnTimeout:        s.e.IdleTime,
		ResponseHeaderTimeout:  s.e.AnswerTime,
		ExpectContinueTimeout:  2 * time.Second,
		MaxResponseHeaderBytes: int64(s.e.MaxHeader),
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream: streamWindow,
			SendPingTimeout:           pingAfter,
			PingTimeout:               pingWait,
			WriteByteTimeout:          writeStall,
		},
	}
	s.pools[k] = t
	return t, nil
}

// permitKey is where a request's permit waits for the transport to dial.
type permitKey struct{}

// dial is called by a pool's transport. The permit of the request that needs the connection says where to; what the transport
// believes (addr) must be the same. With alpn it is TLS, without it is cleartext.
func (s *Session) dial(ctx context.Context, addr string, alpn []string) (net.Conn, error) {
	p, _ := ctx.Value(permitKey{}).(policy.Permit)
	to, err := s.destination(p, policy.Request)
	if err != nil {
		return nil, err
	}
	if to.String() != addr || (p.Scheme() == gate.HTTPS) != (alpn != nil) {
		return nil, fail(gate.ReasonBug, "a permit for another destination", nil)
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	l, err := s.open(ctx, to)
	if err != nil || alpn == nil {
		return l, err
	}
	t, err := s.e.secure(ctx, l, to.Authority, alpn)
	if err != nil {
		return nil, s.ended(err)
	}
	return t, nil
}

// open takes a slot, reaches the target and takes charge of the connection.
func (s *Session) open(ctx context.Context, to target) (net.Conn, error) {
	if err := s.acquire(ctx); err != nil {
		return nil, err
	}
	conn, err := s.e.reach(ctx, to)
	if err != nil {
		s.release()
		return nil, s.ended(err)
	}
	l := &link{Conn: conn, s: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close()
		s.release()
		return nil, errEnded()
	}
	s.live[l] = struct{}{}
	return l, nil
}

// Tunnel opens a connection to a permit's destination for bytes that are not read. The permit is a Connect's whose rule says
// `tls: tunnel`. The connection is the caller's to close; Close of the session closes it too. The error is a *gate.Failure.
func (s *Session) Tunnel(ctx context.Context, p policy.Permit) (*net.TCPConn, error) {
	to, err := s.destination(p, policy.Connect)
	if err != nil {
		return nil, err
	}
	if p.Mode() != policy.Tunnel || p.Scheme() != gate.HTTPS {
		return nil, fail(gate.ReasonBug, "a permit for an intercepted connection", nil)
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := s.acquire(ctx); err != nil {
		return nil, err
	}
	conn, err := s.e.reach(ctx, to)
	if err != nil {
		s.release()
		return nil, s.ended(err)
	}
	t, ok := conn.(*net.TCPConn)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !ok:
		err = fail(gate.ReasonDial, "the corporate proxy is reached over TLS, which a tunnel cannot pass through", nil)
	case s.closed:
		err = errEnded()
	default:
		s.tunnels[t] = struct{}{}
		return t, nil
	}
	_ = conn.Close()
	s.release()
	return nil, err
}

// begin registers something that Close must cancel.
func (s *Session) begin(ctx context.Context) (context.Context, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		cancel()
		return nil, nil, errEnded()
	}
	s.dials[&cancel] = struct{}{}
	return ctx, func() {
		cancel()
		s.mu.Lock()
		delete(s.dials, &cancel)
		s.mu.Unlock()
	}, nil
}

// ended replaces the error of something that Close cut short.
func (s *Session) ended(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errEnded()
	}
	return err
}

// acquire takes a slot of the session and one of all sessions. When there is none, idle connections and abandoned tunnels make room;
// then it waits as long as dialling may take.
func (s *Session) acquire(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.e.DialTime)
	defer cancel()
	if err := s.take(ctx, s.slots); err != nil {
		return err
	}
	if err := s.take(ctx, s.e.slots); err != nil {
		<-s.slots
		return err
	}
	return nil
}

func (s *Session) take(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}
	s.closeIdle()
	s.forgetTunnels()
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return s.ended(fail(gate.ReasonLimitConnections, "too many connections to the world are open", ctx.Err()))
	}
}

func (s *Session) release() {
	<-s.e.slots
	<-s.slots
}

// forgetTunnels gives back the slots of tunnels that their users have closed. A tunnel is a bare *net.TCPConn, so that its bytes can be
// spliced; nobody says when it is closed.
func (s *Session) forgetTunnels() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := range s.tunnels {
		raw, err := t.SyscallConn()
		if err == nil {
			err = raw.Control(func(uintptr) {})
		}
		if err != nil {
			delete(s.tunnels, t)
			s.release()
		}
	}
}

// link is a connection that its session keeps account of.
type link struct {
	net.Conn
	s    *Session
	once sync.Once
}

// Close closes the connection and gives back its slot.
func (l *link) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		err = l.Conn.Close()
		l.s.mu.Lock()
		delete(l.s.live, l)
		l.s.mu.Unlock()
		l.s.release()
	})
	return err
}

// CloseWrite half-closes where the connection can.
func (l *link) CloseWrite() error {
	if c, ok := l.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return net.ErrClosed
}

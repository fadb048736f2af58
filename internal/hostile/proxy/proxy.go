// Package proxy meets the sandbox: it ends TLS, reads requests, asks policy, and carries what is allowed to the upstream and back.
//
// Two functions hold the order of everything that happens. ServeConn walks one captured connection from its first byte to a decision
// about its TLS; (*exchange).run walks one request from its head to its answer. Each is a list of steps; the first step that says no
// has refused, and every refusal is recorded.
//
// The package holds no secret and opens no socket: certificates, credentials and upstreams are behind the interfaces of ports.go.
package proxy

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/limit"
	"postern/internal/core/placeholder"
	"postern/internal/core/policy"
)

// Config is what one session's proxy works with. Every field is needed unless its comment says otherwise.
type Config struct {
	Session  gate.SessionID
	Policy   func() *policy.Policy // the policy in force now; nil denies everything
	Minter   Minter
	Upstream Upstream
	Recorder Recorder
	Resolver Resolver // nil: no address was given out, so no name stands behind one
	Limits   *limit.Session

	// Alive says whether the session may still act: gate.ReasonNone, or why not.
	Alive func() gate.Reason

	Placeholders *placeholder.Set             // nil: the session has none
	Voice        func(gate.Host) policy.Voice // nil: every refusal is plain
	HTTP1Only    func(gate.Host) bool         // nil: HTTP/2 is offered to every host

	Now func() time.Time // nil: time.Now
	Log *slog.Logger     // nil: discarded
}

// Proxy serves the connections of one session.
type Proxy struct {
	Config
	server *http.Server
	feed   *feed
	tls    *tls.Config // HTTP/2 and HTTP/1.1
	tls1   *tls.Config // HTTP/1.1 alone

	bounds limit.Limits

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	served chan struct{} // closed when the server has returned

	buffers sync.Pool // of *[copySize]byte

	working sync.WaitGroup // open connections and running requests; added to under mu while not closed

	mu     sync.Mutex
	closed bool
	live   map[*ticket]struct{}   // what is under way, for Recheck
	conns  map[*flowConn]struct{} // open connections, for Close
}

// errClosed is the cause of the context of a proxy that was closed.
var errClosed = errors.New("the session has ended")

// New starts a proxy; Close ends it.
func New(c Config) (*Proxy, error) {
	if c.Session.IsZero() || c.Policy == nil || c.Minter == nil || c.Upstream == nil || c.Recorder == nil || c.Limits == nil || c.Alive == nil {
		return nil, errors.New("proxy: incomplete config")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Voice == nil {
		c.Voice = func(gate.Host) policy.Voice { return policy.VoicePlain }
	}
	if c.HTTP1Only == nil {
		c.HTTP1Only = func(gate.Host) bool { return false }
	}
	if c.Placeholders == nil {
		c.Placeholders = &placeholder.Set{} // which still knows other sessions' placeholders
	}
	p := &Proxy{Config: c, feed: newFeed(), bounds: c.Limits.Limits(), served: make(chan struct{}),
		live: map[*ticket]struct{}{}, conns: map[*flowConn]struct{}{}}
	p.buffers.New = func() any { return new([copySize]byte) }
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.tls = p.tlsConfig("h2", "http/1.1")
	p.tls1 = p.tlsConfig("http/1.1")
	p.server = p.httpServer()
	go func() {
		defer close(p.served)
		_ = p.server.Serve(p.feed) // returns when the feed closes
	}()
	return p, nil
}

// tlsConfig is one configuration for all connections of the session, so that tickets resume within it and nowhere else.
func (p *Proxy) tlsConfig(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: protocols,
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			c, ok := h.Conn.(*flowConn)
			if !ok || c.flow.leaf == nil {
				return nil, errors.New("no decision was made for this connection")
			}
			return c.flow.leaf, nil
		},
	}
}

func (p *Proxy) httpServer() *http.Server {
	l := p.bounds
	return &http.Server{
		Handler:                      p,
		ReadHeaderTimeout:            l.Idle, // until a head begins; the filter bounds how long it takes
		IdleTimeout:                  l.Idle,
		MaxHeaderBytes:               2 * l.Header, // readHead and the filter refuse at l.Header, with a record; what is beyond this is not read
		DisableGeneralOptionsHandler: true,
		BaseContext:                  func(net.Listener) context.Context { return p.ctx },
		ConnContext:                  withFlow,
		ErrorLog:                     log.New(debugWriter{p.Log}, "", 0),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          l.Streams,
			MaxReadFrameSize:              64 << 10,
			MaxReceiveBufferPerConnection: 4 << 20,
			MaxReceiveBufferPerStream:     1 << 20,
			SendPingTimeout:               l.Progress,
			PingTimeout:                   30 * time.Second,
			WriteByteTimeout:              l.Progress,
		},
	}
}

// debugWriter passes what net/http says about broken clients to the log. Its text may hold what the sandbox sent, so it is an attribute.
type debugWriter struct{ log *slog.Logger }

func (w debugWriter) Write(b []byte) (int, error) {
	w.log.Debug("http server", "text", string(b))
	return len(b), nil
}

// newEvent names a decision. Reading the system's random source cannot fail.
func newEvent() gate.EventID {
	var b [10]byte
	_, _ = rand.Read(b[:])
	return gate.NewEventID(b)
}

// feed is the listener through which decided connections reach the server.
type feed struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newFeed() *feed { return &feed{conns: make(chan net.Conn), done: make(chan struct{})} }

func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

func (f *feed) Close() error   { f.once.Do(func() { close(f.done) }); return nil }
func (f *feed) Addr() net.Addr { return &net.TCPAddr{} }

// hand gives a connection to the server, or reports that the server is gone.
func (f *feed) hand(c net.Conn) bool {
	select {
	case f.conns <- c:
		return true
	case <-f.done:
		return false
	}
}

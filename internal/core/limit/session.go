package limit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"postern/internal/core/gate"
)

// Global holds what all sessions of a gateway use together. The zero Global refuses everything. Safe for concurrent use.
type Global struct{ m meter }

// NewGlobal makes a Global within t.Complete().
func NewGlobal(t Totals) *Global {
	t = t.Complete()
	return &Global{newMeter(t.Connections, t.Handshakes, t.Requests, t.DNS, t.Leaves)}
}

// Connections is the number of open connections of all sessions.
func (g *Global) Connections() int { return g.m.connections.inUse() }

// Session holds what one session uses. Each question is answered with gate.ReasonNone, and what was asked for is then taken, or with
// the reason of the refusal, and then nothing of the gateway's totals is taken. The zero Session refuses everything. Safe for concurrent use.
type Session struct {
	limits Limits
	m      meter
	upload budget
	global *Global
}

// New makes a Session within l.Complete(), sharing g with the other sessions. A nil g stands for a gateway with this session alone.
func New(l Limits, g *Global) *Session {
	l = l.Complete()
	if g == nil {
		g = NewGlobal(Totals{})
	}
	return &Session{
		limits: l,
		m:      newMeter(l.Connections, l.Handshakes, l.Requests, l.DNS, l.Leaves),
		upload: budget{most: l.Upload},
		global: g,
	}
}

// Limits are the session's limits, complete.
func (s *Session) Limits() Limits { return s.limits }

// Connection takes a connection slot. When it answers ReasonNone, ConnectionDone gives the slot back, once.
func (s *Session) Connection() gate.Reason {
	if s.global == nil || !s.m.connections.take() {
		return gate.ReasonLimitConnections
	}
	if !s.global.m.connections.take() {
		s.m.connections.give()
		return gate.ReasonLimitConnections
	}
	return gate.ReasonNone
}

// ConnectionDone gives back the slot of one successful Connection.
func (s *Session) ConnectionDone() {
	if s.global != nil && s.m.connections.give() {
		s.global.m.connections.give()
	}
}

// Connections is the number of the session's open connections.
func (s *Session) Connections() int { return s.m.connections.inUse() }

// Handshake takes a token for one TLS handshake.
func (s *Session) Handshake(now time.Time) gate.Reason {
	if s.global != nil && take(s.m.handshakes, s.global.m.handshakes, now) {
		return gate.ReasonNone
	}
	return gate.ReasonLimitHandshakes
}

// Request takes a token for one HTTP request.
func (s *Session) Request(now time.Time) gate.Reason {
	if s.global != nil && take(s.m.requests, s.global.m.requests, now) {
		return gate.ReasonNone
	}
	return gate.ReasonLimitRequests
}

// DNS takes a token for one DNS query.
func (s *Session) DNS(now time.Time) gate.Reason {
	if s.global != nil && take(s.m.dns, s.global.m.dns, now) {
		return gate.ReasonNone
	}
	return gate.ReasonLimitDNS
}

// Leaf takes a token for one certificate that delivers a refusal.
func (s *Session) Leaf(now time.Time) gate.Reason {
	if s.global != nil && take(s.m.leaves, s.global.m.leaves, now) {
		return gate.ReasonNone
	}
	return gate.ReasonLimitLeaves
}

// Upload takes n bytes of the session's upload budget, all or none. A negative n is refused.
func (s *Session) Upload(n int64) gate.Reason {
	if s.upload.take(n) {
		return gate.ReasonNone
	}
	return gate.ReasonLimitUpload
}

// Uploaded is the number of bytes taken from the upload budget.
func (s *Session) Uploaded() int64 { return s.upload.taken() }

// meter counts what a session and the gateway both bound.
type meter struct {
	connections                       slots
	handshakes, requests, dns, leaves *rate.Limiter
}

func newMeter(connections int, handshakes, requests, dns, leaves Rate) meter {
	bucket := func(r Rate) *rate.Limiter { return rate.NewLimiter(rate.Limit(r.Per), r.Burst) }
	return meter{slots{most: connections}, bucket(handshakes), bucket(requests), bucket(dns), bucket(leaves)}
}

// take takes a token from both buckets, the session's first: a session beyond its own rate takes nothing from the others.
func take(own, all *rate.Limiter, now time.Time) bool {
	return own != nil && all != nil && own.AllowN(now, 1) && all.AllowN(now, 1)
}

// slots is a counter with an upper bound. The zero slots have no room.
type slots struct {
	mu   sync.Mutex
	used int // guarded by mu
	most int
}

func (s *slots) take() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= s.most {
		return false
	}
	s.used++
	return true
}

// give reports whether there was a slot to give back: one that is given back twice does not make room for two.
func (s *slots) give() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == 0 {
		return false
	}
	s.used--
	return true
}

func (s *slots) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// budget is a number of bytes that only shrinks. The zero budget is spent.
type budget struct {
	mu   sync.Mutex
	used int64 // guarded by mu
	most int64
}

func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n < 0 || n > b.most-b.used {
		return false
	}
	b.used += n
	return true
}

func (b *budget) taken() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

var errLimit = errors.New("a limit was reached")

// meter is a request's body on its way out: counted, watched, and stopped at its limits. It is read by one goroutine, which may
// outlive the exchange.
type meter struct {
	body   io.Reader
	x      *exchange
	w      *watchdog
	left   int64
	done   func() bool // at the end of the body; false refuses what was found there
	closed atomic.Bool
}

func (m *meter) Read(b []byte) (int, error) {
	if m.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := m.body.Read(b)
	m.w.touch()
	m.x.in.Add(int64(n))
	if m.left -= int64(n); m.left < 0 {
		return 0, m.stop(gate.ReasonLimitBody)
	}
	if why := m.x.p.Limits.Upload(int64(n)); why != gate.ReasonNone {
		return 0, m.stop(why)
	}
	switch {
	case err == io.EOF && m.done != nil && !m.done():
		return 0, m.stop(gate.ReasonPlaceholderLeak)
	case err == io.EOF:
		m.x.uploaded.Store(true)
		m.w.uploaded()
	case err != nil && m.x.f.filter != nil:
		if v := m.x.f.filter.BodyViolation(); v != nil {
			return 0, m.stop(v.Reason) // the client broke the framing of its body
		}
	}
	return n, err
}

func (m *meter) stop(why gate.Reason) error {
	m.w.why.set(why)
	return errLimit
}

// Close ends reading. The body below stays the HTTP server's: what is left of it is read after a refusal, so that the client gets to see that.
func (m *meter) Close() error {
	m.closed.Store(true)
	return nil
}

const (
	drainLimit = 64 << 20         // of a body whose request was answered already: above what model providers take
	drainTime  = 30 * time.Second // for all of it
	smallBody  = 256 << 10        // net/http reads so much before it writes an answer
)

// closeUnread prepares an HTTP/1.1 answer that is given before the request's body has ended. The connection is not used again, since what follows
// on it is no request, and what the client still sends is read by drain: closing on it would reset the connection, and the client would
// not see the answer.
func (x *exchange) closeUnread() {
	r := x.r
	if r.ProtoMajor != 1 || r.ContentLength == 0 || x.uploaded.Load() {
		return
	}
	if x.verdict != policy.Allow && r.ContentLength > 0 && r.ContentLength <= smallBody {
		return // net/http reads it first and keeps the connection
	}
	_ = http.NewResponseController(x.w).EnableFullDuplex()
	x.w.Header()["Connection"] = []string{"close"}
	x.unread = true
}

// drain sends what was answered and reads what the client still sends, until it has sent all or hangs up.
func (x *exchange) drain() {
	if !x.unread || x.reason == gate.ReasonLimitTime || http.NewResponseController(x.w).Flush() != nil {
		return
	}
	x.discard()
}

func (x *exchange) discard() {
	_ = http.NewResponseController(x.w).SetReadDeadline(time.Now().Add(drainTime))
	_, _ = io.CopyN(io.Discard, x.r.Body, drainLimit)
}

// trailers are the fields that may follow the request's body: those it announced, but no carrier of credentials. They are
// filled in at the end of the body, by the goroutine that reads it.
func (x *exchange) trailers() (t http.Header, fill func() bool) {
	for name := range x.r.Trailer {
		if carrier(fieldName(name)) {
			x.stripped = name
			continue
		}
		if t == nil {
			t = http.Header{}
		}
		t[name] = nil
	}
	if t == nil {
		return nil, nil
	}
	return t, func() bool {
		for name := range t {
			values := x.r.Trailer[name]
			if x.placeholderIn(values) {
				return false
			}
			t[name] = values
		}
		return true
	}
}

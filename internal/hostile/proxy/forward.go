package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/hostile/proxy/h1"
)

// copySize is the size of a body buffer: two TLS records.
const copySize = 32 << 10

// outbound is the request that leaves: the judged method, host, path and query, the client's remaining fields, its body as it comes.
func (x *exchange) outbound(ctx context.Context, w *watchdog) *http.Request {
	in, a := x.r, &x.action
	h := in.Header
	trailers := hasToken(h["Te"], "trailers")
	removeHopByHop(h)
	if trailers {
		h.Set("Te", "trailers") // gRPC servers insist on it
	}
	if a.Upgrade {
		h.Set("Connection", "Upgrade")
		h.Set("Upgrade", "websocket")
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = []string{""} // or net/http would add its own
	}
	query, hasQuery := a.Path.Query()
	out := &http.Request{
		Method: a.Method.String(),
		// Opaque is written to the wire byte for byte, so that what was judged is what is sent.
		URL:    &url.URL{Scheme: a.Scheme.String(), Host: a.Host.String(), Opaque: a.Path.Raw(), RawQuery: query, ForceQuery: hasQuery},
		Header: h, ContentLength: in.ContentLength, Trailer: in.Trailer, Body: http.NoBody,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	if in.ContentLength != 0 {
		out.Body = &meter{body: in.Body, x: x, w: w, left: x.maxBody()}
	} else {
		w.uploaded()
	}
	return out.WithContext(ctx)
}

// meter counts a request body and stops it at its limits.
type meter struct {
	body io.ReadCloser
	x    *exchange
	w    *watchdog
	left int64
}

var errLimit = errors.New("a limit was reached")

func (m *meter) Read(b []byte) (int, error) {
	n, err := m.body.Read(b)
	m.w.touch()
	m.x.in.Add(int64(n))
	if m.left -= int64(n); m.left < 0 {
		m.w.trip(gate.ReasonLimitBody)
		return 0, errLimit
	}
	if why := m.x.p.Limits.Upload(int64(n)); why != gate.ReasonNone {
		m.w.trip(why)
		return 0, errLimit
	}
	if err == io.EOF {
		m.w.uploaded()
	} else if err != nil {
		m.w.broken(m.x.f.filter)
	}
	return n, err
}

func (m *meter) Close() error { return m.body.Close() }

// answer streams the upstream's response to the sandbox.
func (x *exchange) answer(resp *http.Response, w *watchdog) {
	h := x.w.Header()
	x.responseHeader(h, resp)
	for name := range resp.Trailer {
		h.Add("Trailer", name)
	}
	x.status = resp.StatusCode
	x.w.WriteHeader(resp.StatusCode)
	if err := x.stream(resp, w); err != nil {
		x.reason, x.detail = gate.ReasonUpstream, "the answer broke off"
		if why := w.limit(); why != gate.ReasonNone {
			x.reason, x.detail = why, ""
		}
		panic(http.ErrAbortHandler) // a broken answer must not look whole
	}
	for name, values := range resp.Trailer {
		if _, announced := h[name]; !announced {
			name = http.TrailerPrefix + name
		}
		h[name] = values
	}
}

// responseHeader copies what may cross: no hop-by-hop field, no invitation to another protocol, and, where a credential was used,
// no cookie, which would be a credential too.
func (x *exchange) responseHeader(h http.Header, resp *http.Response) {
	removeHopByHop(resp.Header)
	delete(resp.Header, "Alt-Svc")
	if x.slot.Kind != policy.NoSlot {
		delete(resp.Header, "Set-Cookie")
	}
	for name, values := range resp.Header {
		h[name] = values
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // or net/http would guess one
	}
}

// stream copies the body. A body of unknown length is flushed as it comes: a server-sent event must not wait for the next.
func (x *exchange) stream(resp *http.Response, w *watchdog) error {
	flush := resp.ContentLength < 0 || strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	rc := http.NewResponseController(x.w)
	if flush {
		_ = rc.Flush()
	}
	w.answering()
	buf := x.p.buffers.Get().(*[copySize]byte)
	defer x.p.buffers.Put(buf)
	for {
		n, err := resp.Body.Read(buf[:])
		if n > 0 {
			w.touch()
			m, werr := x.w.Write(buf[:n])
			x.out.Add(int64(m))
			if werr != nil {
				return werr
			}
			if flush {
				if err := rc.Flush(); err != nil {
					return err
				}
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// watchdog ends an exchange in which nothing moves. Its time is about progress, never about the whole.
type watchdog struct {
	mu     sync.Mutex // guards timer and cut
	timer  *time.Timer
	cut    func()
	period atomic.Int64 // nanoseconds without a byte
	last   atomic.Int64 // unix nanoseconds of the last byte
	why    atomic.Pointer[gate.Reason]
	x      *exchange
}

// watch starts with the period of an upload; uploaded and answering change it.
func (x *exchange) watch(cancel context.CancelCauseFunc) *watchdog {
	rc := http.NewResponseController(x.w)
	w := &watchdog{x: x}
	w.cut = func() { // before the timer is started
		cancel(errLimit)
		past := time.Unix(1, 0)
		_ = rc.SetReadDeadline(past)
		_ = rc.SetWriteDeadline(past)
	}
	w.period.Store(int64(x.p.Limits.Limits().Progress))
	w.last.Store(time.Now().UnixNano())
	w.timer = time.AfterFunc(time.Duration(w.period.Load()), w.check)
	return w
}

// check runs when the timer fires: either something moved since, and it sleeps on, or nothing did.
func (w *watchdog) check() {
	idle := time.Now().UnixNano() - w.last.Load()
	if left := w.period.Load() - idle; left > 0 {
		w.mu.Lock()
		w.timer.Reset(time.Duration(left))
		w.mu.Unlock()
		return
	}
	w.trip(gate.ReasonLimitTime)
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	cut()
}

// cutting sets what ends the exchange from now on.
func (w *watchdog) cutting(cut func()) {
	w.mu.Lock()
	w.cut = cut
	w.mu.Unlock()
}

func (w *watchdog) touch() { w.last.Store(time.Now().UnixNano()) }

func (w *watchdog) uploaded() { w.set(w.x.p.Limits.Limits().Answer) }

func (w *watchdog) answering() { w.set(w.x.p.Limits.Limits().Progress) }

func (w *watchdog) set(d time.Duration) {
	w.period.Store(int64(d))
	w.touch()
	w.mu.Lock()
	w.timer.Reset(d)
	w.mu.Unlock()
}

// trip remembers which limit ended the exchange; the first one counts.
func (w *watchdog) trip(why gate.Reason) { w.why.CompareAndSwap(nil, &why) }

// broken remembers that the client broke the framing of its body, if that is what happened.
func (w *watchdog) broken(filter *h1.Conn) {
	if filter == nil {
		return
	}
	if v := filter.BodyViolation(); v != nil {
		w.trip(v.Reason)
	}
}

// limit is the limit that ended the exchange, ReasonNone when none did.
func (w *watchdog) limit() gate.Reason {
	if r := w.why.Load(); r != nil {
		return *r
	}
	return gate.ReasonNone
}

func (w *watchdog) stop() {
	w.mu.Lock()
	w.timer.Stop()
	w.mu.Unlock()
}

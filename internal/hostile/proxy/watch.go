package proxy

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"postern/internal/core/gate"
)

// cause is why something was ended from here, rather than by either side. The first reason counts.
type cause struct{ p atomic.Pointer[gate.Reason] }

func (c *cause) set(why gate.Reason) { c.p.CompareAndSwap(nil, &why) }

// reason is the cause, or otherwise when there is none.
func (c *cause) reason(otherwise gate.Reason) gate.Reason {
	if r := c.p.Load(); r != nil {
		return *r
	}
	return otherwise
}

// stage is what an exchange waits for.
type stage uint8

const (
	uploading stage = iota // the request's body is on its way
	waiting                // the upstream owes its answer
	answering              // the answer's body is on its way, or a WebSocket is open
)

// watchdog ends an exchange in which nothing moves. Its time is about progress, never about the whole.
type watchdog struct {
	why  cause
	last atomic.Int64 // unix nanoseconds of the last byte

	progress, answer time.Duration

	mu      sync.Mutex // guards what follows
	stage   stage
	timer   *time.Timer
	cut     func(stage)
	stopped bool // no cut any more: the connection may serve the next request
}

// watch starts a watchdog for an upload; uploaded and answers change its stage, stop ends it.
func (x *exchange) watch(cancel context.CancelCauseFunc) *watchdog {
	w := &watchdog{progress: x.p.bounds.Progress, answer: x.p.bounds.Answer}
	w.cut = func(s stage) {
		cancel(errLimit)
		past := time.Unix(1, 0)
		switch rc := http.NewResponseController(x.w); s {
		case uploading: // a refusal can still be written
			_ = rc.SetReadDeadline(past)
		case answering:
			_ = rc.SetReadDeadline(past)
			_ = rc.SetWriteDeadline(past)
		}
	}
	w.touch()
	w.mu.Lock()
	w.timer = time.AfterFunc(w.progress, w.check)
	w.mu.Unlock()
	return w
}

// check runs when the timer fires: either something moved since, and it sleeps on, or nothing did.
func (w *watchdog) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	period, why := w.progress, gate.ReasonLimitTime
	if w.stage == waiting {
		period, why = w.answer, gate.ReasonUpstreamTimeout
	}
	if left := period - time.Duration(time.Now().UnixNano()-w.last.Load()); left > 0 {
		w.timer.Reset(left)
		return
	}
	w.why.set(why)
	w.cut(w.stage)
}

// end ends the exchange from outside.
func (w *watchdog) end(why gate.Reason) {
	w.why.set(why)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.cut(w.stage)
	}
}

// cutting sets what ends the exchange from now on, and does it when the end was called before.
func (w *watchdog) cutting(cut func(stage)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if w.why.reason(gate.ReasonNone) != gate.ReasonNone {
		w.cut(w.stage)
	}
}

func (w *watchdog) touch() { w.last.Store(time.Now().UnixNano()) }

func (w *watchdog) uploaded() { w.enter(waiting) }

func (w *watchdog) answers() { w.enter(answering) }

// enter moves on to a later stage; an upload that ends while the answer is on its way changes nothing.
func (w *watchdog) enter(s stage) {
	w.touch()
	w.mu.Lock()
	defer w.mu.Unlock()
	if s <= w.stage || w.stopped {
		return
	}
	w.stage = s
	if w.progress != w.answer {
		w.timer.Reset(min(w.progress, w.answer)) // check finds out how long is left
	}
}

func (w *watchdog) stop() {
	w.mu.Lock()
	w.stopped = true
	w.timer.Stop()
	w.mu.Unlock()
}

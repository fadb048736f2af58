package proxy

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

// copySize is the size of a body buffer: two TLS records.
const copySize = 32 << 10

// forward sends the request and streams the answer back.
func (x *exchange) forward() {
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	watch := x.watch(cancel)
	defer watch.stop()
	t := &ticket{action: x.action, judged: x.judged, cut: watch.end}
	if why := x.p.begin(t); why != gate.ReasonNone {
		x.deny(why, "")
		return
	}
	defer x.p.end(t)

	_ = http.NewResponseController(x.w).EnableFullDuplex() // HTTP/1.1: the answer may begin before the body ends
	resp, err := x.p.Upstream.RoundTrip(x.decision.Permit, x.slot, x.outbound(ctx, watch))
	if err != nil {
		x.failed(err, watch)
		return
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusUnauthorized && x.slot.Kind != policy.NoSlot:
		x.deny(gate.ReasonCredentialRefused, "the service answered 401 to the credential "+x.receipt.Credential.String())
	case resp.StatusCode == http.StatusSwitchingProtocols:
		x.upgrade(resp, watch)
	case resp.StatusCode < 200 || resp.StatusCode > 999:
		x.denyStatus(gate.ReasonUpstream, "the answer has a status that HTTP does not know", upstreamStatus(gate.ReasonUpstream))
	default:
		x.answer(resp, watch)
	}
}

// failed refuses in the words of whatever went wrong: a limit of ours, the end of the session, the client, or the upstream.
func (x *exchange) failed(err error, w *watchdog) {
	why, detail := failure(err)
	switch ours := w.why.reason(gate.ReasonNone); {
	case ours != gate.ReasonNone:
		why, detail = ours, ""
	case x.r.Context().Err() != nil:
		x.reason, x.detail = gate.ReasonAllowed, "the client left before the answer"
		panic(http.ErrAbortHandler)
	default:
		x.p.Log.Info("upstream failed", "event", x.event.String(), "host", x.action.Host.String(), "error", err)
	}
	x.denyStatus(why, detail, upstreamStatus(why))
}

// upstreamStatus lets a client retry what a retry can mend; everything else keeps the status of a refusal.
func upstreamStatus(why gate.Reason) int {
	switch why {
	case gate.ReasonDial, gate.ReasonUpstream:
		return http.StatusBadGateway
	case gate.ReasonUpstreamTimeout:
		return http.StatusGatewayTimeout
	}
	return 0
}

// outbound is the request that leaves: the judged method, host, path and query, the client's remaining fields, its body as it comes.
func (x *exchange) outbound(ctx context.Context, w *watchdog) *http.Request {
	in, a := x.r, &x.action
	h := in.Header
	trailers := hasToken(h["Te"], "trailers")
	removeHopByHop(h)
	if trailers {
		h["Te"] = []string{"trailers"} // gRPC servers insist on it
	}
	if a.Upgrade {
		h["Connection"] = []string{"Upgrade"}
		h["Upgrade"] = []string{"websocket"}
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = []string{""} // or net/http would add its own
	}
	query, hasQuery := a.Path.Query()
	out := http.Request{
		Method: a.Method.String(),
		// Opaque is written to the wire byte for byte, so that what was judged is what is sent.
		URL:    &url.URL{Scheme: a.Scheme.String(), Host: a.Host.String(), Opaque: a.Path.Raw(), RawQuery: query, ForceQuery: hasQuery},
		Header: h, ContentLength: in.ContentLength, Body: http.NoBody,
		Proto: in.Proto, ProtoMajor: in.ProtoMajor, ProtoMinor: in.ProtoMinor, // the upstream is spoken to as the client speaks
	}
	if in.ContentLength != 0 {
		m := &meter{body: in.Body, x: x, w: w, left: x.maxBody()}
		out.Trailer, m.done = x.trailers()
		out.Body = m
	} else {
		w.uploaded()
	}
	return out.WithContext(ctx)
}

// answer streams the upstream's response to the sandbox.
func (x *exchange) answer(resp *http.Response, w *watchdog) {
	w.answers()
	h := x.w.Header()
	x.responseHeader(h, resp)
	announced := maps.Clone(resp.Trailer)
	for name := range announced {
		h.Add("Trailer", name)
	}
	x.closeUnread()
	x.status = resp.StatusCode
	x.w.WriteHeader(resp.StatusCode)
	if err := x.stream(resp, w); err != nil {
		x.brokeOff(err, w)
		_ = http.NewResponseController(x.w).Flush() // what came is the client's
		panic(http.ErrAbortHandler)                 // a broken answer must not look whole
	}
	for name, values := range resp.Trailer {
		if !x.mayTrail(name) {
			continue
		}
		if _, ok := announced[name]; !ok {
			name = http.TrailerPrefix + name
		}
		h[name] = values
	}
	// What net/http still holds it writes after the watchdog is gone.
	_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(x.p.bounds.Progress))
}

// responseHeader copies what may cross: no hop-by-hop field, no invitation to another protocol, and, where a credential was used,
// no cookie, which would be a credential too.
func (x *exchange) responseHeader(h http.Header, resp *http.Response) {
	removeHopByHop(resp.Header)
	for name, values := range resp.Header {
		if x.mayAnswer(name) {
			h[name] = values
		}
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // or net/http would guess one
	}
}

func (x *exchange) mayAnswer(name string) bool {
	switch name {
	case "Alt-Svc":
		return false
	case "Set-Cookie":
		return x.slot.Kind == policy.NoSlot
	}
	return true
}

func (x *exchange) mayTrail(name string) bool {
	return httpguts.ValidTrailerHeader(name) && x.mayAnswer(name)
}

var errLeft = errors.New("the client left")

// stream copies the body. A body of unknown length is flushed as it comes: a server-sent event must not wait for the next.
// The error wraps errLeft when the client took no more.
func (x *exchange) stream(resp *http.Response, w *watchdog) error {
	rc := http.NewResponseController(x.w)
	flush := resp.ContentLength < 0 || strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	if flush && rc.Flush() != nil {
		return errLeft
	}
	buf := x.p.buffers.Get().(*[copySize]byte)
	defer x.p.buffers.Put(buf)
	for {
		n, err := resp.Body.Read(buf[:])
		if n > 0 {
			w.touch()
			m, werr := x.w.Write(buf[:n])
			x.out.Add(int64(m))
			if werr != nil || flush && rc.Flush() != nil {
				return errLeft
			}
			w.touch()
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// brokeOff says for the record why an answer did not end well.
func (x *exchange) brokeOff(err error, w *watchdog) {
	ours := w.why.reason(gate.ReasonNone)
	switch {
	case ours != gate.ReasonNone:
		x.reason, x.detail = ours, ""
	case errors.Is(err, errLeft), x.r.Context().Err() != nil:
		x.reason, x.detail = gate.ReasonAllowed, "the client left before the answer was whole"
	default:
		x.reason, x.detail = failure(err)
		if x.detail == "" {
			x.detail = "the answer broke off"
		}
	}
}

// removeHopByHop removes the fields that end at the gateway in either direction (RFC 9110 §7.6.1), with those that Connection names.
func removeHopByHop(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			if name = strings.TrimSpace(name); name != "" {
				h.Del(name)
			}
		}
	}
	for _, name := range [...]string{"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings"} {
		delete(h, name)
	}
}

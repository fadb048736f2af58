package proxy

import (
	"io"
	"net"
	"net/http"
	"time"

	"postern/internal/core/gate"
	"postern/internal/hostile/proxy/hello"
)

// hijack takes the connection from the HTTP server, filter and all. What the client has sent ahead is read first.
func (x *exchange) hijack() (net.Conn, bool) {
	if x.f.filter == nil {
		return nil, x.deny(gate.ReasonMalformedRequest, "only an HTTP/1.1 connection can change its protocol")
	}
	_, buf, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		return nil, x.deny(gate.ReasonBug, "")
	}
	conn, ahead, err := x.f.filter.Detach(buf.Reader)
	if err != nil {
		x.reason = gate.ReasonMalformedRequest
		_ = x.f.filter.Close()
		return nil, false
	}
	_ = conn.SetDeadline(time.Time{})
	return hello.Replay(conn, ahead), true
}

// upgrade joins the two sides of a WebSocket that the rule allows and the upstream accepted.
func (x *exchange) upgrade(resp *http.Response, w *watchdog) {
	up, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || !x.action.Upgrade || !hasToken(resp.Header["Upgrade"], "websocket") {
		x.denyStatus(gate.ReasonUpstream, "the upstream switched protocols without being asked", upstreamStatus(gate.ReasonUpstream))
		return
	}
	conn, ok := x.hijack()
	if !ok {
		return
	}
	defer conn.Close()
	w.cutting(func(stage) { _ = conn.Close(); _ = up.Close() })
	w.answers()
	x.status = resp.StatusCode
	h := http.Header{}
	x.responseHeader(h, resp)
	delete(h, "Content-Type")
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	head := &http.Response{StatusCode: resp.StatusCode, ProtoMajor: 1, ProtoMinor: 1, Header: h}
	if err := head.Write(conn); err != nil {
		return
	}
	x.join(conn, up, w)
}

// join copies both ways until either side ends or nothing moves.
func (x *exchange) join(conn net.Conn, up io.ReadWriteCloser, w *watchdog) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, &meter{body: conn, x: x, w: w, left: x.maxBody()})
		_ = up.Close()
	}()
	buf := x.p.buffers.Get().(*[copySize]byte)
	defer x.p.buffers.Put(buf)
	for {
		n, err := up.Read(buf[:])
		w.touch()
		m, werr := conn.Write(buf[:n])
		x.out.Add(int64(m))
		if err != nil || werr != nil {
			break
		}
	}
	_ = conn.Close()
	<-done
	x.reason = w.why.reason(x.reason)
}

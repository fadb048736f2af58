package proxy

import (
	"io"
	"net"
	"net/http"
	"time"

	"postern/internal/core/gate"
	"postern/internal/hostile/proxy/hello"

	"golang.org/x/sys/unix"
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
		x.deny(gate.ReasonUpstream, "the upstream switched protocols without being asked")
		return
	}
	conn, ok := x.hijack()
	if !ok {
		return
	}
	defer conn.Close()
	w.cutting(func() { _ = conn.Close(); _ = up.Close() })
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
	w.answering()
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
	if why := w.limit(); why != gate.ReasonNone {
		x.reason = why
	}
	_ = conn.Close()
	<-done
}

// splice copies a tunnel's bytes in the kernel where both ends are sockets, and ends it when nothing moves in either direction.
func (f *flow) splice(client net.Conn, up *net.TCPConn) (in, out int64) {
	stop := make(chan struct{})
	defer close(stop)
	go f.watchTunnel(client, up, stop)
	done := make(chan int64)
	go func() {
		n, _ := io.Copy(up, client)
		_ = up.CloseWrite()
		done <- n
	}()
	out, _ = io.Copy(client, up)
	if c, ok := client.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
	if why := f.p.Alive(); why != gate.ReasonNone {
		_ = client.Close()
	}
	in = <-done
	_ = up.Close()
	return in, out
}

// watchTunnel asks the kernel how much has moved, since spliced bytes never pass through here.
func (f *flow) watchTunnel(client net.Conn, up *net.TCPConn, stop <-chan struct{}) {
	tick := time.NewTicker(f.p.Limits.Limits().Progress)
	defer tick.Stop()
	last := uint64(0)
	for {
		select {
		case <-stop:
			return
		case <-f.p.ctx.Done():
		case <-tick.C:
			if now := moved(up); now != last {
				last = now
				continue
			}
		}
		_ = client.Close()
		_ = up.Close()
		return
	}
}

// moved is the number of bytes a socket has received and seen acknowledged.
func moved(c *net.TCPConn) (n uint64) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = i.Bytes_received + i.Bytes_acked
		}
	})
	return n
}

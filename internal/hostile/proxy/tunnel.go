package proxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/core/record"
	"postern/internal/hostile/proxy/hello"
)

// tunnel passes bytes through to the one destination that the decision permits.
func (f *flow) tunnel(c *flowConn, judged *policy.Policy, d policy.Decision) end {
	rec := f.record(gate.ReasonAllowed)
	rec.Verdict, rec.Rule, rec.Action = d.Verdict.String(), d.Rule, "tunnel"
	if err := f.p.Recorder.Commit(context.WithoutCancel(f.p.ctx), rec); err != nil {
		return end{why: gate.ReasonAudit}
	}
	f.decided = true
	out := *rec
	out.Kind, out.Verdict, out.Rule, out.Reason = record.Outcome, "", "", gate.ReasonBug
	defer func() {
		out.Duration = f.p.Now().Sub(f.started)
		_ = f.p.Recorder.Append(&out)
	}()
	ctx, cancel := context.WithTimeout(f.p.ctx, f.p.bounds.Answer)
	defer cancel()
	up, err := f.p.Upstream.Tunnel(ctx, d.Permit)
	if err != nil {
		out.Reason, out.Detail = failure(err)
		return end{}
	}
	s := &splice{p: f.p, client: c.Conn, up: up}
	t := &ticket{action: f.connectAction(), judged: judged, cut: s.cut}
	if why := f.p.begin(t); why != gate.ReasonNone {
		s.cut(why)
	}
	defer f.p.end(t)
	_ = c.SetDeadline(time.Time{})
	s.run()
	out.Reason, out.BytesIn, out.BytesOut = s.why.reason(gate.ReasonAllowed), s.in, s.out
	return end{}
}

// portion is how much of an upload is counted at once: the budget of the session is overshot by no more.
const portion = 1 << 20

// splice copies a tunnel's bytes, in the kernel where both ends are sockets.
type splice struct {
	p       *Proxy
	client  net.Conn
	up      *net.TCPConn
	in, out int64
	why     cause
}

// cut ends the tunnel. The first reason counts.
func (s *splice) cut(why gate.Reason) {
	s.why.set(why)
	_ = s.client.Close()
	_ = s.up.Close()
}

// run returns when both directions have ended.
func (s *splice) run() {
	stop, watched, sent := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		s.watch(stop)
	}()
	go func() {
		defer close(sent)
		s.upload()
	}()
	var err error
	if s.out, err = io.Copy(s.client, s.up); err != nil {
		_ = s.client.Close()
	} else if half, ok := s.client.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	<-sent
	_ = s.up.Close()
	close(stop)
	<-watched
}

// upload copies towards the upstream as long as the session's budget lasts.
func (s *splice) upload() {
	from := io.Reader(s.client)
	if c, ok := s.client.(*hello.Conn); ok {
		if below, ok := c.NetConn().(*net.TCPConn); ok { // which the kernel can read, once what was peeked is sent
			if !s.send(bytes.NewReader(c.Buffered()), int64(len(c.Buffered()))) {
				return
			}
			from = below
		}
	}
	for s.send(from, portion) {
	}
}

// send copies up to n bytes; false when nothing may follow.
func (s *splice) send(from io.Reader, most int64) bool {
	n, err := io.CopyN(s.up, from, most)
	s.in += n
	if why := s.p.Limits.Upload(n); why != gate.ReasonNone {
		s.cut(why)
		return false
	}
	if err == io.EOF {
		_ = s.up.CloseWrite()
	} else if err != nil {
		_ = s.client.Close()
		_ = s.up.Close()
	}
	return err == nil
}

// watch ends a tunnel in which nothing moves. It asks the kernel how much has moved, since spliced bytes never pass through here.
func (s *splice) watch(stop <-chan struct{}) {
	tick := time.NewTicker(s.p.bounds.Progress)
	defer tick.Stop()
	last := uint64(0)
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now := moved(s.up)
		if now == last {
			s.cut(gate.ReasonLimitTime)
			return
		}
		last = now
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

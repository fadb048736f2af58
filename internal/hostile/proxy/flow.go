package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime/debug"
	"sync/atomic"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/core/record"
	"postern/internal/hostile/proxy/h1"
	"postern/internal/hostile/proxy/hello"
	"postern/internal/hostile/proxy/refuse"
)

// flow is one captured connection, or the inside of one explicit CONNECT.
type flow struct {
	p       *Proxy
	dst     netip.AddrPort // where the client was going; invalid for an explicit proxy's own address
	behind  gate.Host      // the name DNS gave out for dst; zero when it gave none
	connect gate.Authority // the target of the CONNECT this flow is inside of; zero when in none
	started time.Time

	scheme   gate.Scheme
	name     gate.Host // the SNI; zero on cleartext
	port     gate.Port
	leaf     *tls.Certificate
	refusal  policy.Decision // why the connection is served only to be refused; zero Reason when it is allowed
	detail   string          // one clause more about the refusal
	filter   *h1.Conn        // the HTTP/1.1 filter; nil on HTTP/2
	slot     bool            // holds a connection slot
	decided  bool            // the decision about the whole connection is on record
	handed   atomic.Bool     // the HTTP server has it
	requests atomic.Int64    // requests recorded on this connection
}

// end is how a connection's walk ended. The zero end: the client went away without asking anything.
type end struct {
	why    gate.Reason
	detail string
	kept   bool // the HTTP server has the connection now
}

// ServeConn walks one captured connection to a decision. dst is its original destination; an invalid dst means that the client
// reached an explicit proxy listener, which serves CONNECT and absolute-form requests only. It returns when the
// connection is closed or has been handed to the HTTP server.
func (p *Proxy) ServeConn(c net.Conn, dst netip.AddrPort) {
	f := &flow{p: p, dst: dst}
	if p.Resolver != nil && dst.IsValid() {
		f.behind, _ = p.Resolver.Lookup(dst.Addr())
	}
	f.serve(c)
}

func (f *flow) serve(c net.Conn) {
	fc, e := &flowConn{Conn: c, arrived: c, flow: f}, end{why: gate.ReasonBug}
	if !f.p.arrive(fc) {
		_ = c.Close()
		return
	}
	defer func() {
		if v := recover(); v != nil {
			f.p.Log.Error("connection handler failed", "panic", v, "stack", string(debug.Stack()))
		}
		f.finish(fc, e)
	}()
	f.started = f.p.Now()
	e = f.walk(fc)
}

// walk is steps 3 to 8 of a connection's life, in order.
func (f *flow) walk(c *flowConn) end {
	if why := f.p.Alive(); why != gate.ReasonNone {
		return end{why: why}
	}
	if f.connect.Port == 0 { // the inside of a CONNECT has its connection's slot
		if why := f.p.Limits.Connection(); why != gate.ReasonNone {
			return end{why: why}
		}
		f.slot = true
	}
	first, conn, err := hello.Peek(c.Conn, time.Now().Add(f.p.bounds.HelloTime))
	c.Conn = conn
	var why gate.Reason
	var detail string
	if err != nil {
		if first.Kind == hello.Silent && (errors.Is(err, io.EOF) || f.p.ctx.Err() != nil) {
			return end{} // a client that went away asked for nothing
		}
		why, detail = failure(err)
	}
	switch {
	case first.Kind == hello.SSH:
		return f.explain(c, gate.ReasonSSH)
	case first.Kind == hello.Git:
		return f.explain(c, gate.ReasonGitProtocol)
	case first.Kind == hello.TLS:
		return f.serveTLS(c, first.Hello, why, detail)
	case why != gate.ReasonNone:
		return end{why: why, detail: detail}
	case first.Kind == hello.HTTP:
		return f.serveClear(c)
	}
	return end{why: gate.ReasonProtocolUnknown}
}

// finish records a connection that nothing else recorded, and closes it unless the server has it.
func (f *flow) finish(c *flowConn, e end) {
	if e.kept {
		return
	}
	if e.why != gate.ReasonNone && !f.decided {
		rec := f.record(e.why)
		rec.Verdict, rec.Rule, rec.Detail = policy.Deny.String(), f.refusal.Rule, e.detail
		_ = f.p.Recorder.Append(rec)
	}
	_ = c.Close()
}

// serveTLS decides about a ClientHello; why is not none when it was refused already. A refused name is served too, with a
// certificate from a small budget, so that the client reads a reason instead of retrying for minutes.
func (f *flow) serveTLS(c *flowConn, h hello.ClientHello, why gate.Reason, detail string) end {
	f.scheme, f.name, f.port = gate.HTTPS, h.ServerName, f.targetPort()
	if why != gate.ReasonNone {
		if f.name = f.behind; f.name.IsZero() || why == gate.ReasonMalformedHello || why == gate.ReasonLimitTime {
			return end{why: why, detail: detail} // no name to explain it under
		}
	}
	judged := f.p.Policy()
	d := f.decideConnect(why, detail)
	if why := f.p.Limits.Handshake(f.p.Now()); why != gate.ReasonNone {
		return end{why: why}
	}
	if d.Verdict != policy.Allow {
		return f.refuseTLS(c, d)
	}
	if d.Mode == policy.Tunnel && h.ECH { // the name that counts cannot be seen
		return f.refuseTLS(c, policy.Decision{Reason: gate.ReasonEncryptedHello, Rule: d.Rule})
	}
	if d.Mode == policy.Tunnel {
		return f.tunnel(c, judged, d)
	}
	leaf, err := f.p.Minter.Leaf(f.name)
	if err != nil {
		return end{why: gate.ReasonBug, detail: "no certificate could be made"}
	}
	f.leaf = leaf
	return f.handshake(c)
}

func (f *flow) decideConnect(why gate.Reason, detail string) policy.Decision {
	switch {
	case why != gate.ReasonNone:
		f.detail = detail
		return policy.Decision{Reason: why}
	case f.port == 0:
		return policy.Decision{Reason: gate.ReasonDirectToListener}
	case !f.agrees(f.name):
		f.detail = "the connection was made for " + f.expected().String() + " and its SNI names " + f.name.String()
		return policy.Decision{Reason: gate.ReasonAuthorityMismatch}
	}
	return f.p.decide(f.connectAction())
}

func (f *flow) connectAction() policy.Action {
	return policy.Action{Kind: policy.Connect, Scheme: gate.HTTPS, Host: f.name, Port: f.port}
}

// refuseTLS completes the handshake only to deliver the refusal, as long as the budget for that lasts.
func (f *flow) refuseTLS(c *flowConn, d policy.Decision) end {
	f.refusal = d
	leaf, err := f.p.Minter.RefusalLeaf(f.name)
	if err != nil {
		return end{why: d.Reason, detail: "closed without explanation: too many refused names"}
	}
	f.leaf = leaf
	return f.handshake(c)
}

// handshake completes TLS and hands the connection to the HTTP server.
func (f *flow) handshake(c *flowConn) end {
	conf := f.p.tls
	if f.p.HTTP1Only(f.name) {
		conf = f.p.tls1
	}
	t := tls.Server(c, conf)
	ctx, cancel := context.WithTimeout(f.p.ctx, f.p.bounds.HelloTime)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		if f.refusal.Reason != gate.ReasonNone {
			return end{why: f.refusal.Reason, detail: untrusting(err)}
		}
		return end{why: gate.ReasonHandshakeFailed, detail: untrusting(err)}
	}
	_ = c.SetDeadline(time.Time{})
	if t.ConnectionState().NegotiatedProtocol == "h2" {
		return f.hand(t)
	}
	return f.hand(f.strict(t))
}

// serveClear hands a cleartext connection to the HTTP server: plain http, or a client that speaks to an explicit proxy.
func (f *flow) serveClear(c *flowConn) end {
	f.scheme, f.port = gate.HTTP, f.targetPort()
	_ = c.SetDeadline(time.Time{})
	return f.hand(f.strict(c))
}

// strict puts the HTTP/1.1 filter between the connection and the server.
func (f *flow) strict(c net.Conn) net.Conn {
	l := f.p.bounds
	f.filter = h1.NewConn(c, h1.Limits{Header: l.Header, HeaderTime: l.HeaderTime, Progress: l.Progress,
		AllowConnect: f.scheme == gate.HTTP && f.connect.Port == 0})
	return f.filter
}

func (f *flow) hand(c net.Conn) end {
	f.handed.Store(true)
	if !f.p.feed.hand(c) {
		f.handed.Store(false)
		return end{why: gate.ReasonSessionEnded}
	}
	return end{kept: true}
}

// agrees reports whether a name is the one that the CONNECT and the address were given for, where there was one.
func (f *flow) agrees(h gate.Host) bool {
	e := f.expected()
	return e.IsZero() || e == h
}

// expected is the name that the connection was made for; zero when only the client's word says it.
func (f *flow) expected() gate.Host {
	if !f.connect.Host.IsZero() {
		return f.connect.Host
	}
	return f.behind
}

func (f *flow) targetPort() gate.Port {
	if f.connect.Port != 0 {
		return f.connect.Port
	}
	return gate.Port(f.dst.Port())
}

// explain answers a protocol that is not HTTP in its own words.
func (f *flow) explain(c *flowConn, why gate.Reason) end {
	_ = c.SetDeadline(time.Now().Add(f.p.bounds.HelloTime))
	_ = refuse.Raw(c, refuse.Refusal{Reason: why, Host: f.behind.String()})
	return end{why: why}
}

// ended runs once, when the connection is closed by whoever held it: the slot is given back, and a refusal that no request
// was there to be told is recorded.
func (f *flow) ended() {
	if f.slot {
		f.p.Limits.ConnectionDone()
	}
	if f.handed.Load() && f.refusal.Reason != gate.ReasonNone && f.requests.Load() == 0 {
		rec := f.record(f.refusal.Reason)
		rec.Verdict, rec.Rule, rec.Detail = policy.Deny.String(), f.refusal.Rule, f.detail
		if rec.Detail == "" {
			rec.Detail = "the client left without a request"
		}
		_ = f.p.Recorder.Append(rec)
	}
}

func (f *flow) record(why gate.Reason) *record.Record {
	return &record.Record{Kind: record.Decision, Event: newEvent(), Session: f.p.Session, Reason: why, Action: "connect",
		Scheme: f.scheme.String(), Host: f.target(), Port: uint16(f.targetPort())}
}

// target is the best name that is known for where the connection goes.
func (f *flow) target() string {
	switch {
	case !f.name.IsZero():
		return f.name.String()
	case !f.expected().IsZero():
		return f.expected().String()
	case f.dst.IsValid():
		return f.dst.Addr().String()
	}
	return ""
}

// untrusting recognises how TLS stacks say that they do not trust the session's CA.
func untrusting(err error) string {
	var remote *net.OpError
	if errors.As(err, &remote) && remote.Op == "remote error" {
		// The alert's type is crypto/tls's own: bad_certificate, certificate_unknown, unknown_ca (RFC 8446 §6.2).
		for _, code := range [...]tls.AlertError{42, 46, 48} {
			if remote.Err.Error() == code.Error() {
				return "the client does not trust the session CA; `postern doctor` shows how each runtime is told"
			}
		}
	}
	return "the client broke off the handshake; it may not trust the session CA, or it pins another"
}

func failure(err error) (gate.Reason, string) {
	var f *gate.Failure
	if errors.As(err, &f) {
		return f.Reason, f.Detail
	}
	return gate.ReasonUpstream, ""
}

// flowConn is the connection with its flow, so that the TLS and HTTP servers can be asked which flow they serve.
type flowConn struct {
	net.Conn
	arrived net.Conn // the connection as it came
	flow    *flow
	once    atomic.Bool
}

func (c *flowConn) Close() error {
	if c.once.Swap(true) {
		return net.ErrClosed
	}
	err := c.Conn.Close()
	c.flow.ended()
	c.flow.p.depart(c)
	return err
}

// CloseWrite ends the sending half, so that the last words are read before the connection goes.
func (c *flowConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.New("close write: the connection has no halves")
}

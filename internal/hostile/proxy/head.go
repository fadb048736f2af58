package proxy

import (
	"net/http"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

// readHead turns the request's head into the one action that policy, egress and audit all read, or refuses it.
func (x *exchange) readHead() bool {
	r := x.r
	x.action = policy.Action{Kind: policy.Request, Scheme: x.f.scheme}
	if x.f.filter != nil {
		if v := x.f.filter.Violation(r.Method); v != nil {
			x.faulty = true
			x.action.Host, x.action.Port = x.f.name, x.f.targetPort()
			return x.deny(v.Reason, v.Detail)
		}
	} else if headSize(r) > x.p.bounds.Header {
		return x.deny(gate.ReasonLimitHeader, "")
	}
	if r.Method == http.MethodConnect {
		return true // not a request that is forwarded; connects takes it
	}
	a, absolute, ok := x.authority()
	if !ok {
		return false
	}
	x.action.Host, x.action.Port = a.Host, a.Port
	method, err := gate.ParseMethod(r.Method)
	if err != nil {
		return x.malformed(err)
	}
	x.action.Method = method
	target := r.RequestURI
	if absolute {
		target = afterAuthority(target)
	}
	if x.action.Path, err = gate.ParsePath(target); err != nil {
		return x.malformed(err)
	}
	if name := reroutes(r.Header); name != "" {
		return x.deny(gate.ReasonMalformedRequest, "the field "+name+" asks for something else than the request itself")
	}
	x.action.Upgrade = asksWebSocket(r)
	return true
}

// headSize is the size of an HTTP/2 request's head as it was decoded (RFC 9113 §10.5.1). The filter has counted HTTP/1.1's.
func headSize(r *http.Request) int {
	const perField = 32
	n := len(r.Method) + len(r.Host) + len(r.RequestURI)
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v) + perField
		}
	}
	return n
}

// authority is the one destination that every part of the request must agree on (RFC 9110 §7.2, §7.4).
func (x *exchange) authority() (a gate.Authority, absolute, ok bool) {
	r, f := x.r, x.f
	absolute = r.ProtoMajor == 1 && !strings.HasPrefix(r.RequestURI, "/") && r.RequestURI != "*"
	if absolute && (f.scheme != gate.HTTP || r.URL.Scheme != "http" || r.URL.User != nil) {
		return a, absolute, x.deny(gate.ReasonMalformedRequest, "an absolute request target is for http:// through a proxy")
	}
	if extra := r.Header.Values("Host"); len(extra) > 0 && (len(extra) > 1 || extra[0] != r.Host) { // HTTP/2 may carry both
		return a, absolute, x.deny(gate.ReasonAuthorityMismatch, "Host and :authority differ")
	}
	r.Header.Del("Host")
	a, err := gate.ParseAuthority(r.Host, f.scheme.DefaultPort())
	if err != nil {
		return a, absolute, x.malformed(err)
	}
	x.action.Host, x.action.Port = a.Host, a.Port // so that the refusal and the record name it
	switch {
	case f.scheme == gate.HTTPS && (a.Host != f.name || a.Port != f.port):
	case f.connect.Port != 0 && a != f.connect:
	case absolute:
		return a, absolute, true
	case f.scheme == gate.HTTP && !f.dst.IsValid() && f.connect.Port == 0:
		return a, absolute, x.deny(gate.ReasonDirectToListener, "this is a proxy: send CONNECT or an absolute request target")
	case !f.agrees(a.Host) || a.Port != f.port:
	default:
		return a, absolute, true
	}
	detail := f.detail
	if detail == "" {
		detail = "the connection was made for " + f.target() + ":" + f.targetPort().String()
	}
	return a, absolute, x.deny(gate.ReasonAuthorityMismatch, detail)
}

func (x *exchange) malformed(err error) bool {
	p, ok := err.(*gate.ParseError)
	switch {
	case !ok:
		return x.deny(gate.ReasonMalformedRequest, "")
	case p.Reason == gate.ReasonHostIsAddress:
		return x.deny(p.Reason, "") // the reason says it all
	}
	return x.deny(p.Reason, p.Error())
}

// afterAuthority is what follows the authority of an absolute target, "/" when nothing does.
func afterAuthority(target string) string {
	_, rest, _ := strings.Cut(target, "://")
	i := strings.IndexAny(rest, "/?")
	if i < 0 {
		return "/"
	}
	if rest[i] == '?' {
		return "/" + rest[i:]
	}
	return rest[i:]
}

// asksWebSocket reports whether the request asks to become a WebSocket (RFC 6455 §4.1). Every other upgrade, h2c among them, is
// dropped with the hop-by-hop fields, as RFC 9110 §7.8 allows.
func asksWebSocket(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.Method == http.MethodGet && r.ContentLength == 0 &&
		hasToken(r.Header["Connection"], "upgrade") && hasToken(r.Header["Upgrade"], "websocket")
}

func hasToken(values []string, token string) bool {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// connects answers an explicit CONNECT (RFC 9110 §9.3.6): the inside of the tunnel is a flow of its own, decided by its own ClientHello.
// It returns true for every other method.
func (x *exchange) connects() bool {
	if x.r.Method != http.MethodConnect {
		return true
	}
	if x.f.scheme != gate.HTTP || x.f.connect.Port != 0 || x.r.ProtoMajor != 1 {
		return x.deny(gate.ReasonMethodUnknown, "CONNECT is for a plain connection to a proxy")
	}
	a, err := gate.ParseAuthority(x.r.RequestURI, 0)
	if err == nil && a.Port == 0 {
		return x.deny(gate.ReasonMalformedAuthority, "CONNECT needs a port")
	}
	if err != nil {
		return x.malformed(err)
	}
	x.action.Host, x.action.Port = a.Host, a.Port
	conn, ok := x.hijack()
	if !ok {
		return false
	}
	x.handedOn = true // what happens inside is recorded there
	if _, err := conn.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		_ = conn.Close()
		return false
	}
	(&flow{p: x.p, dst: x.f.dst, connect: a}).serve(conn)
	return false
}

package egress

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

// maxInterim is how many 1xx answers an upstream may send before the real one.
const maxInterim = 16

// RoundTrip sends r to the permit's destination over a connection of this session and this credential (the zero name: none), and
// returns the answer. Scheme, host and port of r are ignored; its target must be in origin form. A redirect is an answer.
// A request of HTTP/1 leaves as HTTP/1.1; one of HTTP/2 as HTTP/2 where the upstream offers it: what a client could not use natively it
// is not given, and HTTP/1.1 costs a third less.
//
// Where r asks for an upgrade and the upstream agrees, the answer is a 101 whose Body is an io.ReadWriteCloser.
//
// r is not changed. Of its context's httptrace hooks only Got1xxResponse and Got100Continue are called: the others see
// headers as they leave, credential and all. The answer's Request is r. The error is a *gate.Failure, also that of reading the body.
func (s *Session) RoundTrip(p policy.Permit, credential gate.CredentialName, r *http.Request) (*http.Response, error) {
	t, out, done, err := s.prepare(p, credential, r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as http.RoundTripper promises; further down the transport does
		}
		return nil, err
	}
	resp, err := t.RoundTrip(out)
	if err != nil {
		done()
		return nil, s.ended(exchangeFailure(r.Context(), err))
	}
	resp.Request, resp.TLS = r, nil
	b := body{resp.Body, s, r.Context(), done}
	if w, ok := resp.Body.(io.Writer); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body = &duplex{b, w}
	} else {
		resp.Body = &b
	}
	return resp, nil
}

// prepare checks everything that can be checked before a connection is needed, and makes of r the request that leaves.
func (s *Session) prepare(p policy.Permit, credential gate.CredentialName, r *http.Request) (*http.Transport, *http.Request, func(), error) {
	to, err := s.destination(p, policy.Request)
	if err != nil {
		return nil, nil, nil, err
	}
	if !credential.IsZero() && p.Scheme() != gate.HTTPS {
		return nil, nil, nil, fail(gate.ReasonCredentialClear, "", nil)
	}
	if _, err := gate.ParseMethod(r.Method); err != nil {
		return nil, nil, nil, fail(gate.ReasonMethodUnknown, "", err)
	}
	target, err := aim(p.Scheme(), to.Authority, r.URL)
	if err != nil {
		return nil, nil, nil, err
	}
	t, err := s.pool(poolKey{credential, to.inside, r.ProtoMajor < 2 || upgrades(r.Header)})
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, done := watch(r.Context())
	out := r.WithContext(context.WithValue(ctx, permitKey{}, p))
	out.URL, out.Host, out.RequestURI = target, target.Host, ""
	out.GetBody, out.Response, out.Close = nil, nil, false
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header = out.Header.Clone()
		if out.Header == nil {
			out.Header = http.Header{}
		}
		out.Header["User-Agent"] = []string{""} // or net/http would add its own
	}
	return t, out, done, nil
}

// aim is where a request goes: the permit's scheme, host and port, and the request's own target as its bytes stand.
func aim(scheme gate.Scheme, to gate.Authority, u *url.URL) (*url.URL, error) {
	host := to.Host.String()
	if to.Port != scheme.DefaultPort() {
		host = to.String()
	}
	if u == nil {
		return nil, fail(gate.ReasonMalformedPath, "", nil)
	}
	out := &url.URL{Scheme: scheme.String(), Host: host, Opaque: u.Opaque, Path: u.Path, RawPath: u.RawPath, ForceQuery: u.ForceQuery, RawQuery: u.RawQuery}
	if line := out.RequestURI(); line[0] != '/' || strings.HasPrefix(line, "//") || strings.Contains(u.Opaque, "?") {
		return nil, fail(gate.ReasonMalformedPath, "the request's target is not in origin form", nil)
	}
	return out, nil
}

// upgrades reports whether a request asks to leave HTTP (RFC 9110 §7.8).
func upgrades(h http.Header) bool {
	if h.Get("Upgrade") == "" {
		return false
	}
	for _, v := range h["Connection"] {
		for token := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(textproto.TrimString(token), "upgrade") {
				return true
			}
		}
	}
	return false
}

// watch is the context under which a request leaves: it ends when ctx does or done is called, and carries of ctx's trace only the two hooks
// that see nothing but the upstream's interim answers, as many as maxInterim.
func watch(ctx context.Context) (out context.Context, done func()) {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		return ctx, func() {}
	}
	out, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, cancel)
	quiet := &httptrace.ClientTrace{Got100Continue: trace.Got100Continue}
	seen := 0
	if trace.Got1xxResponse != nil {
		quiet.Got1xxResponse = func(code int, h textproto.MIMEHeader) error {
			if seen++; seen > maxInterim {
				return errInterim
			}
			return trace.Got1xxResponse(code, h)
		}
	}
	return httptrace.WithClientTrace(out, quiet), func() { stop(); cancel() }
}

var errInterim = errors.New("more interim answers than a server sends")

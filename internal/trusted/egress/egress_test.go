package egress

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"strings"
	"testing"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

func contains(s, word string) bool { return strings.Contains(s, word) }

func TestDestinationComesFromThePermit(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s %q", r.Host, r.TLS.ServerName, r.URL.RequestURI(), r.Header["User-Agent"])
	})
	s := reaching(t, a, srv, func(c *Config) {
		c.Upstreams[at(t, "api.example.com", 8443)] = Upstream{Address: srv.addr()}
	})
	r := request(t, http.MethodGet, "/a%2Fb/c?d=e%20f", nil)
	r.Host = "evil.example"
	resp, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, r)
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, resp); got != `api.example.com api.example.com /a%2Fb/c?d=e%20f []` {
		t.Error(got)
	}
	if resp.Request != r || r.Host != "evil.example" || r.URL.Host != "elsewhere.example" {
		t.Error("the caller's request was changed or not returned")
	}
	p := permit(t, policy.Request, sessionID(1), "api.example.com", func(r *policy.Rule) { r.Port = 8443 })
	if resp, err = s.RoundTrip(p, gate.CredentialName{}, get(t)); err != nil {
		t.Fatal(err)
	}
	if got := read(t, resp); !strings.HasPrefix(got, "api.example.com:8443 ") {
		t.Error(got)
	}
}

func TestTargetTravelsByteForByte(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RequestURI) })
	s := reaching(t, a, srv, nil)
	for _, target := range []string{"/", "/a[b]|c", "/%7euser", "/a%2fb", "/x;y=1,2", "/é"} {
		r := get(t)
		r.URL = &url.URL{Opaque: target, RawQuery: "q=a|b"}
		resp, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, r)
		if err != nil {
			t.Errorf("%s: %v", target, err)
			continue
		}
		if got := read(t, resp); got != target+"?q=a|b" {
			t.Errorf("%s arrived as %s", target, got)
		}
	}
	for _, bad := range []string{"http://evil.example/", "//evil.example/", "*", "evil.example:443", "/a?b"} {
		r := get(t)
		r.URL = &url.URL{Opaque: bad}
		if _, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, r); reason(t, err) != gate.ReasonMalformedPath {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestWithoutItsPermitNothingIsDialled(t *testing.T) {
	d := &dials{}
	s := begin(t, Config{Resolver: resolves("1.1.1.1"), Dial: d.dial})
	intercepted := permit(t, policy.Connect, sessionID(1), "api.example.com", nil)
	tunnel := permit(t, policy.Connect, sessionID(1), "api.example.com", tunnelRule)
	foreign := permit(t, policy.Request, sessionID(2), "api.example.com", nil)
	clear := permit(t, policy.Request, sessionID(1), "api.example.com", func(r *policy.Rule) { r.Scheme = gate.HTTP })
	for name, p := range map[string]policy.Permit{"zero": {}, "connect": intercepted, "tunnel": tunnel, "foreign session": foreign} {
		if _, err := s.RoundTrip(p, gate.CredentialName{}, get(t)); reason(t, err) != gate.ReasonBug {
			t.Errorf("%s permit for a request: %v", name, err)
		}
	}
	for name, p := range map[string]policy.Permit{"zero": {}, "request": asRequest(t, "api.example.com"), "intercept": intercepted,
		"foreign session": permit(t, policy.Connect, sessionID(2), "api.example.com", tunnelRule)} {
		if _, err := s.Tunnel(t.Context(), p); reason(t, err) != gate.ReasonBug {
			t.Errorf("%s permit for a tunnel: %v", name, err)
		}
	}
	if _, err := s.RoundTrip(clear, credential(t, "key"), get(t)); reason(t, err) != gate.ReasonCredentialClear {
		t.Errorf("a credential over cleartext: %v", err)
	}
	for _, method := range []string{"TRACE", "CONNECT", "TRACK", "get", ""} {
		r := get(t)
		r.Method = method
		if _, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, r); reason(t, err) != gate.ReasonMethodUnknown {
			t.Errorf("%q: %v", method, err)
		}
	}
	// What the transport asks for must be what the permit says.
	ctx := context.WithValue(t.Context(), permitKey{}, asRequest(t, "api.example.com"))
	for _, addr := range []string{"evil.example:443", "api.example.com:80", "1.1.1.1:443"} {
		if _, err := s.dial(ctx, addr, []string{"h2"}); reason(t, err) != gate.ReasonBug {
			t.Errorf("dial %s: %v", addr, err)
		}
	}
	if _, err := s.dial(ctx, "api.example.com:443", nil); reason(t, err) != gate.ReasonBug {
		t.Errorf("cleartext dial against an https permit: %v", err)
	}
	if n := len(d.list()); n != 0 {
		t.Errorf("%d dials", n)
	}
}

func TestRedirectsAreAnswers(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://evil.example/", http.StatusTemporaryRedirect)
	})
	s := reaching(t, a, srv, nil)
	resp, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t))
	if err != nil {
		t.Fatal(err)
	}
	read(t, resp)
	if resp.StatusCode != http.StatusTemporaryRedirect || resp.Header.Get("Location") != "https://evil.example/" {
		t.Errorf("%s %s", resp.Status, resp.Header)
	}
}

func TestHTTP2WhereOfferedAndHTTP1ForUpgrades(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			w.Header().Set("Trailer", "X-End")
			io.WriteString(w, r.Proto)
			w.Header().Set("X-End", "done")
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello ")
		rw.Flush()
		io.Copy(c, rw)
	})
	s := reaching(t, a, srv, nil)
	resp, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, resp); got != "HTTP/2.0" || resp.Trailer.Get("X-End") != "done" {
		t.Errorf("%s, trailer %v", got, resp.Trailer)
	}
	old := get(t)
	old.Proto, old.ProtoMajor, old.ProtoMinor = "HTTP/1.1", 1, 1
	if resp, err = s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, old); err != nil {
		t.Fatal(err)
	}
	if got := read(t, resp); got != "HTTP/1.1" {
		t.Errorf("a request of HTTP/1.1 left as %s", got)
	}
	up := get(t)
	up.Header.Set("Connection", "keep-alive, Upgrade")
	up.Header.Set("Upgrade", "echo")
	if resp, err = s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, up); err != nil {
		t.Fatal(err)
	}
	rw, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%s with a %T", resp.Status, resp.Body)
	}
	if _, err := io.WriteString(rw, "there"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 11)
	if _, err := io.ReadFull(rw, b); err != nil || string(b) != "hello there" {
		t.Errorf("%q %v", b, err)
	}
	rw.Close()
}

func TestConnectionsAreSharedWithinOneSessionAndCredentialOnly(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	c := Config{Roots: a.pool, Upstreams: map[gate.Authority]Upstream{at(t, "api.example.com", 443): {Address: srv.addr()}}}
	e := newEgress(t, c)
	one, two := e.Session(sessionID(1)), e.Session(sessionID(2))
	defer one.Close()
	defer two.Close()
	inside := func(r *policy.Rule) { r.Address = netip.MustParsePrefix("10.0.0.0/8") }
	for i, step := range []struct {
		s     *Session
		p     policy.Permit
		cred  string
		conns int64
	}{
		{one, asRequest(t, "api.example.com"), "a", 1},
		{one, asRequest(t, "api.example.com"), "a", 1},
		{one, asRequest(t, "api.example.com"), "b", 2},
		{one, asRequest(t, "api.example.com"), "", 3},
		{one, permit(t, policy.Request, sessionID(1), "api.example.com", inside), "a", 4},
		{two, permit(t, policy.Request, sessionID(2), "api.example.com", nil), "a", 5},
		{one, asRequest(t, "api.example.com"), "b", 5},
	} {
		var name gate.CredentialName
		if step.cred != "" {
			name = credential(t, step.cred)
		}
		resp, err := step.s.RoundTrip(step.p, name, get(t))
		if err != nil {
			t.Fatal(err)
		}
		read(t, resp)
		if n := srv.conns.Load(); n != step.conns {
			t.Errorf("step %d: %d connections, want %d", i, n, step.conns)
		}
	}
}

func TestTracesSeeInterimAnswersOnly(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "ok")
	})
	s := reaching(t, a, srv, nil)
	hints := 0
	r := get(t)
	r.Header.Set("Authorization", "something")
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		WroteHeaderField: func(key string, _ []string) { t.Errorf("the trace sees %s as it leaves", key) },
		GetConn:          func(string) { t.Error("the trace sees connections") },
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			if code == http.StatusEarlyHints && h.Get("Link") == "</style.css>" {
				hints++
			}
			return nil
		},
	})
	resp, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, r.WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, resp); got != "ok" || hints != 1 {
		t.Errorf("%q, %d hints", got, hints)
	}
}

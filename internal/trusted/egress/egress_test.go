package egress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

func TestOnlyPublicAddressesAreDialled(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	own := func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("9.9.9.9")}, nil }
	for _, c := range []struct {
		name   string
		answer []string
		inside string
		want   string // the address dialled, "" for none
	}{
		{"public", []string{"1.1.1.1"}, "", "1.1.1.1:443"},
		{"loopback", []string{"127.0.0.1", "::1"}, "", ""},
		{"private", []string{"10.0.0.1", "192.168.0.1", "fd00::1"}, "", ""},
		{"metadata", []string{"169.254.169.254", "fd00:ec2::254", "168.63.129.16"}, "", ""},
		{"mapped", []string{"::ffff:127.0.0.1"}, "", ""},
		{"mapped public", []string{"::ffff:1.1.1.1"}, "", "1.1.1.1:443"},
		{"mixed", []string{"127.0.0.1", "1.1.1.1", "10.0.0.1"}, "", "1.1.1.1:443"},
		{"own", []string{"9.9.9.9"}, "", ""},
		{"admitted", []string{"192.168.0.1", "10.1.2.3"}, "10.1.0.0/16", "10.1.2.3:443"},
		{"admitted own", []string{"9.9.9.9"}, "9.9.9.0/24", "9.9.9.9:443"},
		{"not admitted", []string{"10.2.2.3"}, "10.1.0.0/16", ""},
		{"zone", []string{"fe80::1%lo"}, "fe80::/10", ""},
	} {
		d := &dials{to: srv.addr()}
		s := begin(t, Config{Roots: a.pool, Resolver: resolves(c.answer...), Dial: d.dial, Own: own})
		p := permit(t, policy.Request, sessionID(1), "api.example.com", func(r *policy.Rule) {
			if c.inside != "" {
				r.Address = netip.MustParsePrefix(c.inside)
			}
		})
		resp, err := s.RoundTrip(p, gate.CredentialName{}, get(t))
		seen := d.list()
		if c.want == "" {
			if reason(t, err) != gate.ReasonAddressGuard || len(seen) != 0 {
				t.Errorf("%s: %v, dialled %v", c.name, err, seen)
			}
			continue
		}
		if err != nil || len(seen) != 1 || seen[0].String() != c.want {
			t.Errorf("%s: %v, dialled %v, want %s", c.name, err, seen, c.want)
			continue
		}
		read(t, resp)
	}
}

func TestRebindingMeetsTheCheckedAddress(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		io.WriteString(w, "ok")
	})
	d, names := &dials{to: srv.addr()}, resolves("1.1.1.1").then("127.0.0.1").then("1.0.0.1").then("10.0.0.1")
	s := begin(t, Config{Roots: a.pool, Resolver: names, Dial: d.dial})
	up := func() *http.Request { // over HTTP/1.1, so that every request needs a connection
		r := get(t)
		r.Header.Set("Connection", "upgrade")
		r.Header.Set("Upgrade", "none")
		return r
	}
	for i, want := range []gate.Reason{gate.ReasonNone, gate.ReasonAddressGuard, gate.ReasonNone, gate.ReasonAddressGuard} {
		resp, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, up())
		if got := reason(t, err); got != want {
			t.Errorf("request %d: %v", i, err)
		}
		if err == nil {
			read(t, resp)
		}
	}
	if got := fmt.Sprint(d.list()); got != "[1.1.1.1:443 1.0.0.1:443]" {
		t.Errorf("dialled %s", got)
	}
	if got := fmt.Sprint(names.asked); got != "[api.example.com api.example.com api.example.com api.example.com]" {
		t.Errorf("asked for %s: one lookup a connection", got)
	}
}

func TestResolverFailures(t *testing.T) {
	for _, err := range []error{
		&net.DNSError{Err: "no such host", Name: "api.example.com", Server: "10.0.0.53:53", IsNotFound: true},
		&net.DNSError{Err: "i/o timeout", Name: "api.example.com", Server: "10.0.0.53:53", IsTimeout: true},
		&net.DNSError{Err: "server misbehaving", Name: "api.example.com", Server: "10.0.0.53:53"},
		errors.New("reading resolv.conf"),
	} {
		d, names := &dials{}, resolves("1.1.1.1")
		names.err = err
		s := begin(t, Config{Resolver: names, Dial: d.dial})
		if _, got := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t)); reason(t, got) != gate.ReasonResolve || !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
	s := begin(t, Config{Resolver: resolves(), Dial: new(dials).dial})
	if _, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t)); reason(t, err) != gate.ReasonResolve {
		t.Errorf("no answer: %v", err)
	}
	s = begin(t, Config{Resolver: resolves("1.1.1.1"), Own: func() ([]netip.Addr, error) { return nil, errors.New("no netlink") }})
	if _, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t)); reason(t, err) != gate.ReasonAddressGuard {
		t.Errorf("own addresses unknown: %v", err)
	}
}

func TestAddressesAreTriedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		var tried []string
		e := &Egress{Config: Config{DialTime: 10 * time.Second, Dial: func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			mu.Lock()
			tried = append(tried, fmt.Sprint(a.Addr(), " after ", time.Since(start)))
			mu.Unlock()
			switch a.Addr().String() {
			case "1.0.0.1": // silent
				<-ctx.Done()
				return nil, ctx.Err()
			case "1.0.0.2":
				return nil, errors.New("refused")
			}
			c, other := net.Pipe()
			other.Close()
			return c, nil
		}}}
		addrs := []netip.AddrPort{}
		for _, s := range []string{"1.0.0.1", "1.0.0.2", "1.0.0.3"} {
			addrs = append(addrs, netip.AddrPortFrom(netip.MustParseAddr(s), 443))
		}
		c, err := e.dialAny(t.Context(), addrs)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if got := fmt.Sprint(tried); got != "[1.0.0.1 after 0s 1.0.0.2 after 250ms 1.0.0.3 after 250ms]" {
			t.Error(got)
		}
		if _, err := e.dialAny(t.Context(), addrs[:1]); reason(t, err) != gate.ReasonDial || time.Since(start) != 10*time.Second+250*time.Millisecond {
			t.Errorf("silent host: %v after %v", err, time.Since(start))
		}
		if _, err := e.dialAny(t.Context(), addrs[1:2]); reason(t, err) != gate.ReasonDial {
			t.Errorf("refusing host: %v", err)
		}
	})
}

func TestFamiliesAlternate(t *testing.T) {
	var in []netip.AddrPort
	for _, s := range []string{"[2606::1]:1", "[2606::2]:1", "[2606::3]:1", "1.0.0.1:1", "1.0.0.2:1"} {
		in = append(in, netip.MustParseAddrPort(s))
	}
	if got := fmt.Sprint(interleave(in)); got != "[[2606::1]:1 1.0.0.1:1 [2606::2]:1 1.0.0.2:1 [2606::3]:1]" {
		t.Error(got)
	}
}

func TestNothingIsSentToAnUpstreamThatDoesNotVerify(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }
	client := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	for name, crt := range map[string]tls.Certificate{
		"wrong name":  a.issue(t, nil, "other.example.com"),
		"parent name": a.issue(t, nil, "example.com"),
		"stranger":    stranger.issue(t, nil, "api.example.com"),
		"expired":     a.issue(t, expired, "api.example.com"),
		"client only": a.issue(t, client, "api.example.com"),
		"self-signed": selfSigned(t, "api.example.com", 0),
		"many names":  selfSigned(t, "api.example.com", 10_000),
	} {
		var served atomic.Int64
		srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) { served.Add(1) })
		s := reaching(t, a, srv, nil)
		start := time.Now()
		_, err := s.RoundTrip(asRequest(t, "api.example.com"), credential(t, "key"), get(t))
		if reason(t, err) != gate.ReasonUpstreamTLS {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%s: refused after %v", name, took)
		}
		if served.Load() != 0 {
			t.Errorf("%s: a request arrived", name)
		}
	}
}

func selfSigned(t *testing.T, name string, more int) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name}}
	for i := range more {
		tmpl.DNSNames = append(tmpl.DNSNames, fmt.Sprintf("n%d.example", i))
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestRootsBelongToTheUpstreamTheyAreGivenFor(t *testing.T) {
	a, private := newAuthority(t), newAuthority(t)
	crt := private.issue(t, nil, "api.example.com", "other.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	s := begin(t, Config{Roots: a.pool, Upstreams: map[gate.Authority]Upstream{
		at(t, "api.example.com", 443):   {Address: srv.addr(), Roots: private.pool},
		at(t, "other.example.com", 443): {Address: srv.addr()},
	}})
	resp, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t))
	if err != nil {
		t.Fatal(err)
	}
	read(t, resp)
	if _, err := s.RoundTrip(asRequest(t, "other.example.com"), gate.CredentialName{}, get(t)); reason(t, err) != gate.ReasonUpstreamTLS {
		t.Errorf("a private root serves another name: %v", err)
	}
}

// raw is an upstream made of one function for each connection.
func raw(t *testing.T, f func(net.Conn)) *server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			f(c)
			c.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return &server{at: netip.MustParseAddrPort(ln.Addr().String())}
}

func TestFaultyUpstreams(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	wait := func(c net.Conn) { io.Copy(io.Discard, c) }
	over := func(f func(*tls.Conn)) func(net.Conn) {
		return func(c net.Conn) {
			s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{crt}})
			if s.Handshake() == nil {
				f(s)
			}
		}
	}
	say := func(text string) func(net.Conn) {
		return over(func(c *tls.Conn) {
			c.Read(make([]byte, 4096))
			io.WriteString(c, text)
		})
	}
	for _, c := range []struct {
		name string
		f    func(net.Conn)
		want gate.Reason
	}{
		{"silent before TLS", wait, gate.ReasonUpstreamTimeout},
		{"silent after TLS", over(func(c *tls.Conn) { wait(c) }), gate.ReasonUpstreamTimeout},
		{"no TLS", func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); wait(c) }, gate.ReasonUpstream},
		{"closes at once", func(net.Conn) {}, gate.ReasonUpstream},
		{"no HTTP", say("SSH-2.0-x\r\n"), gate.ReasonUpstream},
		{"closes after the request", say(""), gate.ReasonUpstream},
		{"huge head", say("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 300<<10) + "\r\n\r\n"), gate.ReasonUpstream},
		{"endless interim answers", say(strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 100)), gate.ReasonUpstream},
	} {
		srv := raw(t, c.f)
		s := reaching(t, a, srv, func(c *Config) { c.TLSTime, c.AnswerTime = 100*time.Millisecond, 100*time.Millisecond })
		r := get(t)
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { return nil }})
		if _, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, r.WithContext(ctx)); reason(t, err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
		s.Close()
	}
}

func TestBrokenBodyIsAFailureToo(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	s := reaching(t, a, srv, nil)
	resp, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if string(b) != "half" || reason(t, err) != gate.ReasonUpstream {
		t.Errorf("%q, %v", b, err)
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

func TestGivingUpARequestEndsIt(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	arrived, gone := make(chan struct{}), make(chan struct{})
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(gone)
	})
	s := reaching(t, a, srv, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if _, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t).WithContext(ctx)); reason(t, err) != gate.ReasonUpstream {
		t.Error(err)
	}
	<-gone
}

func TestCloseCutsEverything(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	stuck := make(chan struct{})
	c := Config{Roots: a.pool, Resolver: resolves("1.1.1.1"),
		Upstreams: map[gate.Authority]Upstream{at(t, "api.example.com", 443): {Address: srv.addr()}},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			if to == srv.addr() {
				return dialTCP(ctx, to)
			}
			close(stuck)
			<-ctx.Done()
			return nil, ctx.Err()
		}}
	e := newEgress(t, c)
	s := e.Session(sessionID(1))
	resp, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	tunnel, err := s.Tunnel(t.Context(), permit(t, policy.Connect, sessionID(1), "api.example.com", tunnelRule))
	if err != nil {
		t.Fatal(err)
	}
	dialling := make(chan error, 1)
	go func() {
		_, err := s.RoundTrip(asRequest(t, "silent.example.com"), gate.CredentialName{}, get(t))
		dialling <- err
	}()
	<-stuck
	s.Close()
	if _, err := resp.Body.Read(make([]byte, 1)); reason(t, err) != gate.ReasonSessionEnded {
		t.Errorf("body: %v", err)
	}
	if _, err := tunnel.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("tunnel: %v", err)
	}
	if err := <-dialling; reason(t, err) != gate.ReasonSessionEnded {
		t.Errorf("dial: %v", err)
	}
	if _, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t)); reason(t, err) != gate.ReasonSessionEnded {
		t.Errorf("afterwards: %v", err)
	}
	if _, err := s.Tunnel(t.Context(), permit(t, policy.Connect, sessionID(1), "api.example.com", tunnelRule)); reason(t, err) != gate.ReasonSessionEnded {
		t.Errorf("afterwards: %v", err)
	}
	if n := len(e.slots) + len(s.slots); n != 0 {
		t.Errorf("%d slots are still held", n)
	}
	s.Close()
}

func TestConnectionsAreBounded(t *testing.T) {
	srv := raw(t, func(c net.Conn) {})
	s := begin(t, Config{MaxConns: 2, DialTime: 50 * time.Millisecond,
		Upstreams: map[gate.Authority]Upstream{at(t, "api.example.com", 443): {Address: srv.addr()}}})
	p := permit(t, policy.Connect, sessionID(1), "api.example.com", tunnelRule)
	first, err := s.Tunnel(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Tunnel(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Tunnel(t.Context(), p); reason(t, err) != gate.ReasonLimitConnections {
		t.Errorf("beyond the bound: %v", err)
	}
	first.Close()
	if _, err := s.Tunnel(t.Context(), p); err != nil {
		t.Errorf("a closed tunnel keeps its slot: %v", err)
	}
}

func TestIdleConnectionsMakeRoom(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com", "other.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	s := reaching(t, a, srv, func(c *Config) {
		c.MaxConns = 1
		c.Upstreams[at(t, "other.example.com", 443)] = Upstream{Address: srv.addr()}
	})
	for _, name := range []string{"api.example.com", "other.example.com", "api.example.com"} {
		resp, err := s.RoundTrip(asRequest(t, name), gate.CredentialName{}, get(t))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		read(t, resp)
	}
}

func TestEnvironmentChangesNothing(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	trap := serve(t, nil, func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s reached the proxy of the environment", r.Method, r.Host)
	})
	keys := t.TempDir() + "/keys"
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"} {
		t.Setenv(name, trap.URL)
	}
	t.Setenv("SSL_CERT_FILE", "/nonexistent")
	t.Setenv("SSL_CERT_DIR", "/nonexistent")
	t.Setenv("SSLKEYLOGFILE", keys)
	s := reaching(t, a, srv, nil)
	resp, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t))
	if err != nil {
		t.Fatal(err)
	}
	read(t, resp)
	roots, err := systemRoots()
	if err != nil || roots.Equal(x509.NewCertPool()) {
		t.Errorf("the system's roots hang on the environment: %v", err)
	}
	if _, err := ReadRoots(keys); err == nil {
		t.Error("session keys were logged")
	}
}

func TestConfigIsChecked(t *testing.T) {
	up := func(a gate.Authority, addr string) Config {
		u := Upstream{}
		if addr != "" {
			u.Address = netip.MustParseAddrPort(addr)
		}
		return Config{Upstreams: map[gate.Authority]Upstream{a: u}}
	}
	for name, c := range map[string]Config{
		"upstream without host":    up(gate.Authority{Port: 443}, "127.0.0.1:1"),
		"upstream without port":    up(at(t, "a.example", 0), "127.0.0.1:1"),
		"upstream without address": up(at(t, "a.example", 443), ""),
		"address without port":     up(at(t, "a.example", 443), "127.0.0.1:0"),
		"negative time":            {DialTime: -1},
		"negative bound":           {MaxConns: -1},
		"socks proxy":              {Proxy: mustURL(t, "socks5://proxy.example:1080")},
		"proxy with userinfo":      {Proxy: mustURL(t, "http://u:p@proxy.example:3128")},
		"proxy with path":          {Proxy: mustURL(t, "http://proxy.example:3128/x")},
		"proxy without host":       {Proxy: mustURL(t, "http://:3128")},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

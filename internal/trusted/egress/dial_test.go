package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

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

func TestSearchListsDoNotApply(t *testing.T) {
	names := resolves("1.1.1.1")
	if _, err := (absolute{names}).LookupNetIP(t.Context(), "ip", "api.example.com"); err != nil || names.asked[0] != "api.example.com." {
		t.Errorf("asked for %v, %v", names.asked, err)
	}
}

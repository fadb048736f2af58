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
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

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
		s := reaching(t, a, srv, func(conf *Config) {
			if c.want == gate.ReasonUpstreamTimeout {
				conf.TLSTime, conf.AnswerTime = 200*time.Millisecond, 200*time.Millisecond
			}
		})
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
	s := begin(t, Config{MaxConns: 2, DialTime: 300 * time.Millisecond,
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

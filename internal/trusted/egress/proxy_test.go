package egress

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/core/secret"
)

// connectProxy is a corporate proxy that leads every name to one address.
func connectProxy(t *testing.T, to netip.AddrPort, seen chan<- *http.Request) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		if r.Method != http.MethodConnect {
			t.Errorf("the proxy was asked to %s", r.Method)
			return
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		up, err := net.Dial("tcp", to.String())
		if err != nil {
			t.Error(err)
			return
		}
		defer up.Close()
		io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
		done := make(chan struct{})
		go func() { io.Copy(up, c); up.Close(); close(done) }()
		io.Copy(c, up)
		c.Close()
		<-done
	}
}

func TestCorporateProxyIsGivenTheName(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto+" "+r.Host) })
	seen := make(chan *http.Request, 8)
	random := make([]byte, 16)
	rand.Read(random)
	userinfo := "user:" + hex.EncodeToString(random)
	proxyCrt := a.issue(t, nil, "proxy.corp.example")
	for _, c := range []struct {
		scheme string
		crt    *tls.Certificate
	}{{"http", nil}, {"https", &proxyCrt}} {
		proxy := serve(t, nil, connectProxy(t, srv.addr(), seen))
		if c.crt != nil {
			proxy = serve(t, c.crt, connectProxy(t, srv.addr(), seen))
		}
		names, d := resolves("10.0.0.9"), &dials{to: proxy.addr()} // a private address is fine for the proxy itself
		s := begin(t, Config{Roots: a.pool, Resolver: names, Dial: d.dial, Proxy: mustURL(t, c.scheme+"://proxy.corp.example:3128"),
			ProxyCredential: secret.New("proxy", []byte(userinfo))})
		resp, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t))
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, resp); got != "HTTP/2.0 api.example.com" {
			t.Error(got)
		}
		r := <-seen
		if r.Host != "api.example.com:443" || r.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte(userinfo)) {
			t.Errorf("CONNECT %s with %d headers", r.Host, len(r.Header))
		}
		if len(names.asked) != 1 || names.asked[0] != "proxy.corp.example" || len(d.seen) != 1 || d.seen[0].String() != "10.0.0.9:3128" {
			t.Errorf("asked for %v, dialled %v", names.asked, d.seen)
		}
		tunnel, err := s.Tunnel(t.Context(), permit(t, policy.Connect, sessionID(1), "api.example.com", tunnelRule))
		<-seen
		if c.crt != nil {
			if reason(t, err) != gate.ReasonDial {
				t.Errorf("a tunnel inside the proxy's TLS: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		client := tls.Client(tunnel, &tls.Config{RootCAs: a.pool, ServerName: "api.example.com"})
		if err := client.Handshake(); err != nil {
			t.Errorf("TLS through the tunnel: %v", err)
		}
		s.Close()
	}
}

func TestProxyThatTerminatesTLSIsFound(t *testing.T) {
	a, corp := newAuthority(t), newAuthority(t)
	crt := corp.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) { t.Error("a request arrived") })
	proxy := serve(t, nil, connectProxy(t, srv.addr(), make(chan *http.Request, 8)))
	s := begin(t, Config{Roots: a.pool, Dial: (&dials{to: proxy.addr()}).dial, Proxy: mustURL(t, "http://127.0.0.1:3128")})
	if _, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t)); reason(t, err) != gate.ReasonUpstreamTLS {
		t.Error(err)
	}
}

func TestProxiesThatRefuse(t *testing.T) {
	for name, answer := range map[string]string{
		"password":   "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
		"forbidden":  "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
		"redirect":   "HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\n\r\n",
		"early data": "HTTP/1.1 200 OK\r\n\r\nhello",
		"no HTTP":    "hello\r\n\r\n",
		"huge head":  "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 20<<10) + "\r\n\r\n",
		"silence":    "",
	} {
		srv := raw(t, func(c net.Conn) {
			c.Read(make([]byte, 4096))
			io.WriteString(c, answer)
			io.Copy(io.Discard, c)
		})
		u := &url.URL{Scheme: "http", Host: srv.addr().String()}
		s := begin(t, Config{Proxy: u, TLSTime: 200 * time.Millisecond})
		if _, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t)); reason(t, err) != gate.ReasonDial {
			t.Errorf("%s: %v", name, err)
		}
		s.Close()
	}
}

func TestFixedAddressesBypassTheProxy(t *testing.T) {
	a := newAuthority(t)
	crt := a.issue(t, nil, "api.example.com")
	srv := serve(t, &crt, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	s := reaching(t, a, srv, func(c *Config) { c.Proxy = mustURL(t, "http://127.0.0.1:1") })
	resp, err := s.RoundTrip(asRequest(t, "api.example.com"), gate.CredentialName{}, get(t))
	if err != nil {
		t.Fatal(err)
	}
	read(t, resp)
}

package egress

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"postern/internal/core/gate"
)

// BenchmarkRoundTrip is one small request on a warm connection; "direct" is net/http alone, the difference is ours.
func BenchmarkRoundTrip(b *testing.B) {
	a := newAuthority(b)
	crt := a.issue(b, nil, "api.example.com")
	srv := serve(b, &crt, func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("ok")) })
	drain := func(resp *http.Response, err error) {
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	for _, name := range []string{"h1", "h2"} {
		srv := srv
		if name == "h1" {
			plain := httptest.NewUnstartedServer(srv.Config.Handler)
			plain.TLS = &tls.Config{Certificates: []tls.Certificate{crt}}
			plain.StartTLS()
			b.Cleanup(plain.Close)
			srv = &server{at: netip.MustParseAddrPort(plain.Listener.Addr().String())}
		}
		s := reaching(b, a, srv, nil)
		p := asRequest(b, "api.example.com")
		t, err := s.pool(poolKey{})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name+"/egress", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				drain(s.RoundTrip(p, gate.CredentialName{}, get(b)))
			}
		})
		direct := t.Clone()
		direct.DialTLSContext, direct.DialContext = nil, (&dials{to: srv.addr()}).dialName
		direct.TLSClientConfig = &tls.Config{RootCAs: a.pool}
		b.Run(name+"/direct", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := get(b)
				r.URL.Host = "api.example.com"
				drain(direct.RoundTrip(r))
			}
		})
		direct.CloseIdleConnections()
	}
}

// BenchmarkDownload reads 64 MiB a time.
func BenchmarkDownload(b *testing.B) {
	const size = 64 << 20
	a := newAuthority(b)
	crt := a.issue(b, nil, "api.example.com")
	chunk := make([]byte, 32<<10)
	srv := serve(b, &crt, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		for range size / len(chunk) {
			w.Write(chunk)
		}
	})
	s := reaching(b, a, srv, nil)
	buf := make([]byte, 32<<10)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := s.RoundTrip(asRequest(b, "api.example.com"), gate.CredentialName{}, get(b))
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, buf); n != size || err != nil {
			b.Fatal(n, err)
		}
		resp.Body.Close()
	}
}

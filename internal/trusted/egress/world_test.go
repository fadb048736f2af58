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
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The world of these tests: a root that is trusted, servers on loopback under real names, and permits.

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test root"}, NotBefore: time.Now().Add(-48 * time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, pool: x509.NewCertPool()}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) issue(t testing.TB, change func(*x509.Certificate), names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: names,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if change != nil {
		change(tmpl)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// server is an upstream that counts its connections.
type server struct {
	*httptest.Server
	at    netip.AddrPort
	conns atomic.Int64
}

func (s *server) addr() netip.AddrPort { return s.at }

func serve(t testing.TB, crt *tls.Certificate, h http.HandlerFunc) *server {
	t.Helper()
	s := &server{Server: httptest.NewUnstartedServer(h)}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.conns.Add(1)
		}
	}
	if crt == nil {
		s.Start()
	} else {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{*crt}}
		s.EnableHTTP2 = true
		s.StartTLS()
	}
	s.at = netip.MustParseAddrPort(s.Listener.Addr().String())
	t.Cleanup(s.Close)
	return s
}

func sessionID(n byte) gate.SessionID { return gate.NewSessionID([10]byte{n}) }

func host(t testing.TB, s string) gate.Host {
	t.Helper()
	h, err := gate.ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func at(t testing.TB, s string, port gate.Port) gate.Authority {
	t.Helper()
	return gate.Authority{Host: host(t, s), Port: port}
}

func credential(t testing.TB, s string) gate.CredentialName {
	t.Helper()
	n, err := gate.ParseCredentialName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// permit asks a policy of one rule for a permit.
func permit(t testing.TB, kind policy.ActionKind, id gate.SessionID, name string, change func(*policy.Rule)) policy.Permit {
	t.Helper()
	r := policy.Rule{Name: "test", Effect: policy.Allow, Host: policy.ExactHost(host(t, name)), Scheme: gate.HTTPS, Methods: gate.AllMethods, WebSocket: true}
	if change != nil {
		change(&r)
	}
	p, err := policy.Compile([]policy.Rule{r})
	if err != nil {
		t.Fatal(err)
	}
	path, err := gate.ParsePath("/")
	if err != nil {
		t.Fatal(err)
	}
	a := policy.Action{Kind: kind, Scheme: r.Scheme, Host: host(t, name), Port: p.Rules()[0].Port}
	if kind == policy.Request {
		a.Method, a.Path = gate.GET, path
	}
	d := p.Decide(policy.Subject{Session: id}, a)
	if d.Verdict != policy.Allow {
		t.Fatalf("no permit: %s", d.Reason)
	}
	return d.Permit
}

func asRequest(t testing.TB, name string) policy.Permit {
	return permit(t, policy.Request, sessionID(1), name, nil)
}

func tunnelRule(r *policy.Rule) { r.TLS, r.WebSocket = policy.Tunnel, false }

// answers is a resolver that gives a fixed list of answers, one after the other, the last again and again.
type answers struct {
	mu    sync.Mutex
	lists [][]netip.Addr
	asked []string
	err   error
}

func resolves(addrs ...string) *answers { return new(answers).then(addrs...) }

func (a *answers) then(addrs ...string) *answers {
	var list []netip.Addr
	for _, s := range addrs {
		list = append(list, netip.MustParseAddr(s))
	}
	a.lists = append(a.lists, list)
	return a
}

func (a *answers) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, host)
	if a.err != nil {
		return nil, a.err
	}
	list := a.lists[0]
	if len(a.lists) > 1 {
		a.lists = a.lists[1:]
	}
	return list, nil
}

// dials is a network on which every address leads to one server, and which remembers what was dialled.
type dials struct {
	mu   sync.Mutex
	to   netip.AddrPort
	seen []netip.AddrPort
}

func (d *dials) dial(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
	d.mu.Lock()
	d.seen = append(d.seen, a)
	to := d.to
	d.mu.Unlock()
	if !to.IsValid() {
		return nil, errors.New("refused by " + a.String())
	}
	return dialTCP(ctx, to)
}

func (d *dials) list() []netip.AddrPort {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]netip.AddrPort(nil), d.seen...)
}

func newEgress(t testing.TB, c Config) *Egress {
	t.Helper()
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func begin(t testing.TB, c Config) *Session {
	t.Helper()
	s := newEgress(t, c).Session(sessionID(1))
	t.Cleanup(s.Close)
	return s
}

// reaching is a session for which api.example.com is one server.
func reaching(t testing.TB, a *authority, srv *server, change func(*Config)) *Session {
	t.Helper()
	c := Config{Roots: a.pool, Upstreams: map[gate.Authority]Upstream{at(t, "api.example.com", 443): {Address: srv.addr()}}}
	if change != nil {
		change(&c)
	}
	return begin(t, c)
}

func get(t testing.TB) *http.Request { return request(t, http.MethodGet, "/", nil) }

func request(t testing.TB, method, target string, b io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "https://elsewhere.example"+target, b)
	if err != nil {
		t.Fatal(err)
	}
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0 // the client speaks HTTP/2; the upstream as it can
	return r
}

func read(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("body: %v", err)
	}
	resp.Body.Close()
	return string(b)
}

// reason is the reason of a *gate.Failure, and the test's failure when err is something else or says too much.
func reason(t testing.TB, err error) gate.Reason {
	t.Helper()
	if err == nil {
		return gate.ReasonNone
	}
	f, ok := err.(*gate.Failure)
	if !ok {
		t.Errorf("%T is no *gate.Failure: %v", err, err)
		return gate.ReasonBug
	}
	for _, word := range []string{"127.0.0.1", "10.0.0", "tcp", "x509", "dial", "resolv.conf"} {
		if contains(f.Error(), word) {
			t.Errorf("the sandbox is told too much: %s", f.Error())
		}
	}
	return f.Reason
}

func mustURL(t testing.TB, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func (d *dials) dialName(ctx context.Context, _, _ string) (net.Conn, error) {
	return dialTCP(ctx, d.to)
}

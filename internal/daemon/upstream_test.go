package daemon

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/operator/config"
	"postern/internal/testkit"
)

// world is one upstream, api.example.com, that is given a credential.
type world struct {
	t      testing.TB
	ca     *testkit.CA
	dir    string
	value  string
	name   gate.CredentialName
	host   gate.Host
	header policy.Slot
	conf   UpstreamConfig
	up     *Upstream
}

func newWorld(t testing.TB) *world {
	t.Helper()
	random := make([]byte, 24)
	rand.Read(random)
	w := &world{t: t, ca: testkit.NewCA(t), dir: t.TempDir(), value: "tok-" + base64.RawURLEncoding.EncodeToString(random) + "/+=&\"x"}
	var errs [3]error
	w.name, errs[0] = gate.ParseCredentialName("key")
	w.host, errs[1] = gate.ParseHost("api.example.com")
	w.header, errs[2] = policy.NewHeaderSlot("Authorization", "Bearer {}")
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	w.keep(w.value)
	if err := os.WriteFile(w.file("root.pem"), w.ca.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	w.conf = UpstreamConfig{Session: gate.NewSessionID([10]byte{1}), Upstreams: map[gate.Authority]config.Upstream{},
		Credentials: map[gate.CredentialName]config.Credential{w.name: {Name: w.name, Kind: config.APIKey, Source: config.Source{File: w.file("key")}}}}
	return w
}

func (w *world) file(name string) string { return filepath.Join(w.dir, name) }

func (w *world) keep(value string) {
	w.t.Helper()
	if err := os.WriteFile(w.file("key"), []byte(value+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// serve starts the upstream with a certificate and opens the session's way to it. A nil certificate is cleartext.
func (w *world) serve(crt *tls.Certificate, http2 bool, h http.HandlerFunc) *httptest.Server {
	w.t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	port := gate.HTTP.DefaultPort()
	if crt == nil {
		srv.Start()
	} else {
		port = gate.HTTPS.DefaultPort()
		srv.EnableHTTP2 = http2
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{*crt}}
		srv.StartTLS()
	}
	w.t.Cleanup(srv.Close)
	w.conf.Upstreams[gate.Authority{Host: w.host, Port: port}] = config.Upstream{Address: netip.MustParseAddrPort(srv.Listener.Addr().String()), CAFile: w.file("root.pem")}
	if w.up != nil {
		w.up.Close()
	}
	up, err := NewUpstream(w.conf)
	if err != nil {
		w.t.Fatal(err)
	}
	w.up = up
	w.t.Cleanup(up.Close)
	return srv
}

func (w *world) good() *tls.Certificate {
	crt := w.ca.Leaf(w.t, nil, "api.example.com")
	return &crt
}

func (w *world) permit(change func(*policy.Rule, *policy.Action)) policy.Permit {
	w.t.Helper()
	path, err := gate.ParsePath("/")
	if err != nil {
		w.t.Fatal(err)
	}
	r := policy.Rule{Name: "test", Effect: policy.Allow, Host: policy.ExactHost(w.host), Scheme: gate.HTTPS, Methods: gate.AllMethods, WebSocket: true,
		Inject: policy.Injection{Mode: policy.InjectSet, Credential: w.name, Slots: []policy.Slot{w.header}}}
	a := policy.Action{Kind: policy.Request, Host: w.host, Method: gate.GET, Path: path}
	if change != nil {
		change(&r, &a)
	}
	p, err := policy.Compile([]policy.Rule{r})
	if err != nil {
		w.t.Fatal(err)
	}
	a.Scheme, a.Port = r.Scheme, p.Rules()[0].Port
	d := p.Decide(policy.Subject{Session: w.conf.Session}, a)
	if d.Verdict != policy.Allow {
		w.t.Fatalf("no permit: %s", d.Reason)
	}
	return d.Permit
}

func (w *world) request(method, target string, body io.Reader) *http.Request {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, "https://elsewhere.example"+target, body)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0 // the client speaks HTTP/2; the upstream as it can
	r.Header.Set("Authorization", "Bearer of the client")
	return r
}

// do sends a request with the credential and returns everything that came back, as text.
func (w *world) do(p policy.Permit, slot policy.Slot, r *http.Request) (*http.Response, string) {
	w.t.Helper()
	resp, err := w.up.RoundTrip(p, slot, r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	var all bytes.Buffer
	fmt.Fprintln(&all, resp.Status)
	resp.Header.Write(&all)
	all.Write(body)
	resp.Trailer.Write(&all)
	return resp, all.String()
}

// leaks names a spelling of the middle of value that text holds.
func leaks(text, value string) string {
	inner := value[4 : len(value)-4]
	forms := map[string]string{"raw": inner[:16], "hex": hex.EncodeToString([]byte(inner))[:32], "HEX": strings.ToUpper(hex.EncodeToString([]byte(inner)))[:32]}
	for pad := range 3 {
		b := append(make([]byte, pad), value...)
		forms[fmt.Sprint("base64+", pad)] = base64.StdEncoding.EncodeToString(b)[8:28]
		forms[fmt.Sprint("base64url+", pad)] = base64.URLEncoding.EncodeToString(b)[8:28]
	}
	var percent, unicode strings.Builder
	for _, c := range []byte(inner[:16]) {
		fmt.Fprintf(&percent, "%%%02x", c)
		fmt.Fprintf(&unicode, `\u%04x`, c)
	}
	forms["percent"], forms["unicode"] = percent.String(), unicode.String()
	for name, form := range forms {
		if strings.Contains(text, form) || (name == "percent" || name == "unicode") && strings.Contains(strings.ToLower(text), form) {
			return name
		}
	}
	return ""
}

func failed(t testing.TB, err error) gate.Reason {
	t.Helper()
	if err == nil {
		return gate.ReasonNone
	}
	f, ok := err.(*gate.Failure)
	if !ok {
		t.Errorf("%T is no *gate.Failure: %v", err, err)
		return gate.ReasonBug
	}
	return f.Reason
}

func TestEchoedCredentialNeverReachesTheSandbox(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		w := newWorld(t)
		var arrived atomic.Int64
		echo := testkit.Echo()
		w.serve(w.good(), http2, func(rw http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer "+w.value && (r.ProtoMajor == 2) == http2 && r.Host == "api.example.com" {
				arrived.Add(1)
			}
			echo.ServeHTTP(rw, r)
		})
		p, sent := w.permit(nil), int64(0)
		for _, as := range testkit.Echoes() {
			for _, chunk := range []int{0, 1, 7} {
				sent++
				resp, text := w.do(p, w.header, w.request(http.MethodGet, fmt.Sprintf("/?as=%s&chunk=%d&pad=3", url.QueryEscape(as), chunk), nil))
				if form := leaks(text, w.value); form != "" {
					t.Errorf("%s in chunks of %d: the credential comes back as %s", as, chunk, form)
				}
				if !strings.Contains(text, "********") {
					t.Errorf("%s in chunks of %d: nothing was masked, so nothing was shown", as, chunk)
				}
				if as == "location" && (resp.StatusCode != http.StatusFound || !strings.HasPrefix(resp.Header.Get("Location"), "/next?token=***")) {
					t.Errorf("a redirect: %s %s", resp.Status, resp.Header.Get("Location"))
				}
			}
		}
		if arrived.Load() != sent {
			t.Errorf("the credential arrived %d of %d times", arrived.Load(), sent)
		}
	}
}

func TestUnaskedCompressionIsUndone(t *testing.T) {
	w := newWorld(t)
	w.serve(w.good(), true, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "identity" || r.Header.Get("Range") != "" {
			t.Errorf("asked for %q, range %q", r.Header.Get("Accept-Encoding"), r.Header.Get("Range"))
		}
		coding := r.URL.Query().Get("coding")
		rw.Header().Set("Content-Encoding", coding)
		var z io.WriteCloser
		switch coding {
		case "br":
			z = brotli.NewWriter(rw)
		case "zstd":
			z, _ = zstd.NewWriter(rw)
		default:
			return
		}
		io.WriteString(z, "you sent "+r.Header.Get("Authorization"))
		z.Close()
	})
	for _, coding := range []string{"br", "zstd"} {
		r := w.request(http.MethodGet, "/?coding="+coding, nil)
		r.Header.Set("Accept-Encoding", "br, zstd")
		r.Header.Set("Range", "bytes=0-9")
		resp, text := w.do(w.permit(nil), w.header, r)
		if form := leaks(text, w.value); form != "" || !strings.Contains(text, "you sent Bearer ***") || resp.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s: leak %q, header %v", coding, form, resp.Header)
		}
	}
	if _, err := w.up.RoundTrip(w.permit(nil), w.header, w.request(http.MethodGet, "/?coding=dcb", nil)); failed(t, err) != gate.ReasonOpaqueEncoding {
		t.Errorf("an unknown coding: %v", err)
	}
}

func TestTheCallersRequestNeverHoldsTheCredential(t *testing.T) {
	w := newWorld(t)
	w.serve(w.good(), true, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Link", "<"+r.Header.Get("Authorization")+">")
		rw.WriteHeader(http.StatusEarlyHints)
		io.WriteString(rw, "ok")
	})
	r := w.request(http.MethodGet, "/", nil)
	hint := ""
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { hint = h.Get("Link"); return nil },
		WroteHeaderField: func(key string, values []string) {
			if leaks(strings.Join(values, ""), w.value) != "" {
				t.Errorf("a trace sees %s", key)
			}
		},
	}))
	resp, _ := w.do(w.permit(nil), w.header, r)
	if resp.Request != r || r.Header.Get("Authorization") != "Bearer of the client" || len(r.Header) != 1 {
		t.Error("the caller's request was changed, or the answer names another")
	}
	if !strings.HasPrefix(hint, "<Bearer ****") {
		t.Errorf("the interim answer came as %d bytes", len(hint))
	}
	dump := fmt.Sprintf("%+v %#v %+v %#v", resp, resp, w.up, w.up)
	if leaks(dump, w.value) != "" {
		t.Error("the answer or the upstream prints the credential")
	}
}

func TestUnverifiedUpstreamIsSentNothing(t *testing.T) {
	stranger := testkit.NewCA(t)
	w := newWorld(t)
	for what, crt := range map[string]tls.Certificate{
		"wrong name": w.ca.Leaf(t, nil, "other.example.com"),
		"stranger":   stranger.Leaf(t, nil, "api.example.com"),
		"expired": w.ca.Leaf(t, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
		}, "api.example.com"),
	} {
		var served atomic.Int64
		w.serve(&crt, true, func(http.ResponseWriter, *http.Request) { served.Add(1) })
		_, err := w.up.RoundTrip(w.permit(nil), w.header, w.request(http.MethodPost, "/", strings.NewReader("body")))
		if failed(t, err) != gate.ReasonUpstreamTLS || served.Load() != 0 {
			t.Errorf("%s: %v, %d requests arrived", what, err, served.Load())
		}
	}
}

func TestCleartextNeverCarriesACredential(t *testing.T) {
	w := newWorld(t)
	seen := make(chan http.Header, 1)
	w.serve(nil, false, func(rw http.ResponseWriter, r *http.Request) { seen <- r.Header })
	clear := w.permit(func(r *policy.Rule, _ *policy.Action) { r.Scheme, r.Inject = gate.HTTP, policy.Injection{} })
	r := w.request(http.MethodGet, "/", nil)
	r.Header.Del("Authorization")
	w.do(clear, policy.Slot{}, r)
	if h := <-seen; h.Get("Authorization") != "" {
		t.Error("a credential over cleartext")
	}
	if _, err := w.up.RoundTrip(clear, w.header, w.request(http.MethodGet, "/", nil)); failed(t, err) != gate.ReasonBug {
		t.Errorf("a slot on a cleartext permit: %v", err)
	}
	if len(seen) != 0 {
		t.Error("the refused request arrived")
	}
}

func TestRefusedRequestsReleaseTheirBody(t *testing.T) {
	w := newWorld(t)
	w.serve(w.good(), true, func(http.ResponseWriter, *http.Request) { t.Error("a refused request arrived") })
	other, err := policy.NewHeaderSlot("X-Api-Key", "")
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		p      policy.Permit
		slot   policy.Slot
		method string
		want   gate.Reason
	}{
		"no permit":       {policy.Permit{}, w.header, http.MethodPost, gate.ReasonBug},
		"undeclared slot": {w.permit(nil), other, http.MethodPost, gate.ReasonBug},
		"TRACE":           {w.permit(nil), w.header, http.MethodTrace, gate.ReasonMethodUnknown},
		"CONNECT":         {w.permit(nil), w.header, http.MethodConnect, gate.ReasonMethodUnknown},
	} {
		body := &closed{Reader: strings.NewReader("x")}
		r := w.request(http.MethodPost, "/", body)
		r.Method = c.method
		if _, err := w.up.RoundTrip(c.p, c.slot, r); failed(t, err) != c.want || !body.closed {
			t.Errorf("%s: %v, body closed: %v", what, err, body.closed)
		}
	}
	var zero Upstream
	if _, err := zero.RoundTrip(w.permit(nil), w.header, w.request(http.MethodGet, "/", nil)); failed(t, err) != gate.ReasonBug {
		t.Errorf("the zero Upstream: %v", err)
	}
	if _, err := zero.Ready(t.Context(), w.permit(nil)); failed(t, err) != gate.ReasonBug {
		t.Errorf("the zero Upstream: %v", err)
	}
	if _, err := zero.Tunnel(t.Context(), w.permit(nil)); failed(t, err) != gate.ReasonBug {
		t.Errorf("the zero Upstream: %v", err)
	}
	zero.Close()
}

type closed struct {
	io.Reader
	closed bool
}

func (c *closed) Close() error { c.closed = true; return nil }

func TestWhatWasToldBeforeIsMaskedLater(t *testing.T) {
	w := newWorld(t)
	var kept atomic.Pointer[string]
	w.serve(w.good(), true, func(rw http.ResponseWriter, r *http.Request) {
		if v := r.Header.Get("Authorization"); v != "" {
			kept.Store(&v)
		} else if v := kept.Load(); v != nil {
			io.WriteString(rw, "earlier: "+*v)
		}
	})
	swap := w.permit(func(r *policy.Rule, _ *policy.Action) { r.Inject.Mode = policy.InjectSwap })
	w.do(swap, w.header, w.request(http.MethodGet, "/", nil))
	r := w.request(http.MethodGet, "/", nil)
	r.Header.Del("Authorization")
	if _, text := w.do(swap, policy.Slot{}, r); leaks(text, w.value) != "" || !strings.Contains(text, "earlier: Bearer ***") {
		t.Error("a request without a credential fetched an earlier one's")
	}
	plain := w.permit(func(r *policy.Rule, _ *policy.Action) { r.Inject = policy.Injection{} })
	if _, text := w.do(plain, policy.Slot{}, r); leaks(text, w.value) != "" || !strings.Contains(text, "earlier: Bearer ***") {
		t.Error("a request under a rule without a credential fetched another rule's")
	}
}

func TestMissingCredentialIsSaidBeforeAnythingIsSent(t *testing.T) {
	w := newWorld(t)
	w.serve(w.good(), true, func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") })
	if err := os.Chmod(w.file("key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := w.up.Ready(t.Context(), w.permit(nil)); failed(t, err) != gate.ReasonCredentialSource || strings.Contains(err.Error(), w.dir) {
		t.Errorf("a file that all can read: %v", err)
	}
	if _, err := w.up.RoundTrip(w.permit(nil), w.header, w.request(http.MethodGet, "/", nil)); failed(t, err) != gate.ReasonCredentialSource {
		t.Errorf("a file that all can read: %v", err)
	}
}

func TestUpstreamConfigIsChecked(t *testing.T) {
	w := newWorld(t)
	at := gate.Authority{Host: w.host, Port: 443}
	command := func(argv ...string) map[gate.CredentialName]config.Credential {
		return map[gate.CredentialName]config.Credential{w.name: {Name: w.name, Kind: config.Basic, Source: config.Source{Command: argv}}}
	}
	for what, c := range map[string]UpstreamConfig{
		"no CA file":      {Upstreams: map[gate.Authority]config.Upstream{at: {Address: netip.MustParseAddrPort("127.0.0.1:1"), CAFile: w.file("missing.pem")}}},
		"no certificates": {Upstreams: map[gate.Authority]config.Upstream{at: {Address: netip.MustParseAddrPort("127.0.0.1:1"), CAFile: w.file("key")}}},
		"no address":      {Upstreams: map[gate.Authority]config.Upstream{at: {}}},
		"relative file":   {Credentials: map[gate.CredentialName]config.Credential{w.name: {Source: config.Source{File: "key"}}}},
		"empty command":   {Credentials: command("")},
		"socks proxy":     {Proxy: &url.URL{Scheme: "socks5", Host: "proxy.example:1080"}},
	} {
		if _, err := NewUpstream(c); err == nil || leaks(err.Error(), w.value) != "" {
			t.Errorf("%s: accepted", what)
		}
	}
	up, err := NewUpstream(UpstreamConfig{Credentials: command("no-such-program-anywhere")})
	if err != nil {
		t.Errorf("a program that nobody needs yet: %v", err)
	} else {
		up.Close()
	}
}

func TestRotatedFileIsUsedAfterA401(t *testing.T) {
	w := newWorld(t)
	var accepted atomic.Pointer[string]
	first := w.value
	accepted.Store(&first)
	w.serve(w.good(), true, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+*accepted.Load() {
			rw.WriteHeader(http.StatusUnauthorized)
		}
	})
	if resp, _ := w.do(w.permit(nil), w.header, w.request(http.MethodGet, "/", nil)); resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	second := first + "2"
	accepted.Store(&second)
	w.keep(second)
	deadline := time.Now().Add(5 * time.Second) // the file is looked at twice a second
	for {
		resp, text := w.do(w.permit(nil), w.header, w.request(http.MethodGet, "/", nil))
		if leaks(text, first) != "" {
			t.Error("an old value passes")
		}
		if resp.StatusCode == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the rotated value is not used")
		}
	}
}

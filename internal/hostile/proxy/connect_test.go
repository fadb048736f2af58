package proxy

import (
	"bufio"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/core/record"
)

// explicit is a connection to an explicit proxy's own listener.
func (w *world) explicit() *net.TCPConn { return w.connect(netip.AddrPort{}) }

// tunnelTo sends a CONNECT and what comes ahead, and reads the answer.
func (w *world) tunnelTo(c net.Conn, authority, ahead string) {
	w.Helper()
	_, err := io.WriteString(c, "CONNECT "+authority+" HTTP/1.1\r\nHost: "+authority+"\r\nProxy-Authorization: Basic eA==\r\n\r\n"+ahead)
	must(w, err)
	const want = "HTTP/1.1 200 Connection established\r\n\r\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		w.Fatalf("%q, %v", got, err)
	}
}

func TestExplicitConnect(t *testing.T) {
	for name, test := range map[string]struct {
		connect, sni, request string
		want                  gate.Reason
	}{
		"allowed":                   {"a.test:443", "a.test", get("/x", "a.test"), ""},
		"upper case":                {"A.TEST:443", "a.test", get("/x", "a.test"), ""},
		"refused":                   {"evil.test:443", "evil.test", get("/", "evil.test"), gate.ReasonHostNotListed},
		"A04 another SNI":           {"a.test:443", "b.test", get("/", "b.test"), gate.ReasonAuthorityMismatch},
		"A04 another SNI, own Host": {"a.test:443", "b.test", get("/", "a.test"), gate.ReasonAuthorityMismatch},
		"A05 another Host":          {"a.test:443", "a.test", get("/", "b.test"), gate.ReasonAuthorityMismatch},
		"another port":              {"a.test:8443", "a.test", get("/", "a.test:8443"), gate.ReasonPortNotListed},
		"another port hidden":       {"a.test:8443", "a.test", get("/", "a.test"), gate.ReasonAuthorityMismatch},
		"another path":              {"a.test:443", "a.test", get("/no", "a.test"), gate.ReasonPathNotListed},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, allow("a.test", paths("/x")), allow("b.test"))
			c := w.explicit()
			w.tunnelTo(c, test.connect, "")
			s := w.secure(c, test.sni)
			a := w.ask(s, test.request)
			if test.want != "" {
				w.refused(a, test.want)
			} else if seen, _ := w.passed(a); seen.head != get("/x", "a.test") {
				t.Errorf("sent %q", seen.head)
			}
			if n := w.proxy.Limits.Connections(); n != 1 {
				t.Errorf("%d slots for one connection", n)
			}
			s.Close()
			w.proxy.Close()
			if n := w.proxy.Limits.Connections(); n != 0 {
				t.Errorf("%d slots are still taken", n)
			}
		})
	}
}

func TestConnectOverACapturedConnection(t *testing.T) { // a client that was told of a proxy inside
	w := begin(t, allow("a.test"))
	c := w.connect(unnamed(3128))
	w.tunnelTo(c, "a.test:443", "")
	w.passed(w.ask(w.secure(c, "a.test"), get("/", "a.test")))
}

func TestWhatIsSentAheadOfAConnectsAnswerIsNotLost(t *testing.T) {
	w := begin(t, allow("a.test"), allow("plain.test", cleartext))
	// A ClientHello, with the bytes of line ends in it.
	for range 8 {
		client, server := net.Pipe()
		hello := make([]byte, 16<<10)
		went := make(chan struct{})
		ahead := &aheadConn{Conn: client, went: went}
		var c *net.TCPConn
		go func() {
			n, _ := server.Read(hello)
			c = w.explicit()
			w.tunnelTo(c, "a.test:443", string(hello[:n]))
			ahead.Conn = c
			close(went)
		}()
		s := tls.Client(ahead, &tls.Config{ServerName: "a.test", RootCAs: w.sessions.pool})
		must(t, s.Handshake())
		w.passed(w.ask(s, get("/", "a.test")))
		server.Close()
		s.Close()
	}
	c := w.explicit()
	w.tunnelTo(c, "plain.test:80", get("/x", "plain.test"))
	a := w.read(bufio.NewReader(c), "GET")
	w.passed(a)
}

// aheadConn reads only once its first write went.
type aheadConn struct {
	net.Conn
	went chan struct{}
}

func (a *aheadConn) Read(b []byte) (int, error) {
	<-a.went
	return a.Conn.Read(b)
}

func TestCleartextInsideAConnect(t *testing.T) {
	w := begin(t, allow("a.test"), allow("plain.test", cleartext))
	for _, test := range []struct {
		connect, request string
		want             gate.Reason
	}{
		{"plain.test:80", get("/", "plain.test"), ""},
		{"plain.test:80", "GET http://plain.test/ HTTP/1.1\r\nHost: plain.test\r\n\r\n", ""},
		{"plain.test:80", get("/", "a.test"), gate.ReasonAuthorityMismatch},
		{"plain.test:80", "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonAuthorityMismatch},
		{"a.test:80", get("/", "a.test"), gate.ReasonSchemeNotListed},
		{"a.test:443", get("/", "a.test:443"), gate.ReasonSchemeNotListed},
		{"plain.test:80", "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n", gate.ReasonMethodUnknown},
	} {
		c := w.explicit()
		w.tunnelTo(c, test.connect, "")
		if a := w.ask(c, test.request); test.want != "" {
			w.refused(a, test.want)
		} else {
			w.passed(a)
		}
	}
}

func TestConnectsThatAreNotTaken(t *testing.T) {
	w := begin(t, allow("a.test"))
	for authority, want := range map[string]gate.Reason{
		"a.test":          gate.ReasonMalformedAuthority,
		"a.test:0":        gate.ReasonMalformedAuthority,
		"a.test:65979":    gate.ReasonMalformedAuthority,
		"a.test:https":    gate.ReasonMalformedAuthority,
		"a.test.:443":     gate.ReasonMalformedHost,
		"127.0.0.1:443":   gate.ReasonHostIsAddress,
		"[::1]:443":       gate.ReasonHostIsAddress,
		"x@a.test:443":    gate.ReasonMalformedAuthority,
		"a.test%00:443":   gate.ReasonMalformedAuthority,
		"2130706433:443":  gate.ReasonHostIsAddress,
		"0x7f000001:443":  gate.ReasonHostIsAddress,
		"a.test:443:8443": gate.ReasonMalformedAuthority,
	} {
		a := w.ask(w.explicit(), "CONNECT "+authority+" HTTP/1.1\r\nHost: "+authority+"\r\n\r\n")
		if a.reason() != want {
			t.Errorf("%s: %d %q, want %q", authority, a.StatusCode, a.reason(), want)
		}
		w.refused(a, want)
	}
	w.refused(w.ask(w.explicit(), "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\nContent-Length: 2\r\n\r\nhi"), gate.ReasonMalformedRequest)
	c := w.explicit() // what is no protocol inside is recorded under the name
	w.tunnelTo(c, "evil.test:25", "")
	io.WriteString(c, "\x00\x01")
	if b, _ := io.ReadAll(c); len(b) > 0 {
		t.Errorf("%q", b)
	}
	if r := w.recordedDenial(gate.ReasonProtocolUnknown); r.Host != "evil.test" || r.Port != 25 {
		t.Errorf("%+v", r)
	}
}

func TestAbsoluteTargetsThroughAProxy(t *testing.T) { // A33: the same decisions
	absolute := func(url, host string) string { return "GET " + url + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }
	for _, dst := range []netip.AddrPort{{}, unnamed(3128)} {
		w := begin(t, allow("plain.test", cleartext, paths("/x", "/")), allow("a.test"), allow("odd.test", cleartext, func(r *policy.Rule) { r.Port = 8080 }))
		for _, test := range []struct {
			raw  string
			want gate.Reason
		}{
			{absolute("http://plain.test/x", "plain.test"), ""},
			{absolute("http://plain.test/x?q", "plain.test"), ""},
			{absolute("http://plain.test/", "plain.test"), ""},
			{absolute("http://plain.test:80/x", "plain.test"), ""},
			{absolute("http://odd.test:8080/x", "odd.test:8080"), ""},
			{absolute("http://odd.test/x", "odd.test"), gate.ReasonPortNotListed},
			{absolute("http://plain.test/no", "plain.test"), gate.ReasonPathNotListed},
			{absolute("http://plain.test/x/../no", "plain.test"), gate.ReasonMalformedPath},
			{absolute("http://a.test/", "a.test"), gate.ReasonSchemeNotListed},
			{absolute("https://a.test/", "a.test"), gate.ReasonMalformedRequest},
			{absolute("http://evil.test/", "evil.test"), gate.ReasonHostNotListed},
			{absolute("http://plain.test/x", "evil.test"), gate.ReasonAuthorityMismatch},
			{absolute("http://u:p@plain.test/x", "plain.test"), gate.ReasonMalformedAuthority},
			{absolute("http://plain.test", "plain.test"), gate.ReasonMalformedRequest},
			{absolute("http://plain.test?x", "plain.test"), gate.ReasonMalformedRequest},
			{absolute("HTTP://plain.test/x", "plain.test"), gate.ReasonMalformedRequest},
			{absolute("http://[::1]/x", "[::1]"), gate.ReasonHostIsAddress},
			{absolute("http://127.0.0.1/x", "127.0.0.1"), gate.ReasonHostIsAddress},
		} {
			a := w.ask(w.connect(dst), test.raw)
			if a.reason() != test.want {
				t.Errorf("%q: %d %q", test.raw, a.StatusCode, a.body)
			}
			if test.want != "" {
				w.refused(a, test.want)
				continue
			}
			seen, _ := w.passed(a)
			_, target, _ := strings.Cut(strings.Fields(test.raw)[1][len("http://"):], "/")
			if seen.RequestURI != "/"+target {
				t.Errorf("%q was sent as %q", test.raw, seen.head)
			}
		}
	}
}

func TestARequestToTheProxyItself(t *testing.T) {
	w := begin(t, allow("plain.test", cleartext), allow("a.test"))
	w.refused(w.ask(w.explicit(), get("/", "plain.test")), gate.ReasonDirectToListener)
	a := w.ask(w.secure(w.explicit(), "a.test"), get("/", "a.test"))
	w.refused(a, gate.ReasonAuthorityMismatch) // no port of its own
}

func echoTunnel(s *sink) {
	s.answers(func(c net.Conn, br *bufio.Reader, r *http.Request) {
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		io.Copy(c, r.Body)
		io.Copy(c, br)
		c.Close()
	}, nil)
}

// through is TLS with the sink itself, through a tunnel.
func (w *world) through(c net.Conn, name string) *tls.Conn {
	w.Helper()
	return w.secure(c, name, func(conf *tls.Config) { conf.RootCAs = w.sink.ca.pool })
}

func (w *world) tunnelRecords() (d, o *record.Record) {
	w.Helper()
	d, o = w.log.next(w), w.log.next(w)
	if d.Kind != record.Decision || d.Verdict != "allow" || d.Action != "tunnel" || o.Kind != record.Outcome || o.Event != d.Event || o.Host != "pinned.test" {
		w.Errorf("%+v, %+v", d, o)
	}
	return d, o
}

func TestATunnelPassesBytesAndHalves(t *testing.T) {
	for _, explicit := range []bool{false, true} {
		w := begin(t, allow("pinned.test", tunnel))
		echoTunnel(w.sink)
		c := w.connectTo("pinned.test", 443)
		if explicit {
			c = w.explicit()
			w.tunnelTo(c, "pinned.test:443", "")
		}
		s := w.through(c, "pinned.test")
		_, err := io.WriteString(s, get("/", "pinned.test"))
		must(t, err)
		br := bufio.NewReader(s)
		if line, err := br.ReadString('\n'); line != "HTTP/1.1 200 OK\r\n" {
			t.Fatalf("%q, %v", line, err)
		}
		br.ReadString('\n')
		body := strings.Repeat("tunnelled ", 500_000)
		go func() {
			io.WriteString(s, body)
			s.CloseWrite()
			c.CloseWrite()
		}()
		if b, err := io.ReadAll(br); string(b) != body || err != nil {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		_, o := w.tunnelRecords()
		if o.Reason != gate.ReasonAllowed || o.BytesIn < int64(len(body)) || o.BytesOut < int64(len(body)) || o.Duration <= 0 {
			t.Errorf("%+v", o)
		}
		if up := w.proxy.Limits.Uploaded(); up != o.BytesIn {
			t.Errorf("%d bytes of the budget for %d", up, o.BytesIn)
		}
	}
}

func TestATunnelIsRefused(t *testing.T) {
	w := begin(t, allow("pinned.test", tunnel), allow("a.test"))
	// Another name than the address's: nothing is dialled.
	a := w.ask(w.secure(w.connectTo("a.test", 443), "pinned.test"), get("/", "pinned.test"))
	w.refused(a, gate.ReasonAuthorityMismatch)
	// Cleartext to a host that is tunnelled.
	w.refused(w.ask(w.connectTo("pinned.test", 80), get("/", "pinned.test")), gate.ReasonSchemeNotListed)
	// A25: an encrypted name inside.
	c := tls.Client(w.connectTo("pinned.test", 443), &tls.Config{ServerName: "secret.test", EncryptedClientHelloConfigList: echConfig(t, "pinned.test"), RootCAs: w.sessions.pool, MinVersion: tls.VersionTLS13})
	must(t, c.SetDeadline(time.Now().Add(patience)))
	var ech *tls.ECHRejectionError
	if err := c.Handshake(); !errors.As(err, &ech) {
		t.Errorf("%v", err)
	}
	c.Close()
	w.recordedDenial(gate.ReasonEncryptedHello)
	if n := w.upstream.tunnels.Load(); n != 0 {
		t.Errorf("%d tunnels", n)
	}
}

func TestATunnelThatCannotBeMade(t *testing.T) {
	w := begin(t, allow("pinned.test", tunnel))
	w.upstream.tunnelsFail = &gate.Failure{Reason: gate.ReasonAddressGuard, Detail: "not public"}
	s := tls.Client(w.connectTo("pinned.test", 443), &tls.Config{ServerName: "pinned.test"})
	if s.Handshake() == nil {
		t.Error("a handshake")
	}
	if _, o := w.tunnelRecords(); o.Reason != gate.ReasonAddressGuard || o.Detail != "not public" {
		t.Errorf("%+v", o)
	}
	w.upstream.tunnelsFail = nil
	w.log.failCommit.Store(true)
	s = tls.Client(w.connectTo("pinned.test", 443), &tls.Config{ServerName: "pinned.test"})
	if s.Handshake() == nil {
		t.Error("a handshake")
	}
	w.recordedDenial(gate.ReasonAudit)
	if n := w.upstream.tunnels.Load(); n != 1 {
		t.Errorf("%d tunnels", n)
	}
}

func TestATunnelHasABudgetAndEndsWhenIdle(t *testing.T) {
	w := newWorld(t, allow("pinned.test", tunnel))
	w.limits.Upload = 2 << 20
	w.limits.Progress = 50 * time.Millisecond
	w.start()
	echoTunnel(w.sink)
	s := w.through(w.connectTo("pinned.test", 443), "pinned.test")
	if b, _ := io.ReadAll(s); len(b) > 0 { // says nothing and is cut
		t.Errorf("%q", b)
	}
	if _, o := w.tunnelRecords(); o.Reason != gate.ReasonLimitTime {
		t.Errorf("%+v", o)
	}
	s = w.through(w.connectTo("pinned.test", 443), "pinned.test")
	go func() {
		io.WriteString(s, get("/", "pinned.test"))
		for {
			if _, err := s.Write(make([]byte, 16<<10)); err != nil {
				return
			}
		}
	}()
	io.Copy(io.Discard, s)
	if _, o := w.tunnelRecords(); o.Reason != gate.ReasonLimitUpload || o.BytesIn > 2<<20+portion {
		t.Errorf("%+v", o)
	}
}

// echConfig is an ECHConfigList (RFC 9849 §4) whose private key nobody has.
func echConfig(t testing.TB, public string) []byte {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	must(t, err)
	b := []byte{1, 0, 0x20, 0, 32}
	b = append(b, key.PublicKey().Bytes()...)
	b = append(b, 0, 4, 0, 1, 0, 1, 0, byte(len(public)))
	b = append(append(b, public...), 0, 0)
	b = append([]byte{0xfe, 0x0d, 0, byte(len(b))}, b...)
	return append([]byte{0, byte(len(b))}, b...)
}

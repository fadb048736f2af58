package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

func TestAnAllowedRequestIsForwardedAndRecorded(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		w := begin(t, allow("a.test"))
		w.upstream.useH2.Store(h2)
		resp, err := w.client(h2).Get("https://a.test/x?q=1")
		must(t, err)
		resp.Body.Close()
		seen, o := w.passed(answer{Response: resp})
		if seen.Host != "a.test" || seen.RequestURI != "/x?q=1" {
			t.Errorf("the sink saw %v", seen)
		}
		if o.Path != "/x" || o.Host != "a.test" || o.Port != 443 || o.Scheme != "https" || o.Method != "GET" || o.BytesOut != 2 || o.Duration <= 0 {
			t.Errorf("recorded %+v", o)
		}
	}
}

// A name is spelled in every place that HTTP/1.1 over TLS has for one.
func TestNamesOfAConnectionMustAgree(t *testing.T) {
	tests := map[string]struct {
		behind, sni, request string
		want                 gate.Reason // none: passes
	}{
		"A01 SNI allowed, Host secret":         {"a.test", "a.test", get("/", "b.test"), gate.ReasonAuthorityMismatch},
		"A02 SNI secret, Host evil":            {"b.test", "b.test", get("/", "evil.test"), gate.ReasonAuthorityMismatch},
		"A03 SNI denied, Host allowed":         {"evil.test", "evil.test", get("/", "a.test"), gate.ReasonAuthorityMismatch},
		"A03 SNI and Host denied":              {"evil.test", "evil.test", get("/", "evil.test"), gate.ReasonHostNotListed},
		"address of another name":              {"evil.test", "a.test", get("/", "a.test"), gate.ReasonAuthorityMismatch},
		"address of an allowed name":           {"b.test", "a.test", get("/", "a.test"), gate.ReasonAuthorityMismatch},
		"A06 absolute target":                  {"a.test", "a.test", "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
		"A06 absolute target of another":       {"a.test", "a.test", "GET https://b.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n", gate.ReasonMalformedRequest},
		"A06 absolute target against Host":     {"a.test", "a.test", "GET https://b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonAuthorityMismatch},
		"A06 ftp":                              {"a.test", "a.test", "GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
		"A14 trailing dot":                     {"a.test", "a.test", get("/", "a.test."), gate.ReasonMalformedHost},
		"A14 leading dot":                      {"a.test", "a.test", get("/", ".a.test"), gate.ReasonMalformedHost},
		"A14 double dot":                       {"a.test", "a.test", get("/", "a..test"), gate.ReasonMalformedHost},
		"A15 brackets":                         {"a.test", "a.test", get("/", "[a.test]"), gate.ReasonMalformedHost},
		"A15 double brackets":                  {"a.test", "a.test", get("/", "[[a.test]]"), gate.ReasonMalformedHost},
		"A15 zone":                             {"a.test", "a.test", get("/", "[::ffff:1.2.3.4%x.a.test]"), gate.ReasonMalformedAuthority},
		"A16 NUL":                              {"a.test", "a.test", get("/", "evil.test\x00.a.test"), gate.ReasonMalformedRequest},
		"A16 tab":                              {"a.test", "a.test", get("/", "a.test\tevil.test"), gate.ReasonMalformedAuthority},
		"A16 space":                            {"a.test", "a.test", get("/", "a.test evil.test"), gate.ReasonMalformedAuthority},
		"A16 %00":                              {"a.test", "a.test", get("/", "a.test%00"), gate.ReasonMalformedHost},
		"A17 userinfo":                         {"a.test", "a.test", get("/", "a.test@evil.test"), gate.ReasonMalformedAuthority},
		"A17 fragment":                         {"a.test", "a.test", get("/", "a.test#@evil.test"), gate.ReasonMalformedAuthority},
		"A17 backslash":                        {"a.test", "a.test", get("/", `a.test\@evil.test`), gate.ReasonMalformedAuthority},
		"A20 suffix":                           {"evila.test", "evila.test", get("/", "evila.test"), gate.ReasonHostNotListed},
		"A20 prefix":                           {"a.test.evil.test", "a.test.evil.test", get("/", "a.test.evil.test"), gate.ReasonHostNotListed},
		"A20 below an exact name":              {"x.a.test", "x.a.test", get("/", "x.a.test"), gate.ReasonHostNotListed},
		"A20 apex of a wildcard":               {"wild.test", "wild.test", get("/", "wild.test"), gate.ReasonHostNotListed},
		"A20 below a wildcard":                 {"x.y.wild.test", "x.y.wild.test", get("/", "x.y.wild.test"), gate.ReasonNone},
		"A21 case of Host":                     {"a.test", "a.test", get("/", "A.Test"), gate.ReasonNone},
		"A21 case of SNI":                      {"a.test", "A.TEST", get("/", "a.test"), gate.ReasonNone},
		"port that is the scheme's":            {"a.test", "a.test", get("/", "a.test:443"), gate.ReasonNone},
		"another port":                         {"a.test", "a.test", get("/", "a.test:8443"), gate.ReasonAuthorityMismatch},
		"port of no number":                    {"a.test", "a.test", get("/", "a.test:https"), gate.ReasonMalformedAuthority},
		"port with a zero":                     {"a.test", "a.test", get("/", "a.test:0443"), gate.ReasonMalformedAuthority},
		"port out of range":                    {"a.test", "a.test", get("/", "a.test:65979"), gate.ReasonMalformedAuthority},
		"empty Host":                           {"a.test", "a.test", get("/", ""), gate.ReasonMalformedAuthority},
		"two Hosts":                            {"a.test", "a.test", get("/", "a.test", "Host: b.test"), gate.ReasonMalformedAuthority},
		"no Host":                              {"a.test", "a.test", "GET / HTTP/1.1\r\n\r\n", gate.ReasonMalformedAuthority},
		"Host is an address":                   {"a.test", "a.test", get("/", "127.0.0.1"), gate.ReasonHostIsAddress},
		"Host is a number":                     {"a.test", "a.test", get("/", "2130706433"), gate.ReasonHostIsAddress},
		"X-Forwarded-Host":                     {"a.test", "a.test", get("/", "a.test", "X-Forwarded-Host: b.test"), gate.ReasonMalformedRequest},
		"Forwarded":                            {"a.test", "a.test", get("/", "a.test", "Forwarded: host=b.test"), gate.ReasonMalformedRequest},
		"X-Original-Uri":                       {"a.test", "a.test", get("/", "a.test", "x-original-uri: /other"), gate.ReasonMalformedRequest},
		"X_Forwarded_Host":                     {"a.test", "a.test", get("/", "a.test", "X_Forwarded_Host: b.test"), gate.ReasonMalformedRequest},
		"A31 an address that DNS did not give": {"", "a.test", get("/", "a.test"), gate.ReasonNone},
		"A31 with another Host":                {"", "a.test", get("/", "b.test"), gate.ReasonAuthorityMismatch},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := begin(t, allow("a.test"), allow("*.wild.test"),
				allow("b.test", inject(policy.InjectSet, "main", header("Authorization", "Bearer {}"))))
			dst := unnamed(443)
			if test.behind != "" {
				dst = netip.AddrPortFrom(w.addressOf(test.behind), 443)
			}
			a := w.ask(w.secure(w.connect(dst), test.sni), test.request)
			if test.want == gate.ReasonNone {
				seen, _ := w.passed(a)
				if seen.Host != strings.ToLower(test.sni) {
					t.Errorf("sent to %q", seen.Host)
				}
				return
			}
			w.refused(a, test.want)
			if w.upstream.trips.Load() != 0 {
				t.Error("the upstream was asked")
			}
		})
	}
}

func TestARefusedNameNamesBothInTheRecord(t *testing.T) {
	w := begin(t, allow("a.test"), allow("b.test"))
	a := w.ask(w.secure(w.connect(netip.AddrPortFrom(w.addressOf("a.test"), 443)), "b.test"), get("/", "b.test"))
	if a.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("status %d", a.StatusCode)
	}
	r := w.recordedDenial(gate.ReasonAuthorityMismatch)
	if r.Host != "b.test" || !strings.Contains(r.Detail, "a.test") || !strings.Contains(r.Detail, "b.test") {
		t.Errorf("%+v", r)
	}
}

func TestEveryRequestOfAConnectionIsJudged(t *testing.T) {
	w := begin(t, allow("a.test", paths("/ok")), allow("b.test"))
	for name, second := range map[string]struct {
		request string
		want    gate.Reason
	}{
		"A12 another host": {get("/ok", "b.test"), gate.ReasonAuthorityMismatch},
		"B11 another path": {get("/no", "a.test"), gate.ReasonPathNotListed},
	} {
		t.Run(name, func(t *testing.T) {
			c := w.tls("a.test")
			br := bufio.NewReader(c)
			_, err := io.WriteString(c, get("/ok", "a.test")+second.request+get("/ok", "a.test")) // pipelined
			must(t, err)
			w.passedOne(w.read(br, "GET"))
			w.refusedOne(w.read(br, "GET"), second.want)
			w.passedOne(w.read(br, "GET"))
			if seen := w.sink.take(); len(seen) != 2 || seen[0].RequestURI != "/ok" || seen[1].RequestURI != "/ok" {
				t.Errorf("the sink saw %q", seen)
			}
		})
	}
}

// passedOne and refusedOne are passed and refused when more requests are under way: they say nothing of the sink.
func (w *world) passedOne(a answer) {
	w.Helper()
	d, o := w.log.next(w), w.log.next(w)
	if a.reason() != gate.ReasonNone || d.Verdict != "allow" || o.Event != d.Event {
		w.Errorf("answered %d %q, recorded %+v and %+v", a.StatusCode, a.body, d, o)
	}
}

func (w *world) refusedOne(a answer, why gate.Reason) {
	w.Helper()
	if d := w.log.next(w); a.reason() != why || d.Verdict != "deny" || d.Reason != why {
		w.Errorf("answered %d %q, recorded %+v, want %q", a.StatusCode, a.body, d, why)
	}
}

func TestEveryStreamOfAConnectionIsJudged(t *testing.T) {
	w := begin(t, allow("a.test"), allow("b.test"))
	c := w.client(true)
	get := func(authority string) answer {
		r, err := http.NewRequest("GET", "https://a.test/", nil)
		must(t, err)
		r.Host = authority
		return w.do(c, r)
	}
	w.passed(get("a.test"))
	for _, authority := range []string{"b.test", "evil.test", "a.test:8443"} { // A08, A13
		a := get(authority)
		w.refused(a, gate.ReasonAuthorityMismatch)
		if a.StatusCode != http.StatusMisdirectedRequest || a.ProtoMajor != 2 {
			t.Errorf("%s: %d over HTTP/%d", authority, a.StatusCode, a.ProtoMajor)
		}
	}
	w.refused(get("a.test."), gate.ReasonMalformedHost)
	w.passed(get("a.test"))
	if n := w.proxy.Limits.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// frames speaks HTTP/2 as no client library would.
type frames struct {
	t  testing.TB
	fr *http2.Framer
	id uint32
}

func (w *world) frames(c net.Conn) *frames {
	w.Helper()
	_, err := io.WriteString(c, http2.ClientPreface)
	must(w, err)
	f := &frames{t: w, fr: http2.NewFramer(c, c), id: 1}
	f.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	must(w, f.fr.WriteSettings())
	return f
}

// send sends a header block on a stream of its own.
func (f *frames) send(fields ...string) (id uint32) {
	f.t.Helper()
	var block strings.Builder
	enc := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		must(f.t, enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	id = f.id
	f.id += 2
	const most = 16 << 10
	b := []byte(block.String())
	first := b[:min(most, len(b))]
	b = b[len(first):]
	must(f.t, f.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndHeaders: len(b) == 0, EndStream: true}))
	for len(b) > 0 {
		next := b[:min(most, len(b))]
		b = b[len(next):]
		must(f.t, f.fr.WriteContinuation(id, len(b) == 0, next))
	}
	return id
}

// ask sends a header block and answers with the status, or "reset".
func (f *frames) ask(fields ...string) (status string, reason gate.Reason) {
	f.t.Helper()
	id := f.send(fields...)
	for {
		frame, err := f.fr.ReadFrame()
		must(f.t, err)
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			for _, field := range frame.RegularFields() {
				if field.Name == "x-postern-reason" {
					reason = gate.Reason(field.Value)
				}
			}
			if frame.StreamID == id {
				return frame.PseudoValue("status"), reason
			}
		case *http2.RSTStreamFrame:
			if frame.StreamID == id {
				return "reset", ""
			}
		}
	}
}

func TestHTTP2HeadersAreHeldToOneReading(t *testing.T) {
	base := func(more ...string) []string {
		return append([]string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", "a.test"}, more...)
	}
	for name, test := range map[string]struct {
		fields []string
		status string
		why    gate.Reason
	}{
		"A11 host alone":             {[]string{":method", "GET", ":scheme", "https", ":path", "/", "host", "a.test"}, "200", ""},
		"A11 another host alone":     {[]string{":method", "GET", ":scheme", "https", ":path", "/", "host", "b.test"}, "421", gate.ReasonAuthorityMismatch},
		"host beside authority":      {base("host", "a.test"), "200", ""},
		"another beside authority":   {base("host", "b.test"), "421", gate.ReasonAuthorityMismatch},
		"two hosts":                  {base("host", "a.test", "host", "a.test"), "421", gate.ReasonAuthorityMismatch},
		"no authority":               {[]string{":method", "GET", ":scheme", "https", ":path", "/"}, "400", gate.ReasonMalformedHost},
		"userinfo":                   {[]string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", "x@a.test"}, "reset", ""},
		"C09 CR LF in a value":       {base("x-a", "b\r\nhost: b.test"), "reset", ""},
		"C09 NUL in a value":         {base("x-a", "b\x00"), "reset", ""},
		"C09 CR LF in the path":      {[]string{":method", "GET", ":scheme", "https", ":path", "/ HTTP/1.1\r\nX: y", ":authority", "a.test"}, "reset", ""},
		"C09 space in the path":      {[]string{":method", "GET", ":scheme", "https", ":path", "/a b", ":authority", "a.test"}, "400", gate.ReasonMalformedPath},
		"C09 CR LF in the method":    {[]string{":method", "GET / HTTP/1.1\r\nX: y", ":scheme", "https", ":path", "/", ":authority", "a.test"}, "reset", ""},
		"C08 CONNECT":                {[]string{":method", "CONNECT", ":authority", "a.test:443"}, "400", gate.ReasonMethodUnknown},
		"C08 extended CONNECT":       {[]string{":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":path", "/", ":authority", "a.test"}, "reset", ""},
		"E14 TRACE":                  {[]string{":method", "TRACE", ":scheme", "https", ":path", "/", ":authority", "a.test"}, "400", gate.ReasonMethodUnknown},
		"D07 lower case":             {[]string{":method", "get", ":scheme", "https", ":path", "/", ":authority", "a.test"}, "400", gate.ReasonMethodUnknown},
		"the filter's own method":    {[]string{":method", "POSTERN-VIOLATION", ":scheme", "https", ":path", "/", ":authority", "a.test"}, "400", gate.ReasonMethodUnknown},
		"asterisk":                   {[]string{":method", "OPTIONS", ":scheme", "https", ":path", "*", ":authority", "a.test"}, "400", gate.ReasonMalformedPath},
		"scheme http changes nought": {[]string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "a.test"}, "200", ""},
		"transfer-encoding":          {base("transfer-encoding", "chunked"), "400", ""},
		"upgrade":                    {base("upgrade", "h2c"), "400", ""},
		"a large head":               {base("x-a", strings.Repeat("a", 70<<10)), "431", gate.ReasonLimitHeader},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, allow("a.test"), allow("b.test"))
			w.start()
			f := w.frames(w.tls("a.test", h2only))
			status, why := f.ask(test.fields...)
			if status != test.status || why != test.why {
				t.Fatalf("%s %q, want %s %q", status, why, test.status, test.why)
			}
			switch {
			case status == "200":
				w.passed(answer{Response: &http.Response{StatusCode: 200}})
			case why == "": // net/http's own refusal: the request never was one
				if seen := w.sink.take(); len(seen) > 0 || len(w.log.rest()) > 0 {
					t.Errorf("the sink saw %q", seen)
				}
			default:
				w.recordedDenial(why)
			}
			if status, _ := f.ask(base()...); status != "200" {
				t.Errorf("another stream: %s", status)
			}
		})
	}
}

func TestTLSClientsWithoutAUsableName(t *testing.T) {
	for name, test := range map[string]struct {
		sni, behind string
		want        gate.Reason
	}{
		"A23 no SNI":         {"", "", gate.ReasonNoServerName},
		"A23 no SNI, known":  {"", "a.test", gate.ReasonNoServerName},
		"A16 NUL":            {"evil.test\x00.a.test", "", gate.ReasonMalformedHost},
		"A16 NUL, known":     {"evil.test\x00.a.test", "a.test", gate.ReasonMalformedHost},
		"a path":             {"../../etc/passwd", "a.test", gate.ReasonMalformedHost},
		"a wildcard":         {"*.a.test", "a.test", gate.ReasonMalformedHost},
		"a number":           {"2130706433", "a.test", gate.ReasonHostIsAddress},
		"a port":             {"a.test:443", "a.test", gate.ReasonMalformedHost},
		"A14 double dot":     {"a..test", "a.test", gate.ReasonMalformedHost},
		"non-ASCII":          {"\xc3\xa4.test", "a.test", gate.ReasonMalformedHost},
		"too long":           {strings.Repeat("a.", 126) + "test", "a.test", gate.ReasonMalformedHost},
		"too long, unknown":  {strings.Repeat("a.", 126) + "test", "", gate.ReasonMalformedHost},
		"not A-label":        {"xn--a.test", "a.test", gate.ReasonMalformedHost},
		"a name of its own":  {"evil.test", "", gate.ReasonHostNotListed},
		"another of our own": {"b.test", "a.test", gate.ReasonAuthorityMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, allow("a.test"), allow("b.test"))
			dst := unnamed(443)
			if test.behind != "" {
				dst = netip.AddrPortFrom(w.addressOf(test.behind), 443)
			}
			c := tls.Client(w.connect(dst), &tls.Config{ServerName: test.sni, InsecureSkipVerify: true})
			must(t, c.SetDeadline(time.Now().Add(patience)))
			err := c.Handshake()
			if test.behind == "" && test.want != gate.ReasonHostNotListed { // no name to explain it under
				if err == nil {
					t.Error("the handshake was completed")
				}
				if r := w.recordedDenial(test.want); r.Host != "203.0.113.7" || r.Port != 443 || r.Action != "connect" || r.Detail == "" {
					t.Errorf("%+v", r)
				}
				return
			}
			must(t, err)
			served := test.behind
			if test.want == gate.ReasonAuthorityMismatch || test.want == gate.ReasonHostNotListed {
				served = test.sni
			}
			must(t, c.ConnectionState().PeerCertificates[0].VerifyHostname(served))
			a := w.ask(c, get("/", served))
			w.refused(a, test.want)
			if w.minter.leaves != nil {
				t.Error("a lasting leaf was minted for a refusal")
			}
		})
	}
}

func TestAnAddressAsSNIIsRefused(t *testing.T) { // as no library sends it
	w := begin(t, allow("a.test"))
	client, server := net.Pipe()
	go func() { _ = tls.Client(client, &tls.Config{ServerName: "aaaaa.abc"}).Handshake() }()
	hello := make([]byte, 16<<10)
	n, err := server.Read(hello)
	must(t, err)
	server.Close()
	hello = bytes.Replace(hello[:n], []byte("aaaaa.abc"), []byte("127.0.0.1"), 1)
	c := w.connect(unnamed(443))
	_, err = c.Write(hello)
	must(t, err)
	if b, _ := io.ReadAll(c); len(b) > 0 {
		t.Errorf("answered %q", b)
	}
	w.recordedDenial(gate.ReasonHostIsAddress)
}

func TestTheBudgetForRefusedNamesEndsInSilence(t *testing.T) {
	w := newWorld(t, allow("a.test"))
	w.minter.budget = 1
	w.start()
	w.refused(w.ask(w.tls("evil.test"), get("/", "evil.test")), gate.ReasonHostNotListed)
	c := tls.Client(w.connect(netip.AddrPortFrom(w.addressOf("evil.test"), 443)), &tls.Config{ServerName: "evil.test", RootCAs: w.sessions.pool})
	if err := c.Handshake(); err == nil {
		t.Error("the handshake was completed")
	}
	if r := w.recordedDenial(gate.ReasonHostNotListed); !strings.Contains(r.Detail, "without explanation") {
		t.Errorf("%+v", r)
	}
	w.passed(w.ask(w.tls("a.test"), get("/", "a.test")))
}

func TestARefusedConnectionWithoutARequestIsRecorded(t *testing.T) {
	w := begin(t)
	w.tls("evil.test").Close()
	if r := w.recordedDenial(gate.ReasonHostNotListed); r.Host != "evil.test" || r.Action != "connect" || r.Detail == "" {
		t.Errorf("%+v", r)
	}
}

func TestRefusalsAreReadOverHTTP2(t *testing.T) {
	w := begin(t, allow("a.test"))
	resp, err := w.client(true).Get("https://evil.test/")
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != 403 || resp.ProtoMajor != 2 {
		t.Errorf("%v", resp)
	}
	w.refused(answer{Response: resp}, gate.ReasonHostNotListed)
}

func TestAllowedConnectionsWithoutARequestSayNothing(t *testing.T) {
	w := begin(t, allow("a.test"))
	w.tls("a.test").Close()
	w.connect(unnamed(443)).Close()
	w.passed(w.ask(w.tls("a.test"), get("/", "a.test"))) // nothing else is on record
}

func TestOtherProtocolsAreRefusedInTheirOwnWords(t *testing.T) {
	for name, test := range map[string]struct {
		says, hears string
		want        gate.Reason
	}{
		"SSH":       {"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0-postern\r\n", gate.ReasonSSH},
		"git":       {"0032git-upload-pack /a/b\x00host=a.test\x00", "ERR postern refused", gate.ReasonGitProtocol},
		"unknown":   {"\x00\x01\x02\x03", "", gate.ReasonProtocolUnknown},
		"torn TLS":  {"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00", "", gate.ReasonMalformedHello},
		"SSL 2":     {"\x80\x2e\x01\x00\x02", "", gate.ReasonProtocolUnknown},
		"HTTP/2":    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400 Bad Request", gate.ReasonMalformedRequest},
		"SMTP-like": {"EHLO a.test\r\n", "400 Bad Request", gate.ReasonMalformedRequest},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, allow("a.test"))
			c := w.connect(netip.AddrPortFrom(w.addressOf("a.test"), 22))
			_, err := io.WriteString(c, test.says)
			must(t, err)
			must(t, c.CloseWrite())
			b, err := io.ReadAll(c)
			must(t, err)
			if !strings.Contains(string(b), test.hears) || test.hears == "" && len(b) > 0 {
				t.Errorf("heard %q", b)
			}
			if r := w.recordedDenial(test.want); r.Host != "a.test" || r.Port != 22 {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestClientsThatDoNotTrustTheSessionAreNamed(t *testing.T) {
	w := begin(t, allow("a.test"))
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		c := tls.Client(w.connect(unnamed(443)), &tls.Config{ServerName: "a.test", RootCAs: x509.NewCertPool(), MaxVersion: version})
		if c.Handshake() == nil {
			t.Fatal("trusted")
		}
		c.Close()
		if r := w.recordedDenial(gate.ReasonHandshakeFailed); !strings.Contains(r.Detail, "does not trust") || r.Host != "a.test" {
			t.Errorf("%+v", r)
		}
	}
	c := w.connect(unnamed(443))
	broken := &breaking{Conn: c}
	_ = tls.Client(broken, &tls.Config{ServerName: "a.test", RootCAs: w.sessions.pool}).Handshake()
	if r := w.recordedDenial(gate.ReasonHandshakeFailed); !strings.Contains(r.Detail, "may not trust") {
		t.Errorf("%+v", r)
	}
}

// breaking hangs up when the server has answered.
type breaking struct{ net.Conn }

func (b *breaking) Read(p []byte) (int, error) {
	n, _ := b.Conn.Read(p)
	b.Conn.Close()
	return n, io.EOF
}

func TestTLSTicketsResumeWithinASessionOnly(t *testing.T) {
	w, other := begin(t, allow("a.test"), allow("b.test")), begin(t, allow("a.test"))
	cache := tls.NewLRUClientSessionCache(8)
	resumed := func(w *world, conf func(*tls.Config)) bool {
		c := w.tls("a.test", func(c *tls.Config) { c.ClientSessionCache = cache; conf(c) })
		w.passed(w.ask(c, get("/", "a.test"))) // reads the ticket too
		return c.ConnectionState().DidResume
	}
	same := func(*tls.Config) {}
	if resumed(w, same) || !resumed(w, same) {
		t.Error("no resumption within the session")
	}
	pool := x509.NewCertPool()
	pool.AddCert(w.sessions.cert)
	pool.AddCert(other.sessions.cert)
	if resumed(other, func(c *tls.Config) { c.RootCAs = pool }) {
		t.Error("a ticket was taken by another session")
	}
	w.enforce(allow("b.test"))
	a := w.ask(w.tls("a.test", func(c *tls.Config) { c.ClientSessionCache = cache }), get("/", "a.test"))
	w.refused(a, gate.ReasonHostNotListed) // whatever a ticket says
}

package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"postern/internal/core/gate"
)

// Every request that is refused for its form: nothing of it leaves, whatever the policy allows.
func TestFaultyRequestsAreRefused(t *testing.T) {
	post := func(fields, body string) string {
		return "POST / HTTP/1.1\r\nHost: a.test\r\n" + fields + "\r\n" + body
	}
	for name, test := range map[string]struct {
		raw  string
		want gate.Reason
	}{
		"B01 CL and TE":           {post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), gate.ReasonMalformedRequest},
		"B02 two lengths":         {post("Content-Length: 1\r\nContent-Length: 1\r\n", "x"), gate.ReasonMalformedRequest},
		"B02 a padded length":     {post("Content-Length: 01\r\n", "x"), gate.ReasonMalformedRequest},
		"B02 a signed length":     {post("Content-Length: +1\r\n", "x"), gate.ReasonMalformedRequest},
		"B03 obfuscated":          {post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), gate.ReasonMalformedRequest},
		"B03 upper case":          {post("Transfer-Encoding: CHUNKED\r\n", "0\r\n\r\n"), gate.ReasonMalformedRequest},
		"B05 chunk extension":     {post("Transfer-Encoding: chunked\r\n", "1;x=y\r\na\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
		"B05 bare LF":             {post("Transfer-Encoding: chunked\r\n", "1\na\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
		"B08 folded":              {get("/", "a.test", "X-A: b", " c"), gate.ReasonMalformedRequest},
		"B09 bare LF":             {"GET / HTTP/1.1\nHost: a.test\n\n", gate.ReasonMalformedRequest},
		"B10 NUL":                 {get("/", "a.test", "X-A: b\x00"), gate.ReasonMalformedRequest},
		"B10 space before colon":  {get("/", "a.test", "X-A : b"), gate.ReasonMalformedRequest},
		"B18 a large head":        {get("/", "a.test", "X-A: "+strings.Repeat("a", 70<<10)), gate.ReasonLimitHeader},
		"B18 a long target":       {get("/"+strings.Repeat("a", 17<<10), "a.test"), gate.ReasonLimitHeader},
		"B18 many fields":         {get("/", "a.test", slices.Repeat([]string{"X-A: b"}, 300)...), gate.ReasonLimitHeader},
		"C08 CONNECT in TLS":      {"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n", gate.ReasonMethodUnknown},
		"E14 TRACE":               {"TRACE / HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMethodUnknown},
		"E14 TRACK":               {"TRACK / HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMethodUnknown},
		"D07 lower case":          {"post / HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMethodUnknown},
		"D07 mixed case":          {"gEt / HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMethodUnknown},
		"D07 unknown":             {"PROPFIND / HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMethodUnknown},
		"D07 64 KiB":              {strings.Repeat("A", 64<<10) + " / HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonLimitHeader},
		"the filter's method":     {"POSTERN-VIOLATION / HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMethodUnknown},
		"D01 dot segment":         {get("/v1/../admin", "a.test"), gate.ReasonMalformedPath},
		"D01 single dot":          {get("/./x", "a.test"), gate.ReasonMalformedPath},
		"D01 last dot":            {get("/x/..", "a.test"), gate.ReasonMalformedPath},
		"D01 encoded dots":        {get("/v1/%2e%2e/admin", "a.test"), gate.ReasonMalformedPath},
		"D01 half encoded":        {get("/v1/.%2E/admin", "a.test"), gate.ReasonMalformedPath},
		"D02 encoded slash":       {get("/v1/a%2fb", "a.test"), gate.ReasonEncodedSlash},
		"D02 encoded backslash":   {get("/v1/a%5cb", "a.test"), gate.ReasonMalformedPath},
		"D02 backslash":           {get(`/v1\a`, "a.test"), gate.ReasonMalformedPath},
		"D02 doubled slash":       {get("//v1", "a.test"), gate.ReasonMalformedPath},
		"D02 doubled slash later": {get("/v1//a", "a.test"), gate.ReasonMalformedPath},
		"D02 parameters":          {get("/v1/..;/admin", "a.test"), gate.ReasonMalformedPath},
		"D02 parameters alone":    {get("/;x/admin", "a.test"), gate.ReasonMalformedPath},
		"double encoding":         {get("/v1/%252e", "a.test"), gate.ReasonMalformedPath},
		"encoded NUL":             {get("/v1/%00", "a.test"), gate.ReasonMalformedPath},
		"torn encoding":           {get("/v1/%zz", "a.test"), gate.ReasonMalformedPath},
		"a fragment":              {get("/v1#x", "a.test"), gate.ReasonMalformedPath},
		"not UTF-8":               {get("/v1/%ff", "a.test"), gate.ReasonMalformedPath},
		"raw non-ASCII":           {get("/v1/\xc3\xa4", "a.test"), gate.ReasonMalformedRequest},
		"asterisk":                {"OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
		"method override":         {post("Content-Length: 0\r\nX-HTTP-Method-Override: DELETE\r\n", ""), gate.ReasonMalformedRequest},
		"method override, CGI":    {post("Content-Length: 0\r\nX_HTTP.Method-Override: DELETE\r\n", ""), gate.ReasonMalformedRequest},
		"path override":           {get("/", "a.test", "X-Original-URL: /admin"), gate.ReasonMalformedRequest},
		"C04 WebSocket":           {get("/", "a.test", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13"), gate.ReasonUpgradeNotListed},
		"a client's TE":           {post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), gate.ReasonMalformedRequest},
		"an odd expectation":      {post("Content-Length: 1\r\nExpect: 200-ok\r\n", "x"), gate.ReasonMalformedRequest},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, allow("a.test"))
			a := w.ask(w.tls("a.test"), test.raw)
			w.refused(a, test.want)
			w.passed(w.ask(w.tls("a.test"), get("/v1/a", "a.test")))
		})
	}
}

func TestAFaultyHeadIsRecordedUnderItsConnectionsName(t *testing.T) {
	w := begin(t, allow("a.test"))
	w.ask(w.tls("a.test"), "GET / HTTP/1.1\nHost: b.test\n\n")
	if r := w.recordedDenial(gate.ReasonMalformedRequest); r.Host != "a.test" || r.Port != 443 || r.Method != "" || r.Status != 400 {
		t.Errorf("%+v", r)
	}
}

// What was judged is what is sent, byte for byte.
func TestTargetsTravelByteForByte(t *testing.T) {
	targets := []string{
		"/", "/?", "/??", "/a?b", "/a?b=c&d=e;f=g&&=&", "/a?%zz", "/a?%", "/a?x=%00%0d%0a", "/a?x=a+b%20c", "/a?/../..//", `/a?\"<>{}|^`,
		`/a{b}|"<>^` + "`", "/%41%c3%a4", "/a%20b", "/a;b=c/d;e", "/a,b:c@d!$&'()*+=~", "/a/", "/%7e~", "/a%3Fb?c", "/a%23b", "/a?http://b.test/",
		"/a?" + strings.Repeat("q", 8<<10), "/:443", "/http://b.test",
	}
	for _, h2 := range []bool{false, true} {
		w := begin(t, allow("a.test"))
		w.upstream.useH2.Store(h2)
		c := w.tls("a.test")
		br := bufio.NewReader(c)
		for _, target := range targets {
			if target == "/http://b.test" {
				continue // an empty segment
			}
			_, err := io.WriteString(c, get(target, "a.test"))
			must(t, err)
			seen, o := w.passed(w.read(br, "GET"))
			if seen.RequestURI != target || !h2 && seen.head != get(target, "a.test") {
				t.Errorf("HTTP/2 %v: %q was sent as %q (%q)", h2, target, seen.RequestURI, seen.head)
			}
			if path, _, _ := strings.Cut(target, "?"); o.Path != path {
				t.Errorf("%q is recorded as %q", target, o.Path)
			}
		}
	}
}

func TestFieldsThatEndAtTheGatewayDo(t *testing.T) {
	w := begin(t, allow("a.test"))
	seen, _ := w.passed(w.ask(w.tls("a.test"), get("/", "a.test", "Connection: X-Private, close", "X-Private: 1", "Keep-Alive: timeout=5",
		"Proxy-Connection: keep-alive", "Proxy-Authorization: Basic eA==", "TE: gzip", "Trailer: X-T", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__",
		"X-Kept: a", "X-Kept: b", "x-lower: c", "Accept: */*")))
	want := "GET / HTTP/1.1\r\nHost: a.test\r\nAccept: */*\r\nX-Kept: a\r\nX-Kept: b\r\nX-Lower: c\r\n\r\n"
	if sorted(seen.head) != sorted(want) {
		t.Errorf("sent %q, want %q", seen.head, want)
	}
	seen, _ = w.passed(w.ask(w.tls("a.test"), get("/", "a.test", "TE: trailers, deflate", "User-Agent: x")))
	if want := "GET / HTTP/1.1\r\nHost: a.test\r\nUser-Agent: x\r\nTe: trailers\r\n\r\n"; seen.head != want {
		t.Errorf("sent %q, want %q", seen.head, want)
	}
}

func sorted(head string) string {
	lines := strings.Split(head, "\r\n")
	slices.Sort(lines[1:])
	return strings.Join(lines, "\n")
}

func TestOtherUpgradesAreDropped(t *testing.T) { // C01
	for _, upgrade := range []string{"h2c", "TLS/1.0", "websocket2", "h2c, foo"} {
		w := begin(t, allow("a.test", sockets))
		w.sink.says("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
		a := w.ask(w.tls("a.test"), get("/", "a.test", "Connection: Upgrade, HTTP2-Settings", "Upgrade: "+upgrade, "HTTP2-Settings: AAMAAABkAAQAAP__"))
		if a.StatusCode != http.StatusBadGateway || a.reason() != gate.ReasonUpstream {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
		if seen := w.sink.take(); len(seen) != 1 || strings.Contains(seen[0].head, "pgrade") || strings.Contains(seen[0].head, "HTTP2") {
			t.Errorf("sent %q", seen)
		}
	}
}

// A request's body that is itself a request stays a body (B13).
func TestBodiesStayBodies(t *testing.T) {
	inner := get("/evil", "b.test")
	for _, method := range []string{"GET", "HEAD", "DELETE", "OPTIONS", "POST", "PATCH", "PUT"} {
		for _, framing := range []string{"length", "chunked"} {
			w := begin(t, allow("a.test"))
			var got string
			w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				if err == nil {
					got = string(b)
				}
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}, nil)
			head := method + " /x HTTP/1.1\r\nHost: a.test\r\n"
			if framing == "length" {
				head += "Content-Length: " + itoa(len(inner)) + "\r\n\r\n" + inner
			} else {
				head += "Transfer-Encoding: chunked\r\n\r\n" + hex(len(inner)) + "\r\n" + inner + "\r\n0\r\n\r\n"
			}
			c := w.tls("a.test")
			br := bufio.NewReader(c)
			for range 2 { // the connection goes on
				_, err := io.WriteString(c, head)
				must(t, err)
				if _, o := w.passed(w.read(br, method)); o.BytesIn != int64(len(inner)) {
					t.Errorf("%s %s: %d bytes in", method, framing, o.BytesIn)
				}
				if got != inner {
					t.Errorf("%s %s: the sink read %q", method, framing, got)
				}
			}
		}
	}
}

func TestATornBodyNeverArrivesWhole(t *testing.T) { // B05
	for name, raw := range map[string]string{
		"bad second chunk": "5\r\nhello\r\nzz\r\n",
		"spill":            "5\r\nhello!!\r\n0\r\n\r\n",
		"bad trailer":      "5\r\nhello\r\n0\r\nContent-Length: 3\r\n\r\n",
		"extension later":  "5\r\nhello\r\n5;x\r\nhello\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, allow("a.test"))
			torn := make(chan bool, 1)
			w.sink.answers(func(c net.Conn, _ *bufio.Reader, r *http.Request) {
				_, err := io.ReadAll(r.Body)
				torn <- err != nil
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				c.Close()
			}, nil)
			a := w.ask(w.tls("a.test"), "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n"+raw)
			if !<-torn {
				t.Error("the sink read a whole body")
			}
			if a.StatusCode != 400 || a.reason() != gate.ReasonMalformedRequest {
				t.Errorf("%d %q", a.StatusCode, a.body)
			}
			if d, o := w.log.next(t), w.log.next(t); d.Verdict != "allow" || o.Reason != gate.ReasonMalformedRequest || o.Status != 400 {
				t.Errorf("%+v, %+v", d, o)
			}
		})
	}
}

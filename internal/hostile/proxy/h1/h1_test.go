package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"postern/internal/core/gate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is a connection that reads the given segments, then EOF.
type script struct {
	net.Conn
	segments [][]byte
}

func (s *script) Read(p []byte) (int, error) {
	for len(s.segments) > 0 && len(s.segments[0]) == 0 {
		s.segments = s.segments[1:]
	}
	if len(s.segments) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.segments[0])
	s.segments[0] = s.segments[0][n:]
	return n, nil
}

func (*script) SetReadDeadline(time.Time) error { return nil }

// pass sends input through a filter in segments of size n and returns what came out, without the stand-in, and the violation.
func pass(t testing.TB, input string, n int, l Limits) (string, *Violation) {
	t.Helper()
	c := NewConn(&script{segments: slices.Collect(slices.Chunk([]byte(input), n))}, l)
	var out bytes.Buffer
	_, err := out.ReadFrom(readerOnly{c})
	v := c.violation.Load()
	if err != nil && !errors.Is(err, v) {
		t.Fatalf("read: %v", err)
	}
	text, standIn := strings.CutSuffix(out.String(), violationHead)
	if standIn && (v == nil || c.phase != refused) {
		t.Fatalf("a stand-in without a violation")
	}
	if !strings.HasPrefix(input, text) {
		t.Fatalf("bytes were changed:\n%q\n%q", input, text)
	}
	return text, v
}

type readerOnly struct{ io.Reader }

const (
	get  = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
	post = "POST / HTTP/1.1\r\nHost: a.test\r\n"
)

func chunked(body string) string { return post + "Transfer-Encoding: chunked\r\n\r\n" + body }

// The rows of the attack catalogue that concern framing, each next to its nearest legitimate twin (want "").
var rows = []struct {
	name, in string
	want     gate.Reason
}{
	{"plain request", get, ""},
	{"plain body", post + "Content-Length: 5\r\n\r\nhello", ""},
	{"plain chunks", chunked("5\r\nhello\r\n0\r\n\r\n"), ""},

	// B01
	{"length and chunks", post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"chunks and length", post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"chunks in HTTP/1.0", "POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"length in HTTP/1.0", "POST / HTTP/1.0\r\nHost: a.test\r\nContent-Length: 1\r\n\r\nx", ""},

	// B02
	{"two equal lengths", post + "Content-Length: 0\r\nContent-Length: 0\r\n\r\n", gate.ReasonMalformedRequest},
	{"two lengths", post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", gate.ReasonMalformedRequest},
	{"length list", post + "Content-Length: 5, 5\r\n\r\nhello", gate.ReasonMalformedRequest},
	{"length with plus", post + "Content-Length: +5\r\n\r\nhello", gate.ReasonMalformedRequest},
	{"length with minus", post + "Content-Length: -5\r\n\r\n", gate.ReasonMalformedRequest},
	{"length in hex", post + "Content-Length: 0x5\r\n\r\nhello", gate.ReasonMalformedRequest},
	{"length with leading zero", post + "Content-Length: 05\r\n\r\nhello", gate.ReasonMalformedRequest},
	{"empty length", post + "Content-Length: \r\n\r\n", gate.ReasonMalformedRequest},
	{"no length at all", post + "Content-Length:\r\n\r\n", gate.ReasonMalformedRequest},
	{"length 2^64", post + "Content-Length: 18446744073709551616\r\n\r\n", gate.ReasonMalformedRequest},
	{"length 2^63", post + "Content-Length: 9223372036854775808\r\n\r\n", gate.ReasonMalformedRequest},
	{"length 2^62+1", post + "Content-Length: 4611686018427387905\r\n\r\n", gate.ReasonMalformedRequest},
	{"length 2^62", post + "Content-Length: 4611686018427387904\r\n\r\nx", ""},
	{"length after tab", post + "Content-Length:\t5\r\n\r\nhello", gate.ReasonMalformedRequest},
	{"length before space", post + "Content-Length: 5 \r\n\r\nhello", gate.ReasonMalformedRequest},
	{"length after two spaces", post + "Content-Length:  5\r\n\r\nhello", gate.ReasonMalformedRequest},
	{"length with underscore", post + "Content-Length: 1_0\r\n\r\n", gate.ReasonMalformedRequest},
	{"length with fraction", post + "Content-Length: 5.0\r\n\r\nhello", gate.ReasonMalformedRequest},
	{"length zero", post + "Content-Length: 0\r\n\r\n", ""},
	{"length without space", post + "cOnTeNt-LeNgTh:5\r\n\r\nhello", ""},

	// B03
	{"xchunked", post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"chunked after tab", post + "Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"chunked after vertical tab", post + "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"space before colon", post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"folded chunked", post + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"CHUNKED", post + "Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"identity", post + "Transfer-Encoding: identity\r\n\r\n", gate.ReasonMalformedRequest},
	{"chunked twice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"chunked and identity", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"gzip, chunked", post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"chunked, chunked", post + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"chunked with parameter", post + "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"quoted chunked", post + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"chunked, with comma", post + "Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"chunked before space", post + "Transfer-Encoding: chunked \r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"empty transfer encoding", post + "Transfer-Encoding:\r\n\r\n", gate.ReasonMalformedRequest},
	{"chunked with NUL", post + "Transfer-Encoding: chunked\x00\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"name in any case", post + "transfer-ENCODING: chunked\r\n\r\n0\r\n\r\n", ""},

	// B05: in the first chunk nothing is released
	{"chunk extension", chunked("5;a=b\r\nhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"chunk extension with bare LF", chunked("5;\nx\r\nhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"chunk size ended by LF", chunked("5\nhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"chunk size ended by CR", chunked("5\rhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"chunk size 0x5", chunked("0x5\r\nhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"chunk size +5", chunked("+5\r\nhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"chunk size -5", chunked("-5\r\nhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"chunk size 1_0", chunked("1_0\r\nhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"space before chunk size", chunked(" 5\r\nhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"space after chunk size", chunked("5 \r\nhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"empty chunk size", chunked("\r\nhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"17 digits", chunked("00000000000000005\r\nhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"chunk over 2^62", chunked("ffffffffffffffff\r\nhello"), gate.ReasonMalformedRequest},
	{"missing CRLF after data", chunked("5\r\nhello0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"bare LF after data", chunked("5\r\nhello\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"data longer than its size", chunked("3\r\nhello\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"second size wrong", chunked("5\r\nhello\r\nxyz\r\n0\r\n\r\n"), gate.ReasonMalformedRequest},
	{"end without CRLF", chunked("0\r\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n"), gate.ReasonMalformedRequest},
	{"bare LF at the end", chunked("0\r\n\n"), gate.ReasonMalformedRequest},
	{"16 digits and capitals", chunked("000000000000000A\r\n0123456789\r\n00\r\n\r\n"), ""},
	{"a trailer", chunked("0\r\nX-Checksum: abc\r\nY:\r\n\r\n"), ""},
	{"trailer Content-Length", chunked("0\r\nContent-Length: 5\r\n\r\n"), gate.ReasonMalformedRequest},
	{"trailer Host", chunked("0\r\nhOST: evil.test\r\n\r\n"), gate.ReasonMalformedRequest},
	{"trailer Authorization", chunked("0\r\nAuthorization: x\r\n\r\n"), gate.ReasonMalformedRequest},
	{"folded trailer", chunked("0\r\nX: a\r\n b\r\n\r\n"), gate.ReasonMalformedRequest},
	{"trailer without name", chunked("0\r\n: a\r\n\r\n"), gate.ReasonMalformedRequest},
	{"trailer with space in name", chunked("0\r\nX : a\r\n\r\n"), gate.ReasonMalformedRequest},
	{"trailer with NUL", chunked("0\r\nX: a\x00\r\n\r\n"), gate.ReasonMalformedRequest},
	{"trailer with bare LF", chunked("0\r\nX: a\n\r\n"), gate.ReasonMalformedRequest},
	{"trailer with bare CR", chunked("0\r\nX: a\rb\r\n\r\n"), gate.ReasonMalformedRequest},
	{"trailer of 3 KiB", chunked("0\r\nX: " + strings.Repeat("a", 3<<10) + "\r\n\r\n"), gate.ReasonLimitHeader},
	{"33 trailers", chunked("0\r\n" + strings.Repeat("X: a\r\n", 33) + "\r\n"), gate.ReasonLimitHeader},
	{"declared trailer", post + "Transfer-Encoding: chunked\r\nTrailer: X-Checksum, Y\r\n\r\n0\r\nX-Checksum: a\r\n\r\n", ""},
	{"declared trailer Content-Length", post + "Transfer-Encoding: chunked\r\nTrailer: X, content-length\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},
	{"declared trailer of no token", post + "Transfer-Encoding: chunked\r\nTrailer: a b\r\n\r\n0\r\n\r\n", gate.ReasonMalformedRequest},

	// B08, B09
	{"folded header", "GET / HTTP/1.1\r\nHost: a.test\r\nX: a\r\n b\r\n\r\n", gate.ReasonMalformedRequest},
	{"header folded with tab", "GET / HTTP/1.1\r\nHost: a.test\r\nX: a\r\n\tb\r\n\r\n", gate.ReasonMalformedRequest},
	{"first header folded", "GET / HTTP/1.1\r\n Host: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"bare LF after request line", "GET / HTTP/1.1\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"bare LF after header", "GET / HTTP/1.1\r\nHost: a.test\n\r\n", gate.ReasonMalformedRequest},
	{"bare LF at the end", "GET / HTTP/1.1\r\nHost: a.test\r\n\n", gate.ReasonMalformedRequest},
	{"bare CR in value", "GET / HTTP/1.1\r\nHost: a.test\r\nX: a\rb\r\n\r\n", gate.ReasonMalformedRequest},
	{"CR CR LF", "GET / HTTP/1.1\r\nHost: a.test\r\nX: a\r\r\n\r\n", gate.ReasonMalformedRequest},
	{"bare CR ends line", "GET / HTTP/1.1\rHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"empty line first", "\r\n" + get, gate.ReasonMalformedRequest},
	{"one long line instead", "GET / HTTP/1.1\r\nHost: a.test\r\nX: a b\tc \t \r\n\r\n", ""},

	// B10
	{"NUL in value", "GET / HTTP/1.1\r\nHost: a.test\r\nX: a\x00b\r\n\r\n", gate.ReasonMalformedRequest},
	{"DEL in value", "GET / HTTP/1.1\r\nHost: a.test\r\nX: a\x7fb\r\n\r\n", gate.ReasonMalformedRequest},
	{"ESC in value", "GET / HTTP/1.1\r\nHost: a.test\r\nX: \x1b[31m\r\n\r\n", gate.ReasonMalformedRequest},
	{"NUL in name", "GET / HTTP/1.1\r\nHost: a.test\r\nX\x00: a\r\n\r\n", gate.ReasonMalformedRequest},
	{"space in name", "GET / HTTP/1.1\r\nHost: a.test\r\nX Y: a\r\n\r\n", gate.ReasonMalformedRequest},
	{"parenthesis in name", "GET / HTTP/1.1\r\nHost: a.test\r\nX(: a\r\n\r\n", gate.ReasonMalformedRequest},
	{"UTF-8 in name", "GET / HTTP/1.1\r\nHost: a.test\r\nX\xc3\xbc: a\r\n\r\n", gate.ReasonMalformedRequest},
	{"empty name", "GET / HTTP/1.1\r\nHost: a.test\r\n: a\r\n\r\n", gate.ReasonMalformedRequest},
	{"no colon", "GET / HTTP/1.1\r\nHost: a.test\r\nX\r\n\r\n", gate.ReasonMalformedRequest},
	{"UTF-8 in value", "GET / HTTP/1.1\r\nHost: a.test\r\nX: \xc3\xbc\r\n!#$%&'*+-.^_`|~: a\r\nY:\r\n\r\n", ""},

	// Host and the other names of the host: A06, A15–A17
	{"no Host", "GET / HTTP/1.1\r\n\r\n", gate.ReasonMalformedAuthority},
	{"no Host in HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", gate.ReasonMalformedAuthority},
	{"empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", gate.ReasonMalformedAuthority},
	{"Host of a space", "GET / HTTP/1.1\r\nHost: \r\n\r\n", gate.ReasonMalformedAuthority},
	{"two Hosts", "GET / HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedAuthority},
	{"Host list", "GET / HTTP/1.1\r\nHost: a.test, b.test\r\n\r\n", gate.ReasonMalformedAuthority},
	{"Host with userinfo", "GET / HTTP/1.1\r\nHost: a.test@evil.test\r\n\r\n", gate.ReasonMalformedAuthority},
	{"Host with slash", "GET / HTTP/1.1\r\nHost: a.test/x\r\n\r\n", gate.ReasonMalformedAuthority},
	{"Host after tab", "GET / HTTP/1.1\r\nHost:\ta.test\r\n\r\n", gate.ReasonMalformedAuthority},
	{"Host before space", "GET / HTTP/1.1\r\nHost: a.test \r\n\r\n", gate.ReasonMalformedAuthority},
	{"Host with port", "GET / HTTP/1.1\r\nHost: a.test:8443\r\n\r\n", ""},
	{"Host that only the caller can judge", "GET / HTTP/1.1\r\nHost: [a.test].:99999\r\n\r\n", ""},
	{"absolute target", "GET http://a.test/x?y HTTP/1.1\r\nHost: A.test:80\r\n\r\n", ""},
	{"absolute https target", "GET https://a.test:8443/ HTTP/1.1\r\nHost: a.test:8443\r\n\r\n", ""},
	{"absolute target, other Host", "GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n", gate.ReasonAuthorityMismatch},
	{"absolute target, other port", "GET http://a.test/ HTTP/1.1\r\nHost: a.test:8080\r\n\r\n", gate.ReasonAuthorityMismatch},
	{"absolute target, no Host", "GET http://a.test/ HTTP/1.1\r\n\r\n", gate.ReasonMalformedAuthority},
	{"absolute target in HTTP/1.0", "GET http://a.test/ HTTP/1.0\r\n\r\n", ""},
	{"absolute target of ftp", "GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"absolute target without path", "GET http://a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"absolute target without host", "GET http:/// HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedAuthority},
	{"absolute target with userinfo", "GET http://a.test@b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedAuthority},
	{"absolute target of an address", "GET http://[::1]/ HTTP/1.1\r\nHost: [::1]\r\n\r\n", gate.ReasonHostIsAddress},
	{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"authority target", "GET a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"CONNECT", "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n", gate.ReasonMethodUnknown}, // C08

	// Request line
	{"HTTP/0.9", "GET /\r\n\r\n", gate.ReasonMalformedRequest},
	{"HTTP/1.2", "GET / HTTP/1.2\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"HTTP/01.1", "GET / HTTP/01.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"http/1.1", "GET / http/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", gate.ReasonMalformedRequest},
	{"two spaces", "GET  / HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"tab between", "GET\t/ HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"space before method", " GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"space in target", "GET /a b HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"space after version", "GET / HTTP/1.1 \r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"NUL in target", "GET /\x00 HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"UTF-8 in target", "GET /\xc3\xbc HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"method of no token", "G@T / HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"method of 33 letters", strings.Repeat("G", 33) + " / HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedRequest},
	{"malformed percent-encoding", "GET /%zz HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedPath},
	{"torn percent-encoding", "GET /a%2 HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonMalformedPath},
	{"percent in query", "GET /a?%zz HTTP/1.1\r\nHost: a.test\r\n\r\n", ""},
	{"what only the caller can judge", "gEt //a/../%2e%2E/\\#?%00 HTTP/1.1\r\nHost: a.test\r\n\r\n", ""},
	{"the stand-in itself", violationHead, gate.ReasonMethodUnknown},

	// Expect: net/http would answer others on its own
	{"expect continue", post + "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\nx", ""},
	{"other expectation", post + "Expect: 200-ok\r\nContent-Length: 1\r\n\r\nx", gate.ReasonMalformedRequest},

	// B11, B13: the next request is judged on its own
	{"pipelined", get + get, ""},
	{"pipelined after length", post + "Content-Length: 5\r\n\r\nhello" + get, ""},
	{"pipelined after chunks", chunked("5\r\nhello\r\n0\r\n\r\n") + get, ""},
	{"body of GET that is a request", "GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 33\r\n\r\n" + get, ""},
	{"second has no Host", get + "GET /admin HTTP/1.1\r\n\r\n", gate.ReasonMalformedAuthority},
	{"junk after length", post + "Content-Length: 5\r\n\r\nhelloworld\r\n", gate.ReasonMalformedRequest},

	// B18
	{"request line of 17 KiB", "GET /" + strings.Repeat("a", 17<<10) + " HTTP/1.1\r\nHost: a.test\r\n\r\n", gate.ReasonLimitHeader},
	{"request line of 1 MiB", "GET /" + strings.Repeat("a", 1<<20), gate.ReasonLimitHeader},
	{"request line of 16 KiB", "GET /" + strings.Repeat("a", 16<<10-1) + " HTTP/1.1\r\nHost: a.test\r\n\r\n", ""},
	{"head of 64 KiB", "GET / HTTP/1.1\r\nHost: a.test\r\nX: " + strings.Repeat("a", 64<<10) + "\r\n\r\n", gate.ReasonLimitHeader},
	{"head just below 64 KiB", "GET / HTTP/1.1\r\nHost: a.test\r\nX: " + strings.Repeat("a", 64<<10-39) + "\r\n\r\n", ""},
	{"201 fields", "GET / HTTP/1.1\r\nHost: a.test\r\n" + strings.Repeat("X: a\r\n", 200) + "\r\n", gate.ReasonLimitHeader},
	{"200 fields", "GET / HTTP/1.1\r\nHost: a.test\r\n" + strings.Repeat("X: a\r\n", 199) + "\r\n", ""},
}

func TestGrammar(t *testing.T) {
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, n := range []int{len(row.in), 1, 7} {
				if n == 1 && len(row.in) > 1<<17 {
					continue
				}
				out, v := pass(t, row.in, n, Limits{})
				if v == nil {
					v = &Violation{}
				}
				if v.Reason != row.want {
					t.Fatalf("segments of %d: %q (%s), want %q", n, v.Reason, v.Detail, row.want)
				}
				if row.want == "" && out != row.in {
					t.Fatalf("segments of %d: only %q came out", n, out)
				}
			}
		})
	}
}

func TestAcceptedTwinsAreAcceptedByNetHTTP(t *testing.T) {
	for _, row := range rows {
		if row.want != "" {
			continue
		}
		br := bufio.NewReader(strings.NewReader(row.in))
		for {
			r, err := http.ReadRequest(br)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Errorf("%s: %v", row.name, err)
				break
			}
			io.Copy(io.Discard, r.Body)
		}
	}
}

func TestNothingOfARequestWithATornFirstChunkIsReleased(t *testing.T) {
	for _, size := range []string{"5;x\r\n", "5\n", "0x5\r\n", "\r\n", "g", "5 \r\n", "00000000000000000"} {
		for _, n := range []int{1, 1000} {
			if out, v := pass(t, get+chunked(size+"hello\r\n0\r\n\r\n"), n, Limits{}); out != get || v == nil {
				t.Errorf("%q: %q got through, %v", size, out, v)
			}
		}
	}
}

func TestBodyFaultFailsTheBody(t *testing.T) {
	in := chunked("5\r\nhello\r\n5;x\r\nworld\r\n0\r\n\r\n")
	c := NewConn(&script{segments: [][]byte{[]byte(in)}}, Limits{})
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r.Body)
	var v *Violation
	if !errors.As(err, &v) || v.Reason != gate.ReasonMalformedRequest || string(b) != "hello" {
		t.Fatalf("%q, %v", b, err)
	}
	if want := int64(strings.Index(in, ";")); v.Offset != want {
		t.Errorf("offset %d, want %d", v.Offset, want)
	}
	if c.Violation(r.Method) != nil {
		t.Error("the client's own request was taken for the stand-in")
	}
}

func TestViolationNamesItsPlace(t *testing.T) {
	in := get + post + "Content-Length: 5\r\n\r\nhello" + "GET / HTTP/1.1\r\nHost: a.test\r\nX\x01: y\r\n\r\n"
	for n := 1; n <= len(in); n++ {
		if _, v := pass(t, in, n, Limits{}); v == nil || v.Offset != int64(strings.IndexByte(in, 1)) {
			t.Fatalf("segments of %d: %+v", n, v)
		}
	}
}

func TestConnectNeedsAProxy(t *testing.T) {
	for in, want := range map[string]gate.Reason{
		"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n":                           "",
		"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n":                               "",
		"CONNECT a.test:443 HTTP/1.0\r\n\r\n":                                               "", // Python before 3.12
		"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\nContent-Length: 0\r\n\r\n":      "",
		"CONNECT a.test:443 HTTP/1.1\r\n\r\n":                                               gate.ReasonMalformedAuthority,
		"CONNECT a.test HTTP/1.1\r\nHost: a.test\r\n\r\n":                                   gate.ReasonMalformedAuthority,
		"CONNECT /x HTTP/1.1\r\nHost: a.test\r\n\r\n":                                       gate.ReasonMalformedAuthority,
		"CONNECT a.test:44x HTTP/1.1\r\nHost: a.test\r\n\r\n":                               gate.ReasonMalformedAuthority,
		"CONNECT a@b.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n":                             gate.ReasonMalformedAuthority,
		"CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n\r\n":                             gate.ReasonHostIsAddress,
		"CONNECT a.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n":                           gate.ReasonAuthorityMismatch,
		"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:444\r\n\r\n":                           gate.ReasonAuthorityMismatch,
		"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\nContent-Length: 1\r\n\r\nx":     gate.ReasonMalformedRequest,
		"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n": gate.ReasonMalformedRequest,
	} {
		_, v := pass(t, in, len(in), Limits{AllowConnect: true})
		if v == nil {
			v = &Violation{}
		}
		if v.Reason != want {
			t.Errorf("%q: %q, want %q", in, v.Reason, want)
		}
	}
}

func TestSmallHeaderLimit(t *testing.T) {
	for size := len(get) - 3; size < len(get)+3; size++ {
		_, v := pass(t, get, 5, Limits{Header: size})
		if (v != nil) != (size < len(get)) || v != nil && v.Reason != gate.ReasonLimitHeader {
			t.Errorf("%d of %d bytes: %v", size, len(get), v)
		}
	}
}

func TestHeaderMemoryIsBounded(t *testing.T) {
	in := strings.Repeat("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nX: "+strings.Repeat("a", 60<<10)+"\r\n\r\n1\r\nx\r\n0\r\n\r\n", 20)
	c := NewConn(&script{segments: [][]byte{[]byte(in)}}, Limits{})
	p := make([]byte, 256<<10)
	largest, total := 0, 0
	for {
		n, err := c.Read(p)
		largest, total = max(largest, cap(c.buf)), total+n
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if largest > 3*defaultHeader || total != len(in) {
		t.Errorf("%d bytes passed through a buffer of %d", total, largest)
	}
	if cap(c.buf) > keptBuffer {
		t.Errorf("an idle connection keeps %d bytes", cap(c.buf))
	}
}

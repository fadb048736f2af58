package h1

import (
	"bytes"
	"math"

	"postern/internal/core/gate"
)

// fault is a Violation before its place in the stream is known. The zero fault is none.
type fault struct {
	reason gate.Reason
	detail string
	at     int // bytes before it
}

func malformed(at int, detail string) fault { return fault{gate.ReasonMalformedRequest, detail, at} }

// head is the state of reading one request head (RFC 9112 §2 to §6).
type head struct {
	pos    int // where the current line begins
	seek   int // no line ends before it
	lines  int // lines read so far
	fields int

	http10, connect bool
	chunked, expect bool
	counted, hosted bool // saw Content-Length, Host
	length          int64
	authority, host span   // of an absolute-form or authority-form target; of the Host field
	port            string // the target scheme's default port
	absolute        bool
}

// span is a part of the head.
type span struct{ from, to int }

// scan reads on in b, which holds the head from its first byte and grows from call to call. It returns the length of the
// head once that is whole and in order, and zero before.
func (h *head) scan(b []byte, l *Limits) (int, fault) {
	for {
		i := bytes.IndexByte(b[h.seek:], '\n')
		if i < 0 {
			h.seek = len(b)
			return 0, h.tooLong(len(b), l)
		}
		end := h.seek + i
		if f := h.tooLong(end+1, l); f.reason != "" {
			return 0, f
		}
		if end == h.pos || b[end-1] != '\r' {
			return 0, malformed(end, "a line that ends in a bare LF")
		}
		line := b[h.pos : end-1]
		var f fault
		switch {
		case h.lines == 0:
			f = h.requestLine(line, l)
		case len(line) == 0:
			return end + 1, h.finish(b)
		default:
			f = h.field(line)
		}
		if f.reason != "" {
			f.at += h.pos
			return 0, f
		}
		h.lines++
		h.pos, h.seek = end+1, end+1
	}
}

// tooLong judges the size of the first n bytes.
func (h *head) tooLong(n int, l *Limits) fault {
	switch {
	case n > l.Header:
		return fault{gate.ReasonLimitHeader, "the request head is too large", l.Header}
	case h.lines == 0 && n > maxRequestLine:
		return fault{gate.ReasonLimitHeader, "the request line is too long", maxRequestLine}
	}
	return fault{}
}

// requestLine reads METHOD SP target SP HTTP/1.1 (RFC 9112 §3). HTTP/1.0 is read alike: a few old clients speak it.
func (h *head) requestLine(line []byte, l *Limits) fault {
	sp := bytes.IndexByte(line, ' ')
	last := bytes.LastIndexByte(line, ' ')
	if sp <= 0 || last <= sp+1 {
		return malformed(0, "a request line that is not method, target and version")
	}
	for i, c := range line[:sp] {
		if !isToken[c] || i >= maxMethod {
			return malformed(i, "a method that is no token")
		}
	}
	for i, c := range line[sp+1 : last] {
		if c <= ' ' || c >= 0x7f {
			return malformed(sp+1+i, "a byte that a request target must encode")
		}
	}
	method, target := line[:sp], line[sp+1:last]
	switch version := string(line[last+1:]); {
	case version == "HTTP/1.0":
		h.http10 = true
	case version == "HTTP/2.0" && string(method) == "PRI":
		return malformed(last+1, "HTTP/2 without TLS")
	case version != "HTTP/1.1":
		return malformed(last+1, "a version other than HTTP/1.1 or HTTP/1.0")
	}
	if string(method) == violationMethod {
		return fault{gate.ReasonMethodUnknown, "a method that no client has", 0}
	}
	h.connect = string(method) == "CONNECT"
	f := h.target(target, l)
	f.at += sp + 1
	h.authority.from += sp + 1
	h.authority.to += sp + 1
	return f
}

// target accepts origin-form, absolute-form of http and https, and for CONNECT authority-form (RFC 9112 §3.2).
func (h *head) target(t []byte, l *Limits) fault {
	if h.connect {
		if !l.AllowConnect {
			return fault{gate.ReasonMethodUnknown, "CONNECT where no proxy is", 0}
		}
		h.authority = span{0, len(t)}
		return checkAuthority(t, true)
	}
	if t[0] == '/' {
		return checkPercent(t, 0)
	}
	for _, s := range schemes {
		if !bytes.HasPrefix(t, []byte(s.prefix)) {
			continue
		}
		from := len(s.prefix)
		slash := bytes.IndexByte(t[from:], '/')
		if slash < 0 {
			return malformed(len(t), "an absolute target without a path")
		}
		h.absolute, h.port, h.authority = true, s.port, span{from, from + slash}
		if f := checkAuthority(t[from:from+slash], false); f.reason != "" {
			f.at += from
			return f
		}
		return checkPercent(t, from+slash)
	}
	return malformed(0, "a target that is neither a path nor an http address")
}

var schemes = [...]struct{ prefix, port string }{{"http://", "80"}, {"https://", "443"}}

// checkPercent refuses what net/http would answer on its own: a path with a malformed percent-encoding.
func checkPercent(t []byte, from int) fault {
	for i := from; i < len(t) && t[i] != '?'; i++ {
		if t[i] == '%' && (i+2 >= len(t) || !isHex(t[i+1]) || !isHex(t[i+2])) {
			return fault{gate.ReasonMalformedPath, "a malformed percent-encoding", i}
		}
	}
	return fault{}
}

// checkAuthority accepts the bytes of host or host:port; gate.ParseAuthority judges the rest.
func checkAuthority(a []byte, needPort bool) fault {
	if len(a) > 0 && a[0] == '[' {
		return fault{gate.ReasonHostIsAddress, "an IP address in place of a name", 0}
	}
	name, port, ok := bytes.Cut(a, []byte(":"))
	if len(name) == 0 || ok && (len(port) == 0 || len(port) > 5) || !ok && needPort {
		return fault{gate.ReasonMalformedAuthority, "an authority that is not host:port", 0}
	}
	for i, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return fault{gate.ReasonMalformedAuthority, "a byte that no host name has", i}
		}
	}
	for i, c := range port {
		if c < '0' || c > '9' {
			return fault{gate.ReasonMalformedAuthority, "a port that is no number", len(name) + 1 + i}
		}
	}
	return fault{}
}

// field reads one field line (RFC 9112 §5).
func (h *head) field(line []byte) fault {
	if h.fields++; h.fields > maxFields {
		return fault{gate.ReasonLimitHeader, "more than 200 header fields", 0}
	}
	if line[0] == ' ' || line[0] == '\t' {
		return malformed(0, "a folded header line")
	}
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 {
		return malformed(0, "a header line without a name")
	}
	for i, c := range line[:colon] {
		if !isToken[c] {
			return malformed(i, "a header name that is no token")
		}
	}
	for i, c := range line[colon+1:] {
		if c < ' ' && c != '\t' || c == 0x7f {
			return malformed(colon+1+i, "a control byte in a header value")
		}
	}
	f := h.known(line[:colon], line[colon+1:], colon+1)
	if f.reason != "" {
		f.at += colon + 1
	}
	return f
}

// known reads the fields that frame or route a request; at is where v begins in its line.
func (h *head) known(name, v []byte, at int) fault {
	switch len(name) {
	case len("host"):
		if fold(name, "host") {
			return h.hostField(v, at)
		}
	case len("expect"):
		if fold(name, "expect") {
			return h.expectField(v)
		}
	case len("trailer"):
		if fold(name, "trailer") {
			return trailerField(v)
		}
	case len("content-length"):
		if fold(name, "content-length") {
			return h.lengthField(v)
		}
	case len("transfer-encoding"):
		if fold(name, "transfer-encoding") {
			if h.chunked {
				return malformed(0, "two Transfer-Encoding fields")
			}
			if string(bare(v)) != "chunked" {
				return malformed(0, "a Transfer-Encoding other than chunked")
			}
			h.chunked = true
		}
	}
	return fault{}
}

func (h *head) hostField(v []byte, at int) fault {
	if h.hosted {
		return fault{gate.ReasonMalformedAuthority, "two Host fields", 0}
	}
	b := bare(v)
	if len(b) == 0 {
		return fault{gate.ReasonMalformedAuthority, "an empty Host", 0}
	}
	for i, c := range b {
		if !isHostByte[c] {
			return fault{gate.ReasonMalformedAuthority, "a byte that no Host has", len(v) - len(b) + i}
		}
	}
	from := h.pos + at + len(v) - len(b)
	h.hosted, h.host = true, span{from, from + len(b)}
	return fault{}
}

func (h *head) expectField(v []byte) fault {
	if h.expect || !fold(bare(v), "100-continue") {
		return malformed(0, "an expectation other than 100-continue")
	}
	h.expect = true
	return fault{}
}

func (h *head) lengthField(v []byte) fault {
	b := bare(v)
	if h.counted {
		return malformed(0, "two Content-Length fields")
	}
	if len(b) == 0 || len(b) > 1 && b[0] == '0' {
		return malformed(0, "a Content-Length that is not one plain decimal")
	}
	n := int64(0)
	for _, c := range b {
		if c < '0' || c > '9' || n > math.MaxInt64/20 {
			return malformed(0, "a Content-Length that is not one plain decimal")
		}
		n = n*10 + int64(c-'0')
	}
	if n > maxLength {
		return malformed(0, "a Content-Length over 2^62")
	}
	h.counted, h.length = true, n
	return fault{}
}

// maxLength is the largest body length or chunk size.
const maxLength = 1 << 62

// trailerField accepts a list of names that may stand in a trailer.
func trailerField(v []byte) fault {
	for e := range bytes.SplitSeq(v, []byte(",")) {
		e = bytes.Trim(e, " \t")
		for _, c := range e {
			if !isToken[c] {
				return malformed(0, "a trailer name that is no token")
			}
		}
		if forbiddenTrailer(e) {
			return malformed(0, "a trailer that frames or routes the request")
		}
	}
	return fault{}
}

// finish judges the head as a whole.
func (h *head) finish(b []byte) fault {
	named := h.connect || h.absolute
	switch {
	case !h.hosted && !(h.http10 && named):
		return fault{gate.ReasonMalformedAuthority, "no Host field", h.pos}
	case h.chunked && h.counted:
		return malformed(h.pos, "both Content-Length and Transfer-Encoding")
	case h.chunked && h.http10:
		return malformed(h.pos, "Transfer-Encoding in HTTP/1.0")
	case h.connect && (h.chunked || h.length > 0):
		return malformed(h.pos, "a CONNECT with a body")
	case named && h.hosted && !h.agree(b):
		return fault{gate.ReasonAuthorityMismatch, "the target and the Host field name different hosts", h.pos}
	}
	return fault{}
}

// agree reports whether the target's authority and Host are the same. net/http looks at the first and hides the second.
func (h *head) agree(b []byte) bool {
	t, host := b[h.authority.from:h.authority.to], b[h.host.from:h.host.to]
	tname, tport, tok := bytes.Cut(t, []byte(":"))
	hname, hport, hok := bytes.Cut(host, []byte(":"))
	if !tok {
		tport = []byte(h.port)
	}
	if !hok {
		if hport = []byte(h.port); h.connect {
			hport = tport
		}
	}
	return bytes.EqualFold(tname, hname) && bytes.Equal(tport, hport)
}

// bare is a field value without the one space that may precede it. Values that frame a request have no other padding:
// it stays in what is returned and makes the value a wrong one.
func bare(v []byte) []byte {
	if len(v) > 0 && v[0] == ' ' {
		return v[1:]
	}
	return v
}

// fold compares with a lower-case ASCII string without regard to case.
func fold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// isToken marks the bytes of a token (RFC 9110 §5.6.2); isHostByte those of a Host field that gate.ParseAuthority is asked about:
// the others would make net/http answer on its own.
var (
	isToken    = table("!#$%&'*+-.^_`|~")
	isHostByte = table("!$%&'()*+,-.:;=[]_~")
)

func table(punctuation string) (t [256]bool) {
	for c := range t {
		t[c] = c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	}
	for _, c := range []byte(punctuation) {
		t[c] = true
	}
	return t
}

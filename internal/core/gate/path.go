package gate

import (
	"strings"
	"unicode/utf8"
)

// MaxTarget is the longest request target (path and query) in bytes.
const MaxTarget = 16 << 10

// Path is a request target in origin form (RFC 9112 §3.2.1): judged by its decoded path, forwarded by its raw bytes.
// The zero Path is none.
type Path struct {
	raw     string // path as it came and as it leaves
	decoded string // percent-decoded once, but for encoded slashes, which stay "%2F"
	query   string // raw, without '?'
	hasQ    bool
	slash   bool // holds an encoded slash
}

// ParsePath reads "/path" or "/path?query".
//
// Refused, never normalised: anything not starting with '/', bytes outside visible ASCII, '#', backslash, malformed or double
// percent-encoding, encoded dots, backslashes and control bytes, dot segments (also with ";parameters", also between encoded slashes),
// empty segments other than a last one, segments of parameters alone, and paths whose decoded form is not UTF-8.
// An encoded slash is kept and flagged: only a rule that says so admits it.
func ParsePath(s string) (Path, error) {
	bad := func(at int, detail string) (Path, error) {
		return Path{}, fault("path", ReasonMalformedPath, at, detail)
	}
	if len(s) > MaxTarget {
		return bad(-1, "longer than 16 KiB")
	}
	if s == "" || s[0] != '/' {
		return bad(-1, "does not begin with a slash")
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '#' {
			return bad(i, "a byte that a request target must encode")
		}
	}
	p := Path{raw: s}
	if i := strings.IndexByte(s, '?'); i >= 0 {
		p.raw, p.query, p.hasQ = s[:i], s[i+1:], true
	}
	if i := strings.IndexByte(p.raw, '\\'); i >= 0 {
		return bad(i, "a backslash")
	}
	var err *ParseError
	if p.decoded, p.slash, err = decodePath(p.raw); err != nil {
		return Path{}, err
	}
	rest := p.decoded[1:]
	for off := 1; ; {
		seg, after, more := strings.Cut(rest, "/")
		if seg == "" && more {
			return bad(off, "an empty segment")
		}
		for part := range strings.SplitSeq(seg, "%2F") { // to some servers these are segments too
			if name, _, _ := strings.Cut(part, ";"); name == "." || name == ".." {
				return bad(off, "a dot segment")
			}
		}
		if name, _, params := strings.Cut(seg, ";"); name == "" && params {
			return bad(off, "a segment of parameters alone") // servers that drop parameters see an empty one
		}
		if !more {
			return p, nil
		}
		off, rest = off+len(seg)+1, after
	}
}

func decodePath(raw string) (decoded string, slash bool, err *ParseError) {
	if strings.IndexByte(raw, '%') < 0 {
		return raw, false, nil
	}
	bad := func(at int, detail string) (string, bool, *ParseError) {
		return "", false, fault("path", ReasonMalformedPath, at, detail)
	}
	b := make([]byte, 0, len(raw))
	percent := -1 // where in b the last decoded '%' stands
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c == '%' {
			if i+2 >= len(raw) {
				return bad(i, "a truncated percent-encoding")
			}
			hi, lo := unhex(raw[i+1]), unhex(raw[i+2])
			if hi < 0 || lo < 0 {
				return bad(i, "a malformed percent-encoding")
			}
			switch c = byte(hi<<4 | lo); {
			case c == '.':
				return bad(i, "an encoded dot")
			case c == '\\':
				return bad(i, "an encoded backslash")
			case c < ' ' || c == 0x7f:
				return bad(i, "an encoded control byte")
			}
			i += 2
			if c == '/' {
				slash = true
				b = append(b, "%2F"...)
				continue
			}
			if c == '%' {
				percent = len(b)
			}
		}
		b = append(b, c)
		// Whatever spells the two digits: "%252e" and "%25%32%65" are the same to a server that decodes twice.
		if percent >= 0 && len(b) == percent+3 && unhex(b[percent+1]) >= 0 && unhex(b[percent+2]) >= 0 {
			return bad(i, "a double percent-encoding")
		}
	}
	if !utf8.Valid(b) {
		return bad(-1, "not UTF-8 once decoded")
	}
	return string(b), slash, nil
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// Raw is the path exactly as it came, without the query: what is forwarded and what the audit record holds.
func (p Path) Raw() string { return p.raw }

// Decoded is what rules match: percent-decoded once, an encoded slash kept as "%2F" inside its segment.
func (p Path) Decoded() string { return p.decoded }

// EncodedSlash reports whether the path holds an encoded slash.
func (p Path) EncodedSlash() bool { return p.slash }

// Query is the raw query without '?', and whether there was a '?'.
func (p Path) Query() (string, bool) { return p.query, p.hasQ }

// WithQuery is the same path with another raw query; an empty query removes the '?'.
func (p Path) WithQuery(q string) Path {
	p.query, p.hasQ = q, q != ""
	return p
}

// String is the request target, byte for byte as it was parsed.
func (p Path) String() string {
	if p.hasQ {
		return p.raw + "?" + p.query
	}
	return p.raw
}

// IsZero reports whether p names nothing.
func (p Path) IsZero() bool { return p.raw == "" }

package policy

import (
	"errors"
	"strings"

	"postern/internal/core/gate"
)

type hostKind uint8

const (
	noHost hostKind = iota
	exactHost
	belowHost
	anyHost
)

// HostPattern is one canonical name, everything below a name ("*.example.com": one or more labels, not the apex), or every name ("*").
// Patterns are comparable with ==. The zero HostPattern matches nothing.
type HostPattern struct {
	kind hostKind
	host gate.Host
}

// ExactHost matches one name.
func ExactHost(h gate.Host) HostPattern { return HostPattern{exactHost, h} }

// ParseHostPattern reads a host name, "*.name" or "*". A pattern must be written in canonical form: lower case.
func ParseHostPattern(s string) (HostPattern, error) {
	if s == "*" {
		return HostPattern{kind: anyHost}, nil
	}
	name, below := strings.CutPrefix(s, "*.")
	if strings.Contains(name, "*") {
		return HostPattern{}, errors.New(`host: "*" stands alone or as the first label: "*.example.com"`)
	}
	h, err := gate.ParseHost(name)
	if err != nil {
		return HostPattern{}, err
	}
	if h.String() != name {
		return HostPattern{}, errors.New("host: write it in lower case: " + h.String())
	}
	if below {
		return HostPattern{belowHost, h}, nil
	}
	return HostPattern{exactHost, h}, nil
}

// Match reports whether the pattern covers h, on label boundaries.
func (p HostPattern) Match(h gate.Host) bool {
	switch p.kind {
	case exactHost:
		return p.host == h
	case belowHost:
		return strings.HasSuffix(h.String(), "."+p.host.String())
	case anyHost:
		return !h.IsZero()
	}
	return false
}

// Exact is the one name the pattern matches, and whether there is only one.
func (p HostPattern) Exact() (gate.Host, bool) { return p.host, p.kind == exactHost }

// Below is the name below which a wildcard matches, and whether the pattern is one.
func (p HostPattern) Below() (gate.Host, bool) { return p.host, p.kind == belowHost }

// Any reports whether the pattern is "*".
func (p HostPattern) Any() bool { return p.kind == anyHost }

func (p HostPattern) String() string {
	switch p.kind {
	case exactHost:
		return p.host.String()
	case belowHost:
		return "*." + p.host.String()
	case anyHost:
		return "*"
	}
	return ""
}

// PathPattern matches a decoded path: "*" is any run of bytes within one segment, "**" as a whole segment is any number of segments.
// The zero PathPattern matches nothing.
type PathPattern struct {
	text   string
	segs   []string
	prefix string // what every match begins with: most paths are told apart by it
}

// ParsePathPattern reads a pattern. It begins with '/', holds no query, no percent-encoding and no dot or empty segment.
func ParsePathPattern(s string) (PathPattern, error) {
	if s == "" || s[0] != '/' {
		return PathPattern{}, errors.New(`path: begins with "/"`)
	}
	if i := strings.IndexAny(s, "?#\\%"); i >= 0 {
		return PathPattern{}, errors.New("path: written decoded and without query: no " + s[i:i+1])
	}
	segs := strings.Split(s[1:], "/")
	for i, g := range segs {
		switch {
		case g == "" && i < len(segs)-1:
			return PathPattern{}, errors.New("path: an empty segment")
		case g == "." || g == "..":
			return PathPattern{}, errors.New("path: a dot segment")
		case g != "**" && strings.Contains(g, "**"):
			return PathPattern{}, errors.New(`path: "**" is a whole segment`)
		}
	}
	prefix, _, starred := strings.Cut(s, "*")
	if starred && strings.HasPrefix(s[len(prefix):], "**") {
		prefix = prefix[:len(prefix)-1] // "/a/**" matches "/a"
	}
	return PathPattern{s, segs, prefix}, nil
}

func (p PathPattern) String() string { return p.text }

// Match reports whether the pattern covers a decoded path. It allocates nothing; its work is at most
// the product of the pattern's segments and the path's length.
func (p PathPattern) Match(path string) bool {
	return len(p.segs) > 0 && path != "" && path[0] == '/' && strings.HasPrefix(path, p.prefix) && matchSegments(p.segs, path[1:])
}

// matchSegments matches iteratively: on a mismatch it returns to the last "**" and lets that swallow one segment more.
func matchSegments(segs []string, path string) bool {
	retrySegs, retryPath, retry := []string(nil), "", false
	ended := false // path is consumed
	for {
		if len(segs) > 0 && segs[0] == "**" {
			if len(segs) == 1 {
				return true
			}
			segs = segs[1:]
			retrySegs, retryPath, retry = segs, path, !ended
			continue
		}
		if len(segs) == 0 && ended {
			return true
		}
		if len(segs) > 0 && !ended {
			seg, rest, more := strings.Cut(path, "/")
			if matchSegment(segs[0], seg) {
				segs, path, ended = segs[1:], rest, !more
				continue
			}
		}
		if !retry {
			return false
		}
		_, rest, more := strings.Cut(retryPath, "/")
		if !more {
			return false
		}
		segs, path, ended, retryPath = retrySegs, rest, false, rest
	}
}

// matchSegment is the classic one-star-at-a-time glob.
func matchSegment(pat, s string) bool {
	star, mark := -1, 0
	i, j := 0, 0
	for j < len(s) {
		switch {
		case i < len(pat) && pat[i] == '*':
			star, mark = i, j
			i++
		case i < len(pat) && pat[i] == s[j]:
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	for i < len(pat) && pat[i] == '*' {
		i++
	}
	return i == len(pat)
}

func matchPaths(ps []PathPattern, path string) bool {
	if len(ps) == 0 {
		return true
	}
	for i := range ps {
		if ps[i].Match(path) {
			return true
		}
	}
	return false
}

// slashed reads every kept "%2F" as the slash a server may see.
func slashed(decoded string) string { return strings.ReplaceAll(decoded, "%2F", "/") }

// withoutParameters drops from each segment what stands behind its first ';' (RFC 3986 §3.3).
func withoutParameters(decoded string) string {
	segs := strings.Split(decoded, "/")
	for i := range segs {
		segs[i], _, _ = strings.Cut(segs[i], ";")
	}
	return strings.Join(segs, "/")
}

package gate

import (
	"strings"

	"golang.org/x/net/idna"
)

// MaxHost is the longest host name in bytes (RFC 1035 §2.3.4, without the root dot).
const MaxHost = 253

// Host is a canonical DNS name: lower-case A-labels, no trailing dot, never an IP literal or anything a resolver could read as one.
// Hosts are comparable with ==. The zero Host is none.
type Host struct{ name string }

// ParseHost accepts a DNS host name in any ASCII case and returns its canonical form, or refuses.
//
// Refused: empty names, trailing or doubled dots, labels over 63 bytes or with a hyphen at an end, any byte outside
// letters, digits, '-' and '_' (so no NUL, space, brackets, userinfo, percent or non-ASCII), A-labels that are not valid
// IDNA 2008, and names whose last label is a number in any base, which libc resolvers read as an IPv4 address.
func ParseHost(s string) (Host, error) {
	if s == "" {
		return Host{}, fault("host", ReasonMalformedHost, -1, "empty")
	}
	if len(s) > MaxHost {
		return Host{}, fault("host", ReasonMalformedHost, -1, "longer than 253 bytes")
	}
	upper, alabel, start := false, false, 0
	for i := 0; i <= len(s); i++ {
		if i < len(s) && s[i] != '.' {
			c := s[i]
			switch {
			case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
			case c >= 'A' && c <= 'Z':
				upper = true
			default:
				return Host{}, fault("host", ReasonMalformedHost, i, "a byte that no host name has")
			}
			continue
		}
		label := s[start:i]
		if label == "" {
			return Host{}, fault("host", ReasonMalformedHost, i, "an empty label")
		}
		if len(label) > 63 {
			return Host{}, fault("host", ReasonMalformedHost, start, "a label longer than 63 bytes")
		}
		if label[0] == '-' || label[len(label)-1] == '-' {
			return Host{}, fault("host", ReasonMalformedHost, start, "a label with a hyphen at its end")
		}
		if len(label) >= 4 && strings.EqualFold(label[:4], "xn--") {
			alabel = true
		}
		if i == len(s) && looksNumeric(label) {
			return Host{}, fault("host", ReasonHostIsAddress, start, "an IP address or a number is not a host name")
		}
		start = i + 1
	}
	if upper {
		s = strings.ToLower(s)
	}
	if alabel {
		if u, err := idna.Lookup.ToUnicode(s); err != nil {
			return Host{}, fault("host", ReasonMalformedHost, -1, "an xn-- label that is not valid IDNA")
		} else if a, err := idna.Lookup.ToASCII(u); err != nil || a != s {
			return Host{}, fault("host", ReasonMalformedHost, -1, "an xn-- label that is not the canonical form of its name")
		}
	}
	return Host{s}, nil
}

// looksNumeric reports whether a resolver might take the last label for part of an IPv4 address (WHATWG URL, "ends in a number").
func looksNumeric(label string) bool {
	if len(label) >= 2 && label[0] == '0' && (label[1] == 'x' || label[1] == 'X') {
		for i := 2; i < len(label); i++ {
			c := label[i] | 0x20
			if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
				return false
			}
		}
		return true
	}
	for i := 0; i < len(label); i++ {
		if label[i] < '0' || label[i] > '9' {
			return false
		}
	}
	return true
}

// String is the canonical name, "" for the zero Host.
func (h Host) String() string { return h.name }

// IsZero reports whether h names nothing.
func (h Host) IsZero() bool { return h.name == "" }

// Parent is the name with its first label removed, or the zero Host when only one label is left.
func (h Host) Parent() Host {
	if i := strings.IndexByte(h.name, '.'); i >= 0 {
		return Host{h.name[i+1:]}
	}
	return Host{}
}

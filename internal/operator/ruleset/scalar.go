package ruleset

import (
	"errors"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/operator/strictyaml"
)

// Host is a host pattern.
type Host struct{ Pattern policy.HostPattern }

// IsZero reports whether no host was read.
func (h Host) IsZero() bool { return h.Pattern == policy.HostPattern{} }

// ParseScalar reads a canonical host name or wildcard.
func (h *Host) ParseScalar(text string) error {
	if _, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return &strictyaml.Fault{Msg: "an IP address is not a host", Hint: "name the host, and give its address with `address:` or under `upstreams:`"}
	}
	if strings.Contains(text, "://") || strings.Contains(text, "/") {
		return &strictyaml.Fault{Msg: "a URL is not a host", Hint: "write the name alone, and paths under `paths:`"}
	}
	if strings.Contains(text, ":") {
		return &strictyaml.Fault{Msg: "a host is written without port", Hint: "write the port under `port:`"}
	}
	if strings.HasSuffix(text, ".") {
		return &strictyaml.Fault{Msg: "a host is written without trailing dot"}
	}
	p, err := policy.ParseHostPattern(text)
	if err == nil {
		h.Pattern = p
		return nil
	}
	if _, lower := policy.ParseHostPattern(strings.ToLower(text)); lower == nil {
		return &strictyaml.Fault{Msg: "a host is written in lower case"}
	}
	var pe *gate.ParseError
	if errors.As(err, &pe) {
		return &strictyaml.Fault{Msg: pe.Error()}
	}
	return &strictyaml.Fault{Msg: "host: not a name", Hint: `"*" stands alone or as the first label: "*.example.com"`}
}

// Port is a TCP port.
type Port struct{ Port gate.Port }

// ParseScalar reads 1 to 65535.
func (p *Port) ParseScalar(text string) error {
	v, err := gate.ParsePort(text)
	if err != nil {
		return &strictyaml.Fault{Msg: "a port is a number from 1 to 65535"}
	}
	p.Port = v
	return nil
}

// Scheme is https or http.
type Scheme struct{ Scheme gate.Scheme }

// ParseScalar reads "https" or "http".
func (s *Scheme) ParseScalar(text string) error {
	switch text {
	case "https":
		s.Scheme = gate.HTTPS
	case "http":
		s.Scheme = gate.HTTP
	default:
		return &strictyaml.Fault{Msg: "the scheme is https or http"}
	}
	return nil
}

func (s Scheme) orHTTPS() gate.Scheme {
	if s.Scheme == gate.NoScheme {
		return gate.HTTPS
	}
	return s.Scheme
}

// Method is an HTTP method.
type Method struct{ Method gate.Method }

// ParseScalar reads a method in upper case.
func (m *Method) ParseScalar(text string) error {
	v, err := gate.ParseMethod(text)
	if err != nil {
		f := &strictyaml.Fault{Msg: "a method is one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"}
		if up, upErr := gate.ParseMethod(strings.ToUpper(text)); upErr == nil {
			f.Hint = "write " + up.String()
		}
		return f
	}
	m.Method = v
	return nil
}

// Path is a path pattern.
type Path struct{ Pattern policy.PathPattern }

// maxPathPattern bounds a pattern in bytes.
const maxPathPattern = 1024

// ParseScalar reads a path pattern.
func (p *Path) ParseScalar(text string) error {
	if len(text) > maxPathPattern {
		return &strictyaml.Fault{Msg: "a path pattern longer than 1,024 bytes"}
	}
	v, err := policy.ParsePathPattern(text)
	if err != nil {
		return &strictyaml.Fault{Msg: err.Error(), Hint: "for example: /v1/charges/**"}
	}
	p.Pattern = v
	return nil
}

// TLS is intercept or tunnel.
type TLS struct{ Mode policy.Mode }

// ParseScalar reads "intercept" or "tunnel".
func (t *TLS) ParseScalar(text string) error {
	switch text {
	case "intercept":
		t.Mode = policy.Intercept
	case "tunnel":
		t.Mode = policy.Tunnel
	default:
		return &strictyaml.Fault{Msg: "tls is intercept or tunnel"}
	}
	return nil
}

func (t TLS) mode() policy.Mode {
	if t.Mode == policy.NoMode {
		return policy.Intercept
	}
	return t.Mode
}

// Keep is whether the client's own credentials pass through.
type Keep bool

// ParseScalar reads "keep".
func (k *Keep) ParseScalar(text string) error {
	if text != "keep" {
		return &strictyaml.Fault{Msg: "client_credentials is keep, or absent: then they are removed"}
	}
	*k = true
	return nil
}

// CredentialName is the name of a credential.
type CredentialName struct{ Name gate.CredentialName }

// ParseScalar reads a credential's name.
func (c *CredentialName) ParseScalar(text string) error {
	n, err := gate.ParseCredentialName(text)
	if err != nil {
		return &strictyaml.Fault{Msg: err.Error()}
	}
	c.Name = n
	return nil
}

// CIDR is a range of addresses.
type CIDR struct{ Prefix netip.Prefix }

// ParseScalar reads a canonical prefix.
func (c *CIDR) ParseScalar(text string) error {
	p, err := parseCIDR(text)
	if err != nil {
		return err
	}
	c.Prefix = p
	return nil
}

// Size is a number of bytes, never zero once read.
type Size int64

// ParseScalar reads a whole number with an optional unit: 512, 64KiB, 10MiB, 2GiB, 1TiB.
func (s *Size) ParseScalar(text string) error {
	fault := &strictyaml.Fault{Msg: "not a size", Hint: "a whole number and KiB, MiB, GiB or TiB: 64KiB"}
	digits := strings.TrimRight(text, "BKMGTi")
	unit, ok := map[string]int64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[text[len(digits):]]
	n, err := ParseCount(digits)
	if !ok || err != nil {
		return fault
	}
	if n > math.MaxInt64/unit || n*unit > 1<<50 {
		return &strictyaml.Fault{Msg: "a size beyond 1,024 TiB"}
	}
	*s = Size(n * unit)
	return nil
}

// ParseCount reads a whole number from 1 to 10^15 without sign or leading zero.
func ParseCount(text string) (int64, error) {
	if text == "" || len(text) > 15 || text[0] == '0' {
		return 0, errors.New("not a whole number above zero")
	}
	for i := 0; i < len(text); i++ {
		if text[i] < '0' || text[i] > '9' {
			return 0, errors.New("not a whole number above zero")
		}
	}
	return strconv.ParseInt(text, 10, 64)
}

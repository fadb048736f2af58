package config

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/limit"
	"postern/internal/operator/ruleset"
	"postern/internal/operator/strictyaml"
)

type version int

// ParseScalar reads 1, the only version there is.
func (v *version) ParseScalar(text string) error {
	if text != "1" {
		return &strictyaml.Fault{Msg: "this postern reads version 1"}
	}
	*v = 1
	return nil
}

// Kind is what a credential's value is. The zero Kind is none.
type Kind uint8

const (
	NoKind Kind = iota
	APIKey      // a token, placed as a rule says
	Basic       // a password: it goes nowhere but into basic authentication
)

// ParseScalar reads "api-key" or "basic".
func (k *Kind) ParseScalar(text string) error {
	switch text {
	case "api-key":
		*k = APIKey
	case "basic":
		*k = Basic
	default:
		return &strictyaml.Fault{Msg: "kind is api-key or basic"}
	}
	return nil
}

func (k Kind) String() string {
	switch k {
	case APIKey:
		return "api-key"
	case Basic:
		return "basic"
	}
	return "none"
}

// FilePath is a path as it is written; the compiler resolves it.
type FilePath string

// ParseScalar reads a path without variables or control characters.
func (p *FilePath) ParseScalar(text string) error {
	switch {
	case text == "" || len(text) > 4096 || strings.ContainsAny(text, "\n\t"):
		return &strictyaml.Fault{Msg: "not a path"}
	case strings.Contains(text, "$"):
		return &strictyaml.Fault{Msg: "variables are not expanded in paths", Hint: "write the path, with ~/ for your home"}
	case text[0] == '~' && text != "~" && !strings.HasPrefix(text, "~/"):
		return &strictyaml.Fault{Msg: "other users' homes are not expanded", Hint: "write the path, with ~/ for your own home"}
	}
	*p = FilePath(text)
	return nil
}

// in resolves a path: "~" is home, and a relative path begins at dir.
func (p FilePath) in(dir, home string) string {
	s := string(p)
	switch {
	case s == "":
		return ""
	case s == "~" || strings.HasPrefix(s, "~/"):
		return filepath.Join(home, s[1:])
	case filepath.IsAbs(s):
		return filepath.Clean(s)
	}
	return filepath.Join(dir, s)
}

// Keys is the place of a value in a JSON object.
type Keys []string

// ParseScalar reads keys joined by dots.
func (k *Keys) ParseScalar(text string) error {
	keys := strings.Split(text, ".")
	for _, key := range keys {
		if key == "" || len(keys) > 8 || len(text) > 256 {
			return &strictyaml.Fault{Msg: "not a place in a JSON file", Hint: "up to eight keys joined by dots: a.b.c"}
		}
	}
	*k = keys
	return nil
}

// Repo is a repository.
type Repo struct{ Repo gate.Repo }

// ParseScalar reads HOST/PATH.
func (p *Repo) ParseScalar(text string) error {
	hint := "write HOST/PATH: github.com/acme/widgets"
	if strings.Contains(text, "://") || strings.Contains(text, "@") || strings.Contains(text, "*") {
		return &strictyaml.Fault{Msg: "a repository is neither a URL nor a pattern", Hint: hint}
	}
	v, err := gate.ParseRepo(text)
	if err != nil {
		return &strictyaml.Fault{Msg: err.Error(), Hint: hint}
	}
	p.Repo = v
	return nil
}

// Count is a whole number above zero.
type Count int

// ParseScalar reads 1 to 1,000,000.
func (c *Count) ParseScalar(text string) error {
	n, err := ruleset.ParseCount(text)
	if err != nil || n > 1_000_000 {
		return &strictyaml.Fault{Msg: "a whole number from 1 to 1000000 is needed here"}
	}
	*c = Count(n)
	return nil
}

// Rate is a number in a unit of time; that number may also come at once.
type Rate struct{ limit.Rate }

// ParseScalar reads N/s, N/min or N/h.
func (r *Rate) ParseScalar(text string) error {
	number, unit, _ := strings.Cut(text, "/")
	seconds, ok := map[string]float64{"s": 1, "min": 60, "h": 3600}[unit]
	n, err := ruleset.ParseCount(number)
	if !ok || err != nil || n > 1_000_000 {
		return &strictyaml.Fault{Msg: "not a rate", Hint: "a whole number up to 1000000 and /s, /min or /h: 600/min"}
	}
	r.Rate = limit.Rate{Per: float64(n) / seconds, Burst: int(n)}
	return nil
}

// Duration is a length of time, never zero once read.
type Duration time.Duration

// maxDuration is the longest that anything may last.
const maxDuration = 30 * 24 * time.Hour

// ParseScalar reads numbers with ms, s, m, h or d: 90s, 1h30m, 7d.
func (d *Duration) ParseScalar(text string) error {
	fault := &strictyaml.Fault{Msg: "not a length of time", Hint: "whole numbers with ms, s, m, h or d, at most 30d: 90s, 1h30m"}
	if strings.ContainsAny(text, ".+-µn") {
		return fault
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := ruleset.ParseCount(days)
		if err != nil || n > 30 {
			return fault
		}
		text = strconv.FormatInt(n*24, 10) + "h"
	}
	v, err := time.ParseDuration(text)
	if err != nil || v <= 0 || v > maxDuration {
		return fault
	}
	*d = Duration(v)
	return nil
}

// AddrPort is an IP address and a port.
type AddrPort struct{ netip.AddrPort }

// ParseScalar reads 192.0.2.1:443 or [2001:db8::1]:443.
func (a *AddrPort) ParseScalar(text string) error {
	v, err := netip.ParseAddrPort(text)
	if err != nil || v.Port() == 0 || v.Addr().Zone() != "" || v.Addr().IsUnspecified() || v.Addr().IsMulticast() || v.Addr().Is4In6() {
		return &strictyaml.Fault{Msg: "not an IP address and port", Hint: `for example: "127.0.0.1:9443" or "[::1]:9443"`}
	}
	a.AddrPort = v
	return nil
}

// ProxyURL is the address of a corporate proxy.
type ProxyURL struct{ URL *url.URL }

// ParseScalar reads http://HOST:PORT or https://HOST:PORT.
func (p *ProxyURL) ParseScalar(text string) error {
	hint := "for example: http://proxy.example.com:3128"
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return &strictyaml.Fault{Msg: "not the URL of a proxy", Hint: hint}
	case u.User != nil:
		return &strictyaml.Fault{Msg: "credentials never stand in this file", Hint: hint}
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return &strictyaml.Fault{Msg: "a proxy's URL is scheme, host and port alone", Hint: hint}
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil {
		if _, err := gate.ParseHost(u.Hostname()); err != nil {
			return &strictyaml.Fault{Msg: "not a proxy's host name", Hint: hint}
		}
	}
	if u.Port() != "" {
		if _, err := gate.ParsePort(u.Port()); err != nil {
			return &strictyaml.Fault{Msg: "not a port", Hint: hint}
		}
	}
	p.URL = u
	return nil
}

// Package ruleset is the allow and deny lines of a policy file or a preset: how they are written, and the policy rules they mean.
package ruleset

import (
	"cmp"
	"errors"
	"net/netip"

	"golang.org/x/net/publicsuffix"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/operator/strictyaml"
)

// Allow is one line under allow:.
type Allow struct {
	strictyaml.At `json:"-"`

	Host              Host       `json:"host" jsonschema:"one DNS name, or \"*.name\" for everything below it"`
	Port              Port       `json:"port,omitempty" jsonschema:"443, or 80 with scheme http, when absent"`
	Scheme            Scheme     `json:"scheme,omitempty" jsonschema:"https when absent; http never carries a credential"`
	Methods           []Method   `json:"methods,omitempty" jsonschema:"every method when absent"`
	Paths             []Path     `json:"paths,omitempty" jsonschema:"every path when absent; * within a segment, ** as a segment for any number of them"`
	Inject            *Injection `json:"inject,omitempty" jsonschema:"puts the credential on every request the rule matches"`
	Swap              *Injection `json:"swap,omitempty" jsonschema:"replaces the session's placeholder, in the declared slots only"`
	TLS               TLS        `json:"tls,omitempty" jsonschema:"intercept when absent; tunnel passes bytes through unread"`
	ClientCredentials Keep       `json:"client_credentials,omitempty" jsonschema:"keep passes the client's own credentials through"`
	WebSocket         bool       `json:"websocket,omitempty" jsonschema:"allows an upgrade to WebSocket"`
	EncodedSlash      bool       `json:"encoded_slash,omitempty" jsonschema:"allows %2F in paths"`
	Address           CIDR       `json:"address,omitempty" jsonschema:"non-public addresses that the host may resolve to"`
	MaxBody           Size       `json:"max_body,omitempty" jsonschema:"limit of one request body"`
	AnyHost           bool       `json:"any_host,omitempty" jsonschema:"must be true for the host \"*\""`
	PublicSuffix      bool       `json:"public_suffix,omitempty" jsonschema:"must be true for a wildcard over a public suffix"`
}

// Deny is one line under deny:.
type Deny struct {
	strictyaml.At `json:"-"`

	Host    Host     `json:"host" jsonschema:"one DNS name, \"*.name\", or \"*\""`
	Port    Port     `json:"port,omitempty" jsonschema:"every port when absent"`
	Scheme  Scheme   `json:"scheme,omitempty" jsonschema:"https and http when absent"`
	Methods []Method `json:"methods,omitempty" jsonschema:"every method when absent"`
	Paths   []Path   `json:"paths,omitempty" jsonschema:"every path when absent"`
}

// Injection is where a credential goes.
type Injection struct {
	strictyaml.At `json:"-"`

	Credential CredentialName `json:"credential" jsonschema:"a name under credentials:"`
	Header     string         `json:"header,omitempty" jsonschema:"header name"`
	Format     string         `json:"format,omitempty" jsonschema:"the header's value, {} stands for the credential"`
	Basic      *string        `json:"basic,omitempty" jsonschema:"user name of basic authentication"`
	Query      string         `json:"query,omitempty" jsonschema:"query parameter name"`
	Slots      []Slot         `json:"slots,omitempty" jsonschema:"several places, for swap only"`
}

// Slot is one place of a swap with several.
type Slot struct {
	strictyaml.At `json:"-"`

	Header string  `json:"header,omitempty" jsonschema:"header name"`
	Format string  `json:"format,omitempty" jsonschema:"the header's value, {} stands for the credential"`
	Basic  *string `json:"basic,omitempty" jsonschema:"user name of basic authentication"`
	Query  string  `json:"query,omitempty" jsonschema:"query parameter name"`
}

// Compiled is an allow line as policy understands it.
type Compiled struct {
	Rule         policy.Rule
	At           strictyaml.At
	CredentialAt strictyaml.Pos // where its credential is named; zero without one
	Relaxations  []Relaxation
}

// Compile checks one allow line and gives the rule it means. label names the line for people; errors go to r.
func (a *Allow) Compile(label string, r *strictyaml.Report) Compiled {
	before := r.Count()
	rule := policy.Rule{
		Name: label, Effect: policy.Allow, Host: a.Host.Pattern, Port: a.Port.Port, Scheme: a.Scheme.orHTTPS(),
		Methods: methodSet(a.Methods), Paths: patterns(a.Paths), TLS: a.TLS.mode(), Address: a.Address.Prefix,
		KeepClientCredentials: bool(a.ClientCredentials), WebSocket: a.WebSocket, EncodedSlash: a.EncodedSlash, MaxBody: int64(a.MaxBody),
	}
	if rule.Port == 0 {
		rule.Port = rule.Scheme.DefaultPort()
	}
	switch {
	case a.Inject != nil && a.Swap != nil:
		r.Add(a.Key("swap"), "keep one of the two", "inject and swap in one rule")
	case a.Inject != nil:
		rule.Inject = a.Inject.compile(policy.InjectSet, r)
	case a.Swap != nil:
		rule.Inject = a.Swap.compile(policy.InjectSwap, r)
	}
	a.lintHost(r)
	a.lintInjection(rule, r)
	a.lintTunnel(rule, r)
	if r.Count() == before {
		if _, err := policy.Compile([]policy.Rule{rule}); err != nil { // whatever the lints above do not know
			r.Add(a.Pos(), "", "%s", errors.Unwrap(err))
		}
	}
	out := Compiled{Rule: rule, At: a.At, Relaxations: a.relaxations(rule)}
	if in := cmp.Or(a.Inject, a.Swap); in != nil {
		out.CredentialAt = in.Key("credential")
	}
	return out
}

func (a *Allow) lintHost(r *strictyaml.Report) {
	if a.Host.Pattern.Any() != a.AnyHost && !a.Host.IsZero() {
		if a.AnyHost {
			r.Add(a.Key("any_host"), "remove it", `any_host is only for the host "*"`)
		} else {
			r.Add(a.Key("host"), "name the hosts; or add `any_host: true` to allow every host there is", `"*" allows every host`)
		}
	}
	suffix := isPublicSuffix(a.Host.Pattern)
	switch {
	case suffix && !a.PublicSuffix:
		r.Add(a.Key("host"), "name the hosts; or add `public_suffix: true`: anyone can register a name that this matches", "a wildcard over a public suffix")
	case !suffix && a.PublicSuffix && !a.Host.IsZero():
		r.Add(a.Key("public_suffix"), "remove it", "public_suffix is only for a wildcard over a public suffix")
	}
}

func (a *Allow) lintInjection(rule policy.Rule, r *strictyaml.Report) {
	if rule.Inject.Mode == policy.InjectNone {
		return
	}
	key := "inject"
	if rule.Inject.Mode == policy.InjectSwap {
		key = "swap"
	}
	_, exact := rule.Host.Exact()
	switch {
	case rule.Scheme == gate.HTTP:
		r.Add(a.Key(key), "use https", "a credential leaves only over https")
	case rule.TLS == policy.Tunnel:
		r.Add(a.Key(key), "remove `tls: tunnel`", "a tunnel cannot carry a credential: its bytes are never read")
	case rule.KeepClientCredentials:
		r.Add(a.Key("client_credentials"), "remove it", "a rule that supplies a credential cannot keep the client's own")
	case rule.Host.Any():
		r.Add(a.Key(key), "name the host that the credential is for", "a credential for every host")
	case !exact && isPublicSuffix(rule.Host):
		r.Add(a.Key(key), "name the host that the credential is for", "a credential for names that anyone can register")
	case !exact && len(rule.Paths) == 0:
		r.Add(a.Key(key), "name the host, or the `paths:` that need the credential", "a credential on a wildcard host without paths")
	}
}

func (a *Allow) lintTunnel(rule policy.Rule, r *strictyaml.Report) {
	if rule.TLS != policy.Tunnel {
		return
	}
	if rule.Scheme != gate.HTTPS {
		r.Add(a.Key("tls"), "remove it", "only https can be tunnelled")
	}
	for _, k := range []string{"methods", "paths", "websocket", "encoded_slash", "max_body", "client_credentials"} {
		if a.Has(k) {
			r.Add(a.Key(k), "remove it, or let the connection be intercepted", "a tunnel's bytes are never read, so %s has no meaning", k)
		}
	}
}

// Relaxation is one thing that a line gives up of the default protection. It is announced by name when a session starts.
type Relaxation struct {
	Key   string // as the policy says it: "tls: tunnel"
	Host  string // for which hosts
	Means string // in one clause
}

func (r Relaxation) String() string { return r.Key + ": " + r.Host + ": " + r.Means }

func (a *Allow) relaxations(rule policy.Rule) []Relaxation {
	var out []Relaxation
	add := func(on bool, key, means string) {
		if on {
			out = append(out, Relaxation{Key: key, Host: rule.Host.String(), Means: means})
		}
	}
	add(a.AnyHost, "any_host", "every host is allowed")
	add(a.PublicSuffix, "public_suffix", "anyone can register a name below it")
	add(rule.TLS == policy.Tunnel, "tls: tunnel", "nothing in it is seen")
	add(rule.KeepClientCredentials, "client_credentials: keep", "a foreign account can carry data out")
	add(rule.Scheme == gate.HTTP, "scheme: http", "neither private nor authenticated")
	add(rule.Address.IsValid(), "address", "may resolve to "+rule.Address.String())
	return out
}

func (i *Injection) compile(mode policy.InjectMode, r *strictyaml.Report) policy.Injection {
	out := policy.Injection{Mode: mode, Credential: i.Credential.Name}
	one := Slot{At: i.At, Header: i.Header, Format: i.Format, Basic: i.Basic, Query: i.Query}
	if !i.Has("slots") {
		out.Slots = one.compile(r)
		return out
	}
	switch {
	case mode == policy.InjectSet:
		r.Add(i.Key("slots"), "write the one place beside `credential:`", "inject has one place; slots are for swap")
	case one.given() > 0:
		r.Add(i.Key("slots"), "move the other place into the list", "slots beside header, basic or query")
	case len(i.Slots) == 0:
		r.Add(i.Key("slots"), "", "an empty list")
	case len(i.Slots) > maxSlots:
		r.Add(i.Key("slots"), "", "more than %d slots", maxSlots)
	}
	for k := range i.Slots {
		out.Slots = append(out.Slots, i.Slots[k].compile(r)...)
	}
	return out
}

const maxSlots = 8

func (s *Slot) given() int {
	n := 0
	for _, k := range []string{"header", "basic", "query"} {
		if s.Has(k) {
			n++
		}
	}
	return n
}

func (s *Slot) compile(r *strictyaml.Report) []policy.Slot {
	if s.given() != 1 {
		r.Add(s.Pos(), `for example: header: Authorization, format: "Bearer {}"`, "needs one of header, basic or query")
		return nil
	}
	if s.Has("format") && !s.Has("header") {
		r.Add(s.Key("format"), "remove it", "format belongs to header")
	}
	var out policy.Slot
	var err error
	at := s.Key("header")
	switch {
	case s.Basic != nil:
		at = s.Key("basic")
		out, err = policy.NewBasicSlot(*s.Basic)
	case s.Has("query"):
		at = s.Key("query")
		out, err = policy.NewQuerySlot(s.Query)
	default:
		out, err = policy.NewHeaderSlot(s.Header, s.Format)
	}
	if err != nil {
		r.Add(at, "", "%s", err)
	}
	return []policy.Slot{out}
}

// Endpoint is a scheme and port that deny lines without a port must cover.
type Endpoint struct {
	Scheme gate.Scheme
	Port   gate.Port
}

// Compile gives the rules of one deny line: a line without scheme or port denies on every endpoint that the profile's allow lines
// open, so that deny wins wherever it stands.
func (d *Deny) Compile(label string, open []Endpoint) []policy.Rule {
	base := policy.Rule{Name: label, Effect: policy.Deny, Host: d.Host.Pattern, Methods: methodSet(d.Methods), Paths: patterns(d.Paths)}
	var out []policy.Rule
	for _, e := range open {
		if d.Scheme.Scheme != gate.NoScheme && d.Scheme.Scheme != e.Scheme || d.Port.Port != 0 && d.Port.Port != e.Port {
			continue
		}
		rule := base
		rule.Scheme, rule.Port = e.Scheme, e.Port
		out = append(out, rule)
	}
	return out
}

func methodSet(ms []Method) gate.MethodSet {
	if len(ms) == 0 {
		return gate.AllMethods
	}
	var s gate.MethodSet
	for _, m := range ms {
		s |= gate.Methods(m.Method)
	}
	return s
}

func patterns(ps []Path) []policy.PathPattern {
	var out []policy.PathPattern
	for _, p := range ps {
		out = append(out, p.Pattern)
	}
	return out
}

// isPublicSuffix reports whether p covers names that different owners can register: "*.com", "*.github.io", "*.amazonaws.com".
func isPublicSuffix(p policy.HostPattern) bool {
	h, ok := p.Below()
	if !ok {
		return false
	}
	suffix, _ := publicsuffix.PublicSuffix(h.String())
	return suffix == h.String() || sharedParents()[h.String()]
}

// parseCIDR accepts a prefix in canonical form that is not the whole internet.
func parseCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, &strictyaml.Fault{Msg: "not a range of addresses", Hint: "for example: 10.1.2.0/24, or 10.1.2.3/32 for one address"}
	case p.Masked() != p:
		return netip.Prefix{}, &strictyaml.Fault{Msg: "the range has bits set beyond its length", Hint: "write " + p.Masked().String()}
	case p.Bits() < 8 || p.Addr().Is6() && p.Bits() < 32:
		return netip.Prefix{}, &strictyaml.Fault{Msg: "the range is too wide", Hint: "at least /8, or /32 for IPv6"}
	case p.Addr().Is4In6():
		return netip.Prefix{}, &strictyaml.Fault{Msg: "an IPv4 address in IPv6 form", Hint: "write it as IPv4"}
	}
	return p, nil
}

// Package policy decides. It is pure: no clock, no network, no files, no randomness.
//
// A Policy is compiled once from Rules and never changes. Decide answers one Action with a Decision; only an Allow carries a Permit,
// and a Permit is the only thing that egress dials or broker releases a credential against.
// Deny wins over allow wherever it stands; among allows the first that matches decides, and with it the credential.
package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"postern/internal/core/gate"
	"postern/internal/core/git"
)

// Verdict is the outcome of a decision.
type Verdict uint8

const (
	Deny Verdict = iota // the zero value is no
	Allow
)

func (v Verdict) String() string {
	if v == Allow {
		return "allow"
	}
	return "deny"
}

// Mode is what happens to a TLS connection that may be made. The zero Mode refuses.
type Mode uint8

const (
	NoMode    Mode = iota
	Intercept      // TLS ends at the gateway; every request is decided on its own
	Tunnel         // bytes pass through after SNI was checked; never with a credential
)

func (m Mode) String() string {
	switch m {
	case Intercept:
		return "intercept"
	case Tunnel:
		return "tunnel"
	}
	return "none"
}

// Rule is one line of a policy. The zero Rule denies and matches nothing.
type Rule struct {
	Name   string      // where it stands, for people: "postern.yaml:23" or "preset claude:14"
	Effect Verdict     // Deny or Allow
	Host   HostPattern // zero matches nothing
	Port   gate.Port   // zero: the scheme's default port
	Scheme gate.Scheme // zero matches nothing

	Methods gate.MethodSet // zero matches nothing; gate.AllMethods for any
	Paths   []PathPattern  // empty: every path
	Repo    gate.Repo      // not zero: matches only git requests for this repository
	Push    bool           // with Repo: pushes too

	TLS                   Mode         // zero is Intercept for allow rules
	Address               netip.Prefix // valid: the host may resolve to these non-public addresses
	Inject                Injection    // zero: no credential
	KeepClientCredentials bool         // the client's own credentials pass through
	WebSocket             bool         // protocol upgrade to websocket is allowed
	EncodedSlash          bool         // paths with %2F are allowed
	MaxBody               int64        // request body limit in bytes; zero: the session's
	_                     struct{}     // rules are written with field names
}

// Subject is on whose behalf a decision is made. The zero Subject is refused.
type Subject struct {
	Session gate.SessionID
}

// ActionKind says what an Action asks for. The zero kind is refused.
type ActionKind uint8

const (
	NoAction ActionKind = iota
	Connect             // open a TLS connection to Host:Port; says nothing about the requests on it
	Request             // one HTTP request
)

// Action is one thing the sandbox asks to do.
type Action struct {
	Kind   ActionKind
	Scheme gate.Scheme
	Host   gate.Host
	Port   gate.Port

	// Request only.
	Method  gate.Method
	Path    gate.Path
	Upgrade bool        // asks for a protocol upgrade (WebSocket)
	Git     git.Request // zero when the request is not git's
}

// Decision is the answer to an Action. The zero Decision denies.
type Decision struct {
	Verdict Verdict
	Reason  gate.Reason
	Rule    string // which rule decided, "" when none did
	Mode    Mode   // Connect only: Intercept or Tunnel
	Permit  Permit // zero unless Allow
}

// Permit proves that Decide allowed one destination for one purpose in one session. The zero Permit proves nothing.
type Permit struct{ g grant }

type grant struct {
	rule    *Rule
	session gate.SessionID
	kind    ActionKind
	scheme  gate.Scheme
	host    gate.Host
	port    gate.Port
	git     git.Op
}

// Valid reports whether the permit came from an Allow.
func (p Permit) Valid() bool { return p.g.rule != nil }

// Session is whose permit it is.
func (p Permit) Session() gate.SessionID { return p.g.session }

// Kind is what was allowed: a Request, or for a tunnel the Connect.
func (p Permit) Kind() ActionKind { return p.g.kind }

// Mode is how an allowed Connect may be carried; NoMode for a Request. Only a Tunnel's permit opens a connection whose bytes are not read.
func (p Permit) Mode() Mode {
	if p.g.rule == nil || p.g.kind != Connect {
		return NoMode
	}
	return p.g.rule.TLS
}

// Scheme, Host and Port are the one destination that was allowed.
func (p Permit) Scheme() gate.Scheme { return p.g.scheme }

// Host is the destination's canonical name.
func (p Permit) Host() gate.Host { return p.g.host }

// Port is the destination's port.
func (p Permit) Port() gate.Port { return p.g.port }

// Git is the git operation that was allowed, zero when the request is not git's.
func (p Permit) Git() git.Op { return p.g.git }

// Injection is what the deciding rule injects; the zero Injection injects nothing.
func (p Permit) Injection() Injection {
	if p.g.rule == nil {
		return Injection{}
	}
	return p.g.rule.Inject
}

// Address is the range of non-public addresses that the rule admits, invalid when none.
func (p Permit) Address() netip.Prefix {
	if p.g.rule == nil {
		return netip.Prefix{}
	}
	return p.g.rule.Address
}

// KeepClientCredentials reports whether the client's own credentials pass through.
func (p Permit) KeepClientCredentials() bool {
	return p.g.rule != nil && p.g.rule.KeepClientCredentials
}

// MaxBody is the rule's limit on the request body in bytes, zero when the rule has none of its own.
func (p Permit) MaxBody() int64 {
	if p.g.rule == nil {
		return 0
	}
	return p.g.rule.MaxBody
}

// Policy is a compiled set of rules. The nil Policy and the zero Policy deny everything.
type Policy struct {
	rules    []Rule
	exact    map[gate.Host][]int32
	wildcard map[gate.Host][]int32 // by the name below which the pattern matches
	any      []int32
}

// Compile checks rules against each other and indexes them by host. The rules are copied.
func Compile(rules []Rule) (*Policy, error) {
	p := &Policy{rules: make([]Rule, len(rules)), exact: map[gate.Host][]int32{}, wildcard: map[gate.Host][]int32{}}
	for i, r := range rules {
		if err := complete(&r); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Name, err)
		}
		r.Paths, r.Inject.Slots = slices.Clone(r.Paths), slices.Clone(r.Inject.Slots)
		p.rules[i] = r
		switch n := int32(i); r.Host.kind {
		case exactHost:
			p.exact[r.Host.host] = append(p.exact[r.Host.host], n)
		case belowHost:
			p.wildcard[r.Host.host] = append(p.wildcard[r.Host.host], n)
		case anyHost:
			p.any = append(p.any, n)
		}
	}
	return p, nil
}

// complete fills the defaults of a rule and refuses what could never be safe.
func complete(r *Rule) error {
	switch {
	case r.Effect > Allow || r.Scheme > gate.HTTP || r.TLS > Tunnel || r.Inject.Mode > InjectSwap:
		return errors.New("a value that names nothing") // one that is not deny must not become allow
	case r.Host.kind == noHost:
		return errors.New("a rule needs a host")
	case r.Scheme == gate.NoScheme:
		return errors.New("a rule needs a scheme")
	case r.Methods&gate.AllMethods == 0:
		return errors.New("a rule without methods matches nothing")
	case !r.Repo.IsZero() && r.Host != ExactHost(r.Repo.Host()):
		return errors.New("a git rule's host is its repository's")
	case r.MaxBody < 0:
		return errors.New("a body has no negative size")
	case slices.ContainsFunc(r.Paths, func(p PathPattern) bool { return len(p.segs) == 0 }):
		return errors.New("an empty path pattern matches nothing")
	}
	if r.Port == 0 {
		r.Port = r.Scheme.DefaultPort()
	}
	if r.Effect == Deny {
		return nil
	}
	if r.TLS == NoMode {
		r.TLS = Intercept
	}
	inject := r.Inject.Mode != InjectNone
	switch {
	case inject && r.Scheme != gate.HTTPS:
		return errors.New("a credential leaves only over https")
	case inject && r.TLS == Tunnel:
		return errors.New("a tunnel cannot carry a credential: its bytes are never read")
	case inject && (r.Inject.Credential.IsZero() || len(r.Inject.Slots) == 0):
		return errors.New("an injection needs a credential and a slot")
	case inject && slices.ContainsFunc(r.Inject.Slots, func(s Slot) bool { return s.Kind == NoSlot || s.Kind > QuerySlot }):
		return errors.New("a slot that is no place")
	case inject && r.KeepClientCredentials:
		return errors.New("a rule that injects cannot keep the client's credentials")
	case inject && r.Host.kind == anyHost:
		return errors.New("a credential needs a named host")
	case r.TLS == Tunnel && r.Scheme != gate.HTTPS:
		return errors.New("only https can be tunnelled")
	case r.TLS == Tunnel && (r.Methods != gate.AllMethods || len(r.Paths) > 0 || !r.Repo.IsZero() || r.WebSocket):
		return errors.New("a tunnel's methods and paths cannot be seen, so a rule cannot name them")
	}
	return nil
}

// Rules lists the compiled rules in order, for people.
func (p *Policy) Rules() []Rule {
	if p == nil {
		return nil
	}
	return append([]Rule(nil), p.rules...)
}

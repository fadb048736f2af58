package policy

import (
	"errors"
	"net/textproto"
	"strings"

	"postern/internal/core/gate"
)

// InjectMode says when a credential is put on a request. The zero mode is never.
type InjectMode uint8

const (
	InjectNone InjectMode = iota
	// InjectSet puts the credential on every request the rule matches.
	InjectSet
	// InjectSwap replaces this session's placeholder, in a declared slot and nowhere else. No credential stays none; a foreign one is refused.
	InjectSwap
)

// Injection is which credential a rule injects, and where. The zero Injection injects nothing.
type Injection struct {
	Mode       InjectMode
	Credential gate.CredentialName
	Slots      []Slot // InjectSet uses the first; InjectSwap whichever holds the placeholder
}

// SlotKind is a place in a request that carries a credential. The zero kind is none.
type SlotKind uint8

const (
	NoSlot SlotKind = iota
	HeaderSlot
	BasicSlot // Authorization: Basic, with the credential as the password
	QuerySlot
)

// Slot is one declared place for a credential. Slots are comparable with ==.
type Slot struct {
	Kind   SlotKind
	Name   string // header or query parameter name; headers in canonical MIME form
	Prefix string // what stands before the credential in the value: "Bearer "
	Suffix string
	User   string // BasicSlot: the user name
}

// NewHeaderSlot makes a header slot from a format such as "Bearer {}", where "{}" stands for the credential; "" is "{}".
func NewHeaderSlot(name, format string) (Slot, error) {
	if format == "" {
		format = "{}"
	}
	prefix, suffix, ok := strings.Cut(format, "{}")
	if !ok || strings.Contains(suffix, "{}") {
		return Slot{}, errors.New(`format: needs "{}" once, where the credential goes`)
	}
	if !validToken(name) {
		return Slot{}, errors.New("header: not an HTTP field name")
	}
	if !printable(prefix) || !printable(suffix) {
		return Slot{}, errors.New("format: only visible ASCII and spaces")
	}
	name = textproto.CanonicalMIMEHeaderKey(name)
	if forbiddenSlot(name) {
		return Slot{}, errors.New("header: " + name + " frames or routes the request and cannot carry a credential")
	}
	return Slot{Kind: HeaderSlot, Name: name, Prefix: prefix, Suffix: suffix}, nil
}

// NewBasicSlot makes a basic-auth slot with the given user name (RFC 7617: no colon).
func NewBasicSlot(user string) (Slot, error) {
	if !printable(user) || strings.Contains(user, ":") {
		return Slot{}, errors.New("basic: a user name of visible ASCII without a colon")
	}
	return Slot{Kind: BasicSlot, Name: "Authorization", User: user}, nil
}

// NewQuerySlot makes a query parameter slot.
func NewQuerySlot(name string) (Slot, error) {
	if !validParameter(name) {
		return Slot{}, errors.New("query: a parameter name of letters, digits and -._~")
	}
	return Slot{Kind: QuerySlot, Name: name}, nil
}

func forbiddenSlot(name string) bool {
	switch name {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Te", "Trailer", "Expect", "Keep-Alive", "Proxy-Connection":
		return true
	}
	return false
}

// validParameter admits the unreserved characters of RFC 3986 §2.3: they have one spelling in a query.
func validParameter(s string) bool {
	return validToken(s) && !strings.ContainsAny(s, "!#$%&'*+^`|")
}

func validToken(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return true
}

func printable(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

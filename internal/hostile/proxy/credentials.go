package proxy

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

// credentialHeaders are the request fields that services are known to take credentials from. On every intercepted host they are
// removed unless the rule keeps them: an attacker's own key must not carry data out through an allowed host.
func credentialHeaders() []string {
	return []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Apikey", "X-Apikey",
		"Private-Token", "Job-Token", "Deploy-Token", "X-Auth-Token", "X-Access-Token", "X-Amz-Security-Token", "X-Vault-Token", "X-Token",
		"X-Github-Token", "X-Gitlab-Token", "X-Anthropic-Api-Key", "X-Openai-Api-Key", "Ocp-Apim-Subscription-Key", "X-Functions-Key",
		"X-Rapidapi-Key", "Circle-Token", "Dd-Api-Key", "Dd-Application-Key", "X-Shopify-Access-Token", "X-Figma-Token", "X-Goog-Iam-Authorization-Token"}
}

// credentialParameters are query parameters that carry credentials wherever they are known. They cannot be removed without
// changing what was judged, so a request with one is refused.
func credentialParameter(name string, injects bool) bool {
	switch name {
	case "access_token", "api_key", "apikey", "api-key", "private_token", "oauth_token", "auth_token", "client_secret", "x-api-key", "x-goog-api-key":
		return true
	case "key", "token": // common words elsewhere; on a host with a credential they are one
		return injects
	}
	return false
}

// takeCredentials removes what the client brought as credentials and settles the slot that the real one goes into.
func (x *exchange) takeCredentials() bool {
	permit := x.decision.Permit
	inject := permit.Injection()
	if permit.KeepClientCredentials() {
		return x.noPlaceholders()
	}
	if inject.Mode == policy.InjectSwap {
		slot, foreign := x.findPlaceholder(inject)
		if foreign != "" {
			return x.deny(gate.ReasonForeignCredential, "in "+foreign)
		}
		x.slot = slot
	}
	if name := x.foreignParameter(inject); name != "" {
		return x.deny(gate.ReasonForeignCredential, "in the query parameter "+name)
	}
	if inject.Mode == policy.InjectSet {
		x.slot = inject.Slots[0]
	}
	if x.slot.Kind != policy.NoSlot && permit.Scheme() != gate.HTTPS {
		return x.deny(gate.ReasonCredentialClear, "")
	}
	if name := x.strip(inject); name != "" {
		return x.deny(gate.ReasonPlaceholderLeak, "in "+name)
	}
	return x.noPlaceholders()
}

// strip removes every carrier. It returns the name of one that holds a placeholder where the rule has no place for it.
func (x *exchange) strip(inject policy.Injection) string {
	h := x.r.Header
	remove := func(name string) string {
		values, ok := h[name]
		if !ok {
			return ""
		}
		if inject.Mode != policy.InjectSwap && x.placeholderIn(values) {
			return name
		}
		delete(h, name)
		if x.slot.Name != name || inject.Mode != policy.InjectSwap {
			x.stripped = name
		}
		return ""
	}
	for _, name := range credentialHeaders() {
		if bad := remove(name); bad != "" {
			return bad
		}
	}
	for _, s := range inject.Slots {
		switch s.Kind {
		case policy.HeaderSlot, policy.BasicSlot:
			if bad := remove(s.Name); bad != "" {
				return bad
			}
		case policy.QuerySlot:
			x.action.Path = withoutParameter(x.action.Path, s.Name)
		}
	}
	return ""
}

// findPlaceholder looks for this session's placeholder in the declared slots. foreign names a place that holds something else.
func (x *exchange) findPlaceholder(inject policy.Injection) (slot policy.Slot, foreign string) {
	mine := func(value string) bool {
		name, ok := x.p.Placeholders.Find(value)
		return ok && name == inject.Credential
	}
	matched := map[string]bool{}
	for _, s := range inject.Slots {
		if x.holds(s, mine) {
			matched[s.Name] = true
			if slot.Kind == policy.NoSlot {
				slot = s
			}
		}
	}
	h := x.r.Header
	for _, s := range inject.Slots {
		if s.Kind == policy.HeaderSlot && len(h[s.Name]) > 0 && !matched[s.Name] {
			return slot, s.Name
		}
	}
	for _, name := range credentialHeaders() {
		if name != "Cookie" && len(h[name]) > 0 && !matched[name] { // cookie jars hold what the service itself set
			return slot, name
		}
	}
	return slot, ""
}

// holds reports whether a slot's only value is what mine accepts.
func (x *exchange) holds(s policy.Slot, mine func(string) bool) bool {
	if s.Kind == policy.QuerySlot {
		values := parameters(x.action.Path, s.Name)
		return len(values) == 1 && mine(values[0])
	}
	values := x.r.Header[s.Name]
	if len(values) != 1 {
		return false
	}
	if s.Kind == policy.BasicSlot {
		user, password, ok := basic(values[0])
		return ok && (mine(password) || mine(user) && (password == "" || password == "x-oauth-basic"))
	}
	v, ok := strings.CutPrefix(values[0], s.Prefix)
	if ok {
		v, ok = strings.CutSuffix(v, s.Suffix)
	}
	return ok && mine(v)
}

func basic(value string) (user, password string, ok bool) {
	enc, ok := strings.CutPrefix(value, "Basic ")
	if !ok {
		return "", "", false
	}
	b, err := base64.StdEncoding.DecodeString(enc)
	if err != nil {
		return "", "", false
	}
	return strings.Cut(string(b), ":")
}

// foreignParameter is the name of a query parameter that carries a credential which no declared slot accounts for.
func (x *exchange) foreignParameter(inject policy.Injection) string {
	query, _ := x.action.Path.Query()
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if un, err := url.QueryUnescape(name); err == nil {
			name = un
		}
		lower := strings.ToLower(name)
		if !credentialParameter(lower, inject.Mode != policy.InjectNone) && !isQuerySlot(inject, name) {
			continue
		}
		if isQuerySlot(inject, name) && (inject.Mode == policy.InjectSet || x.slot.Name == name) {
			continue // the slot is owned: what stands there is removed
		}
		return name
	}
	return ""
}

func isQuerySlot(inject policy.Injection, name string) bool {
	for _, s := range inject.Slots {
		if s.Kind == policy.QuerySlot && s.Name == name {
			return true
		}
	}
	return false
}

// parameters are the decoded values of a query parameter.
func parameters(p gate.Path, name string) (values []string) {
	query, _ := p.Query()
	for pair := range strings.SplitSeq(query, "&") {
		k, v, _ := strings.Cut(pair, "=")
		if k, err := url.QueryUnescape(k); err != nil || k != name {
			continue
		}
		if v, err := url.QueryUnescape(v); err == nil {
			values = append(values, v)
		}
	}
	return values
}

// withoutParameter removes a query parameter and leaves every other byte as it was.
func withoutParameter(p gate.Path, name string) gate.Path {
	query, ok := p.Query()
	if !ok {
		return p
	}
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		k, _, _ := strings.Cut(pair, "=")
		if un, err := url.QueryUnescape(k); err == nil && un == name {
			continue
		}
		kept = append(kept, pair)
	}
	return p.WithQuery(strings.Join(kept, "&"))
}

// noPlaceholders refuses a request that still holds a placeholder, of this session or another, where no credential belongs.
func (x *exchange) noPlaceholders() bool {
	if where := x.misplacedPlaceholder(); where != "" {
		return x.deny(gate.ReasonPlaceholderLeak, where)
	}
	return true
}

func (x *exchange) misplacedPlaceholder() string {
	if x.p.Placeholders == nil {
		return ""
	}
	for name, values := range x.r.Header {
		if x.placeholderIn(values) {
			return "a placeholder in the field " + name
		}
	}
	if x.p.Placeholders.In(x.action.Path.String()) {
		return "a placeholder in the request target"
	}
	return ""
}

func (x *exchange) placeholderIn(values []string) bool {
	if x.p.Placeholders == nil {
		return false
	}
	for _, v := range values {
		if x.p.Placeholders.In(v) {
			return true
		}
	}
	return false
}

// hopByHop are the fields that end at the gateway in either direction (RFC 9110 §7.6.1), besides those that Connection names.
func removeHopByHop(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			if name = strings.TrimSpace(name); name != "" {
				h.Del(name)
			}
		}
	}
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings"} {
		delete(h, name)
	}
}

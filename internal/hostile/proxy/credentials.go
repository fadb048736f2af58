package proxy

import (
	"encoding/base64"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

// carrier reports whether services are known to take credentials from a request field. On every intercepted host these are removed unless
// the rule keeps them: an attacker's own key must not carry data out through an allowed host.
func carrier(name string) bool {
	switch name {
	case "Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Apikey", "X-Apikey",
		"Private-Token", "Job-Token", "Deploy-Token", "X-Auth-Token", "X-Access-Token", "X-Amz-Security-Token", "X-Vault-Token", "X-Token",
		"X-Github-Token", "X-Gitlab-Token", "X-Anthropic-Api-Key", "X-Openai-Api-Key", "Ocp-Apim-Subscription-Key", "X-Functions-Key",
		"X-Rapidapi-Key", "Circle-Token", "Dd-Api-Key", "Dd-Application-Key", "X-Shopify-Access-Token", "X-Figma-Token",
		"X-Goog-Iam-Authorization-Token":
		return true
	}
	return false
}

// fieldName is the name that a server may read: those behind CGI, WSGI and their kin take every other punctuation for a hyphen.
func fieldName(name string) string {
	for i := range len(name) {
		if !plainNameByte(name[i]) {
			b := []byte(name)
			for j, c := range b {
				if !plainNameByte(c) {
					b[j] = '-'
				}
			}
			return textproto.CanonicalMIMEHeaderKey(string(b))
		}
	}
	return name
}

func plainNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-'
}

// credentialParameter is the known name of a query parameter that carries a credential, "" when it is none. Parameters cannot be removed without
// changing what was judged, so a request with one is refused.
func credentialParameter(name string, injects bool) string {
	name, _, _ = strings.Cut(name, "[") // PHP's arrays
	var known [16]byte
	if len(name) > len(known) {
		return ""
	}
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'A' && c <= 'Z':
			known[i] = c | 0x20
		case c == '-' || c == '.' || c == ' ': // to PHP these are underscores
			known[i] = '_'
		default:
			known[i] = c
		}
	}
	switch s := string(known[:len(name)]); s {
	case "access_token", "api_key", "apikey", "private_token", "job_token", "oauth_token", "auth_token", "client_secret", "x_api_key", "x_goog_api_key":
		return s
	case "key", "token": // common words elsewhere; on a host with a credential they are one
		if injects {
			return s
		}
	}
	return ""
}

// takeCredentials removes what the client brought as credentials and settles the slot that the real one goes into.
func (x *exchange) takeCredentials() bool {
	permit := x.decision.Permit
	if permit.KeepClientCredentials() {
		return x.noPlaceholders()
	}
	inject := permit.Injection()
	mine := x.placeholderSlots(inject)
	switch inject.Mode {
	case policy.InjectSet:
		x.slot = inject.Slots[0]
	case policy.InjectSwap:
		if len(mine) > 0 {
			x.slot = mine[0]
		}
	}
	if x.slot.Kind != policy.NoSlot && permit.Scheme() != gate.HTTPS {
		return x.deny(gate.ReasonCredentialClear, "")
	}
	if why, where := x.strip(inject, mine); why != gate.ReasonNone {
		return x.deny(why, where)
	}
	if name := x.foreignParameter(inject, mine); name != "" {
		return x.deny(gate.ReasonForeignCredential, "in the query parameter "+name)
	}
	for _, s := range inject.Slots {
		if s.Kind == policy.QuerySlot {
			x.action.Path = withoutParameter(x.action.Path, s.Name)
		}
	}
	return x.noPlaceholders()
}

// placeholderSlots are the declared slots in which the request carries this session's placeholder for the rule's credential.
func (x *exchange) placeholderSlots(inject policy.Injection) (mine []policy.Slot) {
	for _, s := range inject.Slots {
		if x.holds(s, func(value string) bool {
			name, ok := x.p.Placeholders.Find(value)
			return ok && name == inject.Credential
		}) {
			mine = append(mine, s)
		}
	}
	return mine
}

// strip removes every carrier of credentials from the header. It names one that must not be there at all: a placeholder where
// the rule has no place for it, or under a swapping rule anything but the placeholder.
func (x *exchange) strip(inject policy.Injection, mine []policy.Slot) (why gate.Reason, where string) {
	h := x.r.Header
	if x.action.Upgrade && bearerProtocol(h["Sec-Websocket-Protocol"]) {
		return gate.ReasonForeignCredential, "in Sec-WebSocket-Protocol"
	}
	for name, values := range h {
		known := fieldName(name)
		if !carrier(known) && !namesField(inject.Slots, known) {
			continue
		}
		if !namesField(mine, name) {
			switch {
			case x.placeholderIn(values):
				return gate.ReasonPlaceholderLeak, "in " + known
			case inject.Mode == policy.InjectSwap && known != "Cookie" && known != "Proxy-Authorization": // jars and proxies are not the service's own
				return gate.ReasonForeignCredential, "in " + known
			}
			x.stripped = known
		}
		delete(h, name)
	}
	return gate.ReasonNone, ""
}

// namesField reports whether a slot is in the field of that name.
func namesField(slots []policy.Slot, name string) bool {
	return slices.ContainsFunc(slots, func(s policy.Slot) bool { return s.Kind != policy.QuerySlot && s.Name == name })
}

// bearerProtocol recognises the subprotocols by which browsers, which can set no other field, send a key with a WebSocket.
func bearerProtocol(values []string) bool {
	for _, v := range values {
		v = strings.ToLower(v)
		if strings.Contains(v, "api-key") || strings.Contains(v, "bearer") || strings.Contains(v, "authorization") || strings.Contains(v, "token") {
			return true
		}
	}
	return false
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

// foreignParameter is the known name of a query parameter that carries a credential which no declared slot accounts for.
func (x *exchange) foreignParameter(inject policy.Injection, mine []policy.Slot) string {
	query, _ := x.action.Path.Query()
	if query == "" {
		return ""
	}
	injects := inject.Mode != policy.InjectNone
	for pair := range strings.SplitSeq(query, "&") {
		owned := true                                   // a slot stands before the first ';'
		for part := range strings.SplitSeq(pair, ";") { // where some servers cut too
			name, _, _ := strings.Cut(part, "=")
			if un, err := url.QueryUnescape(name); err == nil {
				name = un
			}
			switch known := credentialParameter(name, injects); {
			case owned && (namesParameter(mine, name) || inject.Mode == policy.InjectSet && namesParameter(inject.Slots, name)):
			case namesParameter(inject.Slots, name):
				return name
			case known != "":
				return known
			}
			owned = false
		}
	}
	return ""
}

// namesParameter reports whether a slot is the query parameter of that name.
func namesParameter(slots []policy.Slot, name string) bool {
	return slices.ContainsFunc(slots, func(s policy.Slot) bool { return s.Kind == policy.QuerySlot && s.Name == name })
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
	query, _ := p.Query()
	var kept []string
	removed := false
	for pair := range strings.SplitSeq(query, "&") {
		k, _, _ := strings.Cut(pair, "=")
		if un, err := url.QueryUnescape(k); err == nil && un == name {
			removed = true
			continue
		}
		kept = append(kept, pair)
	}
	if !removed {
		return p
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
	return slices.ContainsFunc(values, x.p.Placeholders.In)
}

// reroutes is the name of a field by which some servers take another method, path or host than the request's own, "" when there is none:
// what was judged would not be what is done.
func reroutes(h http.Header) string {
	for name := range h {
		switch known := fieldName(name); known {
		case "X-Http-Method-Override", "X-Http-Method", "X-Method-Override",
			"X-Original-Url", "X-Rewrite-Url", "X-Original-Uri", "X-Forwarded-Uri", "X-Http-Path-Override",
			"X-Forwarded-Host", "X-Original-Host", "X-Host", "X-Forwarded-Server", "X-Http-Host-Override", "Forwarded":
			return known
		}
	}
	return ""
}

package policy

import (
	"strings"
	"testing"

	"postern/internal/core/gate"
)

func TestCompileRefusesWhatCouldNeverBeSafe(t *testing.T) {
	name, err := gate.ParseCredentialName("key")
	must(t, name, err)
	slot, err := NewHeaderSlot("authorization", "")
	must(t, slot, err)
	inject := Injection{Mode: InjectSet, Credential: name, Slots: []Slot{slot}}
	for want, change := range map[string]func(*Rule){
		"names nothing":      func(r *Rule) { r.Effect = 2 },
		"names nothing ":     func(r *Rule) { r.Scheme = 3 },
		"names nothing  ":    func(r *Rule) { r.TLS = 3 },
		"names nothing   ":   func(r *Rule) { r.Inject.Mode = 3 },
		"needs a host":       func(r *Rule) { r.Host = HostPattern{} },
		"needs a scheme":     func(r *Rule) { r.Scheme = gate.NoScheme },
		"without methods":    func(r *Rule) { r.Methods = 0 },
		"without methods ":   func(r *Rule) { r.Methods = 1 | 1<<15 },
		"negative size":      func(r *Rule) { r.MaxBody = -1 },
		"empty path":         func(r *Rule) { r.Paths = []PathPattern{{}} },
		"only over https":    func(r *Rule) { r.Inject, r.Scheme = inject, gate.HTTP },
		"cannot carry":       func(r *Rule) { r.Inject, r.TLS = inject, Tunnel },
		"credential and":     func(r *Rule) { r.Inject = Injection{Mode: InjectSet, Slots: inject.Slots} },
		"credential and ":    func(r *Rule) { r.Inject = Injection{Mode: InjectSwap, Credential: name} },
		"no place":           func(r *Rule) { r.Inject = Injection{Mode: InjectSwap, Credential: name, Slots: []Slot{slot, {}}} },
		"cannot keep":        func(r *Rule) { r.Inject, r.KeepClientCredentials = inject, true },
		"named host":         func(r *Rule) { r.Inject, r.Host = inject, pattern(t, "*") },
		"can be tunnelled":   func(r *Rule) { r.TLS, r.Scheme = Tunnel, gate.HTTP },
		"cannot be seen":     func(r *Rule) { r.TLS, r.Methods = Tunnel, gate.Methods(gate.GET) },
		"cannot be seen ":    func(r *Rule) { r.TLS, r.Paths = Tunnel, paths(t, "/a") },
		"cannot be seen  ":   func(r *Rule) { r.TLS, r.WebSocket = Tunnel, true },
		"its repository's":   func(r *Rule) { r.Repo = repo(t, "github.com/a/b") },
		"its repository's ":  func(r *Rule) { r.Host, r.Repo = pattern(t, "*.github.com"), repo(t, "github.com/a/b") },
		"its repository's  ": func(r *Rule) { r.Effect, r.Repo = Deny, repo(t, "github.com/a/b") },
	} {
		r := allow(t, "a.test")
		change(&r)
		p, err := Compile([]Rule{allow(t, "ok.test"), r})
		if err == nil || p != nil || !strings.Contains(err.Error(), strings.TrimSpace(want)) || !strings.HasPrefix(err.Error(), r.Name+": ") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestSlots(t *testing.T) {
	for name, c := range map[string]struct{ got, want Slot }{
		"bearer": {must2(t)(NewHeaderSlot("authorization", "Bearer {}")), Slot{Kind: HeaderSlot, Name: "Authorization", Prefix: "Bearer "}},
		"bare":   {must2(t)(NewHeaderSlot("x-API-key", "")), Slot{Kind: HeaderSlot, Name: "X-Api-Key"}},
		"around": {must2(t)(NewHeaderSlot("a", "<{}>")), Slot{Kind: HeaderSlot, Name: "A", Prefix: "<", Suffix: ">"}},
		"basic":  {must2(t)(NewBasicSlot("x-access-token")), Slot{Kind: BasicSlot, Name: "Authorization", User: "x-access-token"}},
		"query":  {must2(t)(NewQuerySlot("key")), Slot{Kind: QuerySlot, Name: "key"}},
	} {
		if c.got != c.want {
			t.Errorf("%s: %+v", name, c.got)
		}
	}
	for name, f := range map[string]func() (Slot, error){
		"no place":      func() (Slot, error) { return NewHeaderSlot("a", "Bearer") },
		"two places":    func() (Slot, error) { return NewHeaderSlot("a", "{}{}") },
		"line break":    func() (Slot, error) { return NewHeaderSlot("a", "x\r\nb: {}") },
		"not ASCII":     func() (Slot, error) { return NewHeaderSlot("a", "{}é") },
		"no name":       func() (Slot, error) { return NewHeaderSlot("", "") },
		"colon":         func() (Slot, error) { return NewHeaderSlot("a:", "") },
		"space":         func() (Slot, error) { return NewHeaderSlot("a b", "") },
		"pseudo-header": func() (Slot, error) { return NewHeaderSlot(":path", "") },
		"host":          func() (Slot, error) { return NewHeaderSlot("hOST", "") },
		"framing":       func() (Slot, error) { return NewHeaderSlot("transfer-encoding", "") },
		"length":        func() (Slot, error) { return NewHeaderSlot("content-length", "") },
		"long":          func() (Slot, error) { return NewHeaderSlot(strings.Repeat("a", 129), "") },
		"user":          func() (Slot, error) { return NewBasicSlot("a:b") },
		"user break":    func() (Slot, error) { return NewBasicSlot("a\n") },
		"no parameter":  func() (Slot, error) { return NewQuerySlot("") },
		"two":           func() (Slot, error) { return NewQuerySlot("a=b") },
		"ampersand":     func() (Slot, error) { return NewQuerySlot("a&b") },
		"fragment":      func() (Slot, error) { return NewQuerySlot("a#b") },
		"percent":       func() (Slot, error) { return NewQuerySlot("a%62") },
		"plus":          func() (Slot, error) { return NewQuerySlot("a+b") },
	} {
		if s, err := f(); err == nil || s != (Slot{}) {
			t.Errorf("%s is a slot: %+v", name, s)
		}
	}
}

func must2(t failer) func(Slot, error) Slot {
	return func(s Slot, err error) Slot { return must(t, s, err) }
}

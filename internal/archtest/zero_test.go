package archtest

import (
	"go/constant"
	"go/types"
	"strings"
	"testing"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
)

// TestZeroOfEveryEnumNamesNothing finds every exported enumeration of the product and requires that its zero value says no, nothing
// or unknown: a field that was forgotten must never be a permission.
func TestZeroOfEveryEnumNamesNothing(t *testing.T) {
	refuses := []string{"No", "None", "Deny", "Unknown", "Refuse", "Closed", "Invalid", "InjectNone", "Off", "Damaged"}
	harmless := map[string]string{
		"postern/internal/core/policy.Voice": "how a refusal is worded; whatever the voice, it is a refusal",
	}
	h := source(t)
	found := 0
	for _, p := range h.product() {
		if p.types == nil {
			continue
		}
		for typ, zero := range enums(p.types) {
			found++
			if harmless[p.path+"."+typ] != "" {
				continue
			}
			if zero == "" {
				t.Errorf("%s.%s has no name for its zero value: name it, and let it refuse", p.path, typ)
				continue
			}
			ok := false
			for _, word := range refuses {
				ok = ok || strings.HasPrefix(zero, word) || strings.HasSuffix(zero, word)
			}
			if !ok {
				t.Errorf("%s.%s: the zero value is %s: the zero value of an enumeration must refuse", p.path, typ, zero)
			}
		}
	}
	if found < 5 {
		t.Fatalf("found only %d enumerations: the search is broken", found)
	}
}

// enums maps each exported integer type with at least two exported constants to the name of its zero, "" when it has none.
// Bit sets are no enumerations: their zero is the empty set.
func enums(p *types.Package) map[string]string {
	count, zero := map[string]int{}, map[string]string{}
	scope := p.Scope()
	for _, name := range scope.Names() {
		c, ok := scope.Lookup(name).(*types.Const)
		if !ok || !c.Exported() {
			continue
		}
		named, ok := c.Type().(*types.Named)
		if !ok || named.Obj().Pkg() != p || !named.Obj().Exported() || strings.HasSuffix(named.Obj().Name(), "Set") {
			continue
		}
		basic, ok := named.Underlying().(*types.Basic)
		if !ok || basic.Info()&types.IsInteger == 0 {
			continue
		}
		typ := named.Obj().Name()
		count[typ]++
		if v, exact := constant.Int64Val(c.Val()); exact && v == 0 {
			zero[typ] = name
		}
	}
	for typ, n := range count {
		if n < 2 && zero[typ] != "" {
			delete(count, typ)
		}
	}
	out := map[string]string{}
	for typ := range count {
		out[typ] = zero[typ]
	}
	return out
}

func TestZeroValuesDenyInBehaviour(t *testing.T) {
	var nobody policy.Subject
	var nothing policy.Action
	var none *policy.Policy
	somebody := policy.Subject{Session: gate.NewSessionID([10]byte{1})}
	host, err := gate.ParseHost("a.test")
	if err != nil {
		t.Fatal(err)
	}
	connect := policy.Action{Kind: policy.Connect, Scheme: gate.HTTPS, Host: host, Port: 443}
	all, err := policy.Compile([]policy.Rule{{Effect: policy.Allow, Host: policy.ExactHost(host), Scheme: gate.HTTPS, Methods: gate.AllMethods}})
	if err != nil {
		t.Fatal(err)
	}
	if d := all.Decide(somebody, connect); d.Verdict != policy.Allow || !d.Permit.Valid() {
		t.Fatalf("the control was denied (%s): the rest of this test would prove nothing", d.Reason)
	}
	for name, d := range map[string]policy.Decision{
		"the zero Decision":          {},
		"a nil Policy":               none.Decide(somebody, connect),
		"the zero Policy":            new(policy.Policy).Decide(somebody, connect),
		"the zero Subject":           all.Decide(nobody, connect),
		"the zero Action":            all.Decide(somebody, nothing),
		"an action of no kind":       all.Decide(somebody, policy.Action{Scheme: gate.HTTPS, Host: host, Port: 443}),
		"a request without a method": all.Decide(somebody, policy.Action{Kind: policy.Request, Scheme: gate.HTTPS, Host: host, Port: 443}),
		"an action without a scheme": all.Decide(somebody, policy.Action{Kind: policy.Connect, Host: host, Port: 443}),
		"an action without a port":   all.Decide(somebody, policy.Action{Kind: policy.Connect, Scheme: gate.HTTPS, Host: host}),
		"an action without a host":   all.Decide(somebody, policy.Action{Kind: policy.Connect, Scheme: gate.HTTPS, Port: 443}),
	} {
		if d.Verdict != policy.Deny || d.Permit.Valid() || d.Mode != policy.NoMode {
			t.Errorf("%s: verdict %s, mode %s, permit valid %t: the zero value must deny", name, d.Verdict, d.Mode, d.Permit.Valid())
		}
	}
}

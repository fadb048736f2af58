package policy

import (
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"postern/internal/core/gate"
)

func drawRules(t *rapid.T) []Rule {
	hosts := []string{"a.test", "b.a.test", "*.a.test", "*.test", "*.b.a.test", "*", "evila.test"}
	patterns := []string{"/", "/a", "/a/", "/a/*", "/a/**", "/**", "/**/b", "/*/b", "/a*", "/r/w/**"}
	var rules []Rule
	for i := range rapid.IntRange(0, 8).Draw(t, "rules") {
		r := Rule{
			Name: strconv.Itoa(i), Effect: rapid.SampledFrom([]Verdict{Deny, Allow, Allow}).Draw(t, "effect"), Host: pattern(t, rapid.SampledFrom(hosts).Draw(t, "host")),
			Scheme: rapid.SampledFrom([]gate.Scheme{gate.HTTPS, gate.HTTPS, gate.HTTPS, gate.HTTP}).Draw(t, "scheme"), Port: rapid.SampledFrom([]gate.Port{0, 443, 80, 8443}).Draw(t, "port"),
			Methods: rapid.SampledFrom([]gate.MethodSet{gate.AllMethods, gate.AllMethods, gate.Methods(gate.GET), gate.Methods(gate.GET, gate.POST)}).Draw(t, "methods"),
		}
		for range rapid.IntRange(0, 2).Draw(t, "paths") {
			r.Paths = append(r.Paths, paths(t, rapid.SampledFrom(patterns).Draw(t, "pattern"))...)
		}
		switch flag := rapid.IntRange(0, 9).Draw(t, "flag"); {
		case flag < 2 && r.Host == pattern(t, "a.test"):
			r.Repo, r.Push = repo(t, "a.test/r/w"), flag == 1
		case flag == 3:
			r.EncodedSlash = true
		case flag == 4:
			r.WebSocket = true
		case flag == 5 && r.Scheme == gate.HTTPS && r.Methods == gate.AllMethods && len(r.Paths) == 0:
			r.TLS = Tunnel
		}
		rules = append(rules, r)
	}
	return rules
}

func drawAction(t *rapid.T) Action {
	targets := []string{
		"/", "/a", "/a/", "/a/b", "/a/x/b", "/b", "/A", "/a%2Fb", "/a;x/b", "/a;x%2Fb", "/x%2F;y", "/%61/b", "/r/w/info/refs?service=git-upload-pack", "/r/w.git/info/refs?service=git-receive-pack",
		"/r/w/git-upload-pack", "/r/w.git/git-receive-pack", "/R/W.git/git-receive-pack", "/r/w/git-receive-pack?x", "/r/other/git-upload-pack", "/r/w", "/r/w.GIT/x", "/r/wx",
	}
	a := request(t, rapid.SampledFrom([]string{"a.test", "b.a.test", "c.b.a.test", "evila.test", "test", "other"}).Draw(t, "host"), rapid.SampledFrom([]string{"GET ", "POST ", "DELETE "}).Draw(t, "method")+rapid.SampledFrom(targets).Draw(t, "target"))
	a.Kind = rapid.SampledFrom([]ActionKind{Connect, Request, Request}).Draw(t, "kind")
	a.Scheme = rapid.SampledFrom([]gate.Scheme{gate.HTTPS, gate.HTTPS, gate.HTTP}).Draw(t, "scheme")
	a.Port = rapid.SampledFrom([]gate.Port{a.Scheme.DefaultPort(), a.Scheme.DefaultPort(), 8443, 80}).Draw(t, "port")
	a.Upgrade = rapid.IntRange(0, 5).Draw(t, "upgrade") == 0
	return a
}

func TestDecideAgreesWithTheNaiveMatcher(t *testing.T) {
	allowed, denied, missed := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		rules := drawRules(t)
		p := compiled(t, rules...)
		for range 20 {
			a := drawAction(t)
			d := p.Decide(subject(), a)
			verdict, rule := naiveDecide(p.Rules(), &a)
			want := ""
			if rule >= 0 {
				want = strconv.Itoa(rule)
			}
			if d.Verdict != verdict || d.Rule != want {
				t.Fatalf("%s %s on %s:%s: %s by rule %q (%s), the naive matcher says %s by %q", a.Method, a.Path, a.Host, a.Port, d.Verdict, d.Rule, d.Reason, verdict, want)
			}
			if d.Permit.Valid() != (verdict == Allow) || (d.Reason == gate.ReasonAllowed) != (verdict == Allow) || (d.Reason == gate.ReasonRuleDenies) != (verdict == Deny && rule >= 0) {
				t.Fatalf("%+v", d)
			}
			switch {
			case verdict == Allow:
				allowed++
				g := d.Permit
				if g.Host() != a.Host || g.Port() != a.Port || g.Scheme() != a.Scheme || g.Kind() != a.Kind || (d.Mode != NoMode) != (a.Kind == Connect) {
					t.Fatalf("the permit is for something else: %+v", d)
				}
			case rule >= 0:
				denied++
			default:
				missed++
			}
		}
	})
	if min(allowed, denied, missed) < 20 {
		t.Errorf("%d allowed, %d denied, %d missed: the draws do not meet the rules", allowed, denied, missed)
	}
}

func manyRules(t failer, n int) []Rule {
	var rules []Rule
	for i := range n {
		name := "h" + strconv.Itoa(i/10) + ".example.test"
		if i%2 == 1 {
			name = "*." + name
		}
		r := allow(t, name)
		r.Name, r.Methods = strconv.Itoa(i), gate.Methods(gate.GET, gate.POST)
		r.Paths = paths(t, "/v1/"+strconv.Itoa(i)+"/**", "/repos/*/pulls/"+strconv.Itoa(i))
		if i%10 == 9 {
			r.Effect = Deny
		}
		rules = append(rules, r)
	}
	return rules
}

func TestDecideAllocatesNothing(t *testing.T) {
	p, s := compiled(t, manyRules(t, 1000)...), subject()
	for name, a := range map[string]Action{
		"connect": connect(t, "h50.example.test"), "exact": request(t, "h50.example.test", "GET /v1/508/x"), "below": request(t, "x.y.h50.example.test", "POST /repos/a/pulls/505"),
		"deny": request(t, "x.h50.example.test", "GET /v1/509/x"), "miss": request(t, "h50.example.test", "GET /v2/x"), "host": request(t, "other.test", "GET /"), "fetch": request(t, "h50.example.test", "POST /a/b.git/git-upload-pack"),
	} {
		if n := testing.AllocsPerRun(100, func() { p.Decide(s, a) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	spread := compiled(b, manyRules(b, 1000)...)
	crowd := manyRules(b, 1000)
	for i := range crowd {
		crowd[i].Host = pattern(b, "h.example.test")
	}
	crowded := compiled(b, crowd...)
	for name, c := range map[string]struct {
		p *Policy
		a Action
	}{
		"exact host":       {spread, request(b, "h50.example.test", "GET /v1/508/x")},
		"below a wildcard": {spread, request(b, "x.y.h50.example.test", "POST /repos/a/pulls/505")},
		"unknown host":     {spread, request(b, "other.test", "GET /v1/5")},
		"connect":          {spread, connect(b, "h50.example.test")},
		"all on one host":  {crowded, request(b, "h.example.test", "GET /v1/998/x")},
	} {
		b.Run(name, func(b *testing.B) {
			s := subject()
			b.ReportAllocs()
			for b.Loop() {
				c.p.Decide(s, c.a)
			}
		})
	}
}

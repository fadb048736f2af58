package policy

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"postern/internal/core/gate"
)

func TestWildcardsMatchOnLabelBoundaries(t *testing.T) {
	for _, c := range []struct {
		pattern, host string
		want          bool
	}{
		{"a.test", "a.test", true}, {"a.test", "evila.test", false}, {"a.test", "a.test.evil.test", false}, {"a.test", "x.a.test", false}, {"a.test", "test", false},
		{"*.a.test", "a.test", false}, {"*.a.test", "x.a.test", true}, {"*.a.test", "x.y.z.a.test", true}, {"*.a.test", "evila.test", false}, {"*.a.test", "x.evila.test", false}, {"*.a.test", "x.a.test.evil.test", false}, {"*.a.test", "a.test.a.test", true},
		{"*", "a.test", true}, {"*", "localhost", true}, {"*.test", "a.test", true}, {"*.test", "test", false},
	} {
		if got := pattern(t, c.pattern).Match(host(t, c.host)); got != c.want {
			t.Errorf("%s matches %s: %v", c.pattern, c.host, got)
		}
		if got := compiled(t, allow(t, c.pattern)).Decide(subject(), connect(t, c.host)).Verdict == Allow; got != c.want {
			t.Errorf("a rule for %s allows %s: %v", c.pattern, c.host, got)
		}
	}
	for _, s := range []string{"", "*.", "*.*", "a.*.test", "a*.test", "*a.test", "**", "*.*.test", "A.test", "*.A.test", "a.test.", "1.2.3.4", "*.1", ".a.test", "*..a", "a.test:443", "**.a.test", "xn--", "*."} {
		if p, err := ParseHostPattern(s); err == nil || p != (HostPattern{}) {
			t.Errorf("%q is a pattern", s)
		}
	}
	for s, any := range map[string]bool{"a.test": false, "*.a.test": false, "*": true} {
		p := pattern(t, s)
		exact, isExact := p.Exact()
		below, isBelow := p.Below()
		if p.String() != s || p.Any() != any || isExact != (s == "a.test") || isBelow != (s == "*.a.test") || isExact && exact.String() != "a.test" || isBelow && below.String() != "a.test" {
			t.Errorf("%s is %v %v %v", s, exact, below, p.Any())
		}
	}
	if ExactHost(host(t, "a.test")) != pattern(t, "a.test") {
		t.Error("two ways to one pattern differ")
	}
}

func TestPathPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern string
		yes, no []string
	}{
		{"/", []string{"/"}, []string{"/a", ""}},
		{"/a", []string{"/a"}, []string{"/", "/a/", "/A", "/ab", "/a/b", "/b/a"}},
		{"/a/", []string{"/a/"}, []string{"/a", "/a/b"}},
		{"/a.b", []string{"/a.b"}, []string{"/axb"}},
		{"/*", []string{"/", "/a"}, []string{"/a/", "/a/b"}},
		{"/v1/*", []string{"/v1/x", "/v1/"}, []string{"/v1", "/v1/x/y", "/v2/x"}},
		{"/v1/**", []string{"/v1", "/v1/", "/v1/x", "/v1/x/y/"}, []string{"/v11", "/v", "/", "/x/v1"}},
		{"/**", []string{"/", "/a", "/a/b/"}, nil},
		{"/**/b", []string{"/b", "/a/b", "/a/b/b"}, []string{"/a", "/a/b/", "/ab"}},
		{"/a/**/b/**/c", []string{"/a/b/c", "/a/x/b/c", "/a/b/b/x/c/c"}, []string{"/a/c", "/a/b", "/b/c", "/a/c/b"}},
		{"/a*c/*.json", []string{"/ac/.json", "/abc/x.json", "/acc/a.json.json"}, []string{"/abd/x.json", "/abc/x.jsonx", "/a/c/x.json"}},
		{"/x*y*z", []string{"/xyz", "/xyzyz", "/xaybz"}, []string{"/xzy", "/xy", "/xyz/"}},
	} {
		p := paths(t, c.pattern)[0]
		for _, s := range c.yes {
			if !p.Match(s) {
				t.Errorf("%s does not match %s", c.pattern, s)
			}
		}
		for _, s := range c.no {
			if p.Match(s) {
				t.Errorf("%s matches %s", c.pattern, s)
			}
		}
		if p.String() != c.pattern {
			t.Errorf("%s prints as %s", c.pattern, p)
		}
	}
	for _, s := range []string{"", "a", "*", "**", "/a?b", "/a#b", "/a%2fb", "/%61", `/a\b`, "//", "/a//b", "/.", "/..", "/a/../b", "/a/.", "/a**", "/**a", "/***", "/a/***/b"} {
		if p, err := ParsePathPattern(s); err == nil || p.String() != "" {
			t.Errorf("%q is a pattern", s)
		}
	}
}

func drawPattern(t *rapid.T) string {
	seg := rapid.SampledFrom([]string{"a", "b", "ab", "*", "a*", "*b", "a*b", "*a*", "**", "**"})
	return "/" + strings.Join(rapid.SliceOfN(seg, 1, 6).Draw(t, "pattern"), "/") + rapid.SampledFrom([]string{"", "", "/"}).Draw(t, "end")
}

func TestPathPatternAgreesWithTheNaiveMatcher(t *testing.T) {
	seg := rapid.SampledFrom([]string{"a", "b", "ab", "aab", "abb", "ba", "c"})
	rapid.Check(t, func(t *rapid.T) {
		text := drawPattern(t)
		p := paths(t, text)[0]
		for range 10 {
			path := "/" + strings.Join(rapid.SliceOfN(seg, 0, 7).Draw(t, "path"), "/") + rapid.SampledFrom([]string{"", "", "/"}).Draw(t, "end")
			if got, want := p.Match(path), naivePath(text, path); got != want {
				t.Fatalf("%s matches %s: %v, the naive matcher says %v", text, path, got, want)
			}
		}
	})
}

func FuzzPathPattern(f *testing.F) {
	for _, s := range [][2]string{{"/a/**/b", "/a/x/b"}, {"/**/**/**/a", "/a/a/a/b"}, {"/*a*a*a*", "/aaaaaaaaab"}, {"/v1/**", "/v1"}, {"/", "/"}, {"/a/", "/a"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, text, path string) {
		p, err := ParsePathPattern(text)
		if err != nil {
			return
		}
		if again, err := ParsePathPattern(p.String()); err != nil || again.String() != text {
			t.Fatalf("%q prints as %q", text, p)
		}
		got := p.Match(path)
		if !strings.HasPrefix(path, "/") {
			if got {
				t.Fatalf("%q matches %q, which is no path", text, path)
			}
			return
		}
		if strings.Count(text, "*") <= 6 && len(path) <= 60 && got != naivePath(text, path) {
			t.Fatalf("%q matches %q: %v", text, path, got)
		}
	})
}

func TestHostilePathsDoNotBlowUp(t *testing.T) {
	for text, path := range map[string]string{
		"/" + strings.Repeat("**/a/", 40) + "b": strings.Repeat("/a", gate.MaxTarget/2),
		"/" + strings.Repeat("a*", 40) + "b":    "/" + strings.Repeat("a", gate.MaxTarget-1),
		"/**/" + strings.Repeat("*a", 40) + "b": strings.Repeat("/aaaaaaa", gate.MaxTarget/8),
	} {
		if paths(t, text)[0].Match(path) {
			t.Errorf("%.20s… matches", text)
		}
	}
}

package ruleset

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"postern/internal/core/policy"
)

func pathGen() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return "/" + strings.Join(rapid.SliceOfN(rapid.StringMatching(`[ab]{0,3}`), 1, 4).Draw(t, "segments"), "/")
	})
}

func patternGen() *rapid.Generator[policy.PathPattern] {
	return rapid.Custom(func(t *rapid.T) policy.PathPattern {
		segs := rapid.SliceOfN(rapid.OneOf(rapid.Just("**"), rapid.StringMatching(`[ab]\*?[ab]?`), rapid.Just("*")), 1, 4).Draw(t, "segments")
		p, err := policy.ParsePathPattern("/" + strings.Join(segs, "/"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	})
}

func TestPathsThatMatchBothPatternsMeet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, q, path := patternGen().Draw(t, "p"), patternGen().Draw(t, "q"), pathGen().Draw(t, "path")
		if p.Match(path) && q.Match(path) && !pathMeets(p, q) {
			t.Fatalf("%s and %s both match %s", p, q, path)
		}
		if pathMeets(p, q) != pathMeets(q, p) {
			t.Fatalf("%s and %s meet one way only", p, q)
		}
	})
}

func TestPathsInsideMatchTheWiderPattern(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, q, path := patternGen().Draw(t, "p"), patternGen().Draw(t, "q"), pathGen().Draw(t, "path")
		if pathInside(p, q) && p.Match(path) && !q.Match(path) {
			t.Fatalf("%s is said to lie inside %s, but only the first matches %s", p, q, path)
		}
	})
}

func TestPatternsThatDoNotMeet(t *testing.T) {
	for _, c := range [][2]string{{"/a", "/b"}, {"/a/*", "/b/*"}, {"/a/*", "/a/b/c"}, {"/*a", "/*b"}, {"/a/**/x", "/a/**/y"}, {"/ab*", "/b*"}} {
		p, err := policy.ParsePathPattern(c[0])
		if err != nil {
			t.Fatal(err)
		}
		q, err := policy.ParsePathPattern(c[1])
		if err != nil {
			t.Fatal(err)
		}
		if pathMeets(p, q) {
			t.Errorf("%s and %s", p, q)
		}
	}
}

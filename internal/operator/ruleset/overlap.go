package ruleset

import (
	"slices"
	"strings"

	"postern/internal/core/policy"
)

// Comparer finds allow rules whose credentials are a matter of chance. The zero Comparer is ready; it serves one profile.
type Comparer struct{ work int }

// maxWork bounds a Comparer in byte comparisons: about a second. A profile of a thousand rules with credentials uses a hundredth.
const maxWork = 1 << 28

// Exhausted reports whether the rules are too many to compare; then Ambiguous has given up and the profile must be refused.
func (c *Comparer) Exhausted() bool { return c.work > maxWork }

// Ambiguous reports whether two allow rules put different credentials on requests that both match, without one being a plain
// exception of the other: an earlier rule that lies wholly inside a later, wider one is meant; everything else is chance.
func (c *Comparer) Ambiguous(earlier, later policy.Rule) bool {
	a, b := earlier, later
	if a.Inject.Mode == policy.InjectNone || b.Inject.Mode == policy.InjectNone || a.Inject.Credential == b.Inject.Credential {
		return false
	}
	if a.Scheme != b.Scheme || a.Port != b.Port || !hostsMeet(a.Host, b.Host) {
		return false
	}
	if a.Repo.IsZero() != b.Repo.IsZero() {
		return false // a git request of a listed repository is decided by its git rule; that is the exception people mean
	}
	if !a.Repo.IsZero() {
		return a.Repo == b.Repo
	}
	if a.Methods&b.Methods == 0 || !c.pathsMeet(a.Paths, b.Paths) {
		return false
	}
	return !inside(a, b) || inside(b, a)
}

func inside(a, b policy.Rule) bool {
	return hostInside(a.Host, b.Host) && a.Methods&^b.Methods == 0 && pathsInside(a.Paths, b.Paths)
}

func hostsMeet(a, b policy.HostPattern) bool { return hostInside(a, b) || hostInside(b, a) }

func hostInside(a, b policy.HostPattern) bool {
	if a == b || b.Any() {
		return true
	}
	if h, ok := a.Exact(); ok {
		return b.Match(h)
	}
	if h, ok := a.Below(); ok {
		below, isBelow := b.Below()
		return isBelow && strings.HasSuffix("."+h.String(), "."+below.String())
	}
	return false
}

func (c *Comparer) pathsMeet(a, b []policy.PathPattern) bool {
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	for _, p := range a {
		for _, q := range b {
			if c.work += len(p.String()) * len(q.String()); c.Exhausted() {
				return false
			}
			if pathMeets(p, q) {
				return true
			}
		}
	}
	return false
}

// pathMeets reports whether some path matches both patterns: a walk over both segment lists at once, each pair seen once.
func pathMeets(p, q policy.PathPattern) bool {
	a, b := strings.Split(p.String()[1:], "/"), strings.Split(q.String()[1:], "/")
	return meet(len(a), len(b), func(i int) bool { return a[i] == "**" }, func(j int) bool { return b[j] == "**" },
		func(i, j int) bool { return segmentMeets(a[i], b[j]) })
}

func segmentMeets(p, q string) bool {
	return meet(len(p), len(q), func(i int) bool { return p[i] == '*' }, func(j int) bool { return q[j] == '*' },
		func(i, j int) bool { return p[i] == q[j] })
}

// meet decides whether two sequences of symbols, some of which stand for any run, have a common word.
// row[j] says whether the rest of the first sequence meets the rest of the second from j on.
func meet(n, m int, runA, runB func(int) bool, same func(i, j int) bool) bool {
	next := make([]bool, m+1)
	next[m] = true
	for j := m - 1; j >= 0 && runB(j); j-- {
		next[j] = true
	}
	for i := n - 1; i >= 0; i-- {
		row := make([]bool, m+1)
		row[m] = runA(i) && next[m]
		for j := m - 1; j >= 0; j-- {
			switch {
			case runA(i), runB(j): // the run ends here, or swallows one symbol of the other
				row[j] = next[j] || row[j+1]
			default:
				row[j] = same(i, j) && next[j+1]
			}
		}
		next = row
	}
	return next[0]
}

// pathsInside reports whether a's paths are surely covered by b's; false when that cannot be told simply.
func pathsInside(a, b []policy.PathPattern) bool {
	if len(b) == 0 {
		return true
	}
	if len(a) == 0 {
		return false
	}
	for _, p := range a {
		if !slices.ContainsFunc(b, func(q policy.PathPattern) bool { return pathInside(p, q) }) {
			return false
		}
	}
	return true
}

func pathInside(p, q policy.PathPattern) bool {
	if p.String() == q.String() {
		return true
	}
	if !strings.Contains(p.String(), "*") {
		return q.Match(p.String())
	}
	prefix, ok := strings.CutSuffix(q.String(), "**")
	return ok && !strings.Contains(prefix, "*") && strings.HasPrefix(p.String(), prefix)
}

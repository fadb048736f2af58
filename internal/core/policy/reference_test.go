package policy

import (
	"strings"

	"postern/internal/core/gate"
)

// The naive matcher says what rules mean, in the plainest code, for decisions to be compared with. It knows no index and no shortcut.

func naiveHost(p, h string) bool {
	if p == "*" {
		return true
	}
	want, have := strings.Split(p, "."), strings.Split(h, ".")
	if want[0] != "*" {
		return p == h
	}
	want = want[1:]
	if len(have) <= len(want) {
		return false
	}
	for i := range want {
		if want[len(want)-1-i] != have[len(have)-1-i] {
			return false
		}
	}
	return true
}

func naivePath(pattern, path string) bool {
	return naiveSegments(strings.Split(pattern, "/")[1:], strings.Split(path, "/")[1:])
}

func naiveSegments(pattern, path []string) bool {
	switch {
	case len(pattern) == 0:
		return len(path) == 0
	case pattern[0] == "**":
		return naiveSegments(pattern[1:], path) || len(path) > 0 && naiveSegments(pattern, path[1:])
	}
	return len(path) > 0 && naiveSegment(pattern[0], path[0]) && naiveSegments(pattern[1:], path[1:])
}

func naiveSegment(pattern, s string) bool {
	switch {
	case pattern == "":
		return s == ""
	case pattern[0] == '*':
		return naiveSegment(pattern[1:], s) || s != "" && naiveSegment(pattern, s[1:])
	}
	return s != "" && s[0] == pattern[0] && naiveSegment(pattern[1:], s[1:])
}

func naivePaths(patterns []PathPattern, path string) bool {
	for _, p := range patterns {
		if naivePath(p.String(), path) {
			return true
		}
	}
	return len(patterns) == 0
}

// readings are the paths that a server might see: with encoded slashes as slashes, and without parameters.
func readings(p gate.Path) []string {
	list := []string{p.Decoded()}
	if p.EncodedSlash() {
		list = append(list, strings.ReplaceAll(p.Decoded(), "%2F", "/"))
	}
	for _, s := range list {
		segs := strings.Split(s, "/")
		for i := range segs {
			segs[i] = strings.Split(segs[i], ";")[0]
		}
		list = append(list, strings.Join(segs, "/"))
	}
	return list
}

func naiveRepo(r *Rule, a *Action) bool { return a.Git.Op != 0 && a.Git.Repo == r.Repo }

func naiveDenies(r *Rule, a *Action) bool {
	switch {
	case !naiveHost(r.Host.String(), a.Host.String()) || r.Port != a.Port || r.Scheme != a.Scheme:
		return false
	case a.Kind == Connect:
		return len(r.Paths) == 0 && r.Methods == gate.AllMethods && r.Repo.IsZero()
	case !r.Repo.IsZero():
		path, repo := strings.ToLower(a.Path.Decoded()), "/"+r.Repo.Path()
		for _, base := range []string{repo, repo + ".git"} {
			for _, next := range []string{"/", ";", "%"} {
				if path == base || strings.HasPrefix(path, base+next) {
					return true
				}
			}
		}
		return naiveRepo(r, a)
	case !r.Methods.Has(a.Method):
		return false
	}
	for _, path := range readings(a.Path) {
		if naivePaths(r.Paths, path) {
			return true
		}
	}
	return false
}

func naiveAllows(r *Rule, a *Action) bool {
	switch {
	case !naiveHost(r.Host.String(), a.Host.String()) || r.Port != a.Port || r.Scheme != a.Scheme:
		return false
	case a.Kind == Connect:
		return true
	case r.TLS == Tunnel:
		return false
	case !r.Repo.IsZero():
		return naiveRepo(r, a) && !a.Upgrade && (r.Push || !a.Git.Op.Writes())
	}
	return r.Methods.Has(a.Method) && naivePaths(r.Paths, a.Path.Decoded()) && (r.EncodedSlash || !a.Path.EncodedSlash()) && (r.WebSocket || !a.Upgrade)
}

// naiveDecide is the index of the rule that decides, -1 when none does.
func naiveDecide(rules []Rule, a *Action) (Verdict, int) {
	for i := range rules {
		if rules[i].Effect == Deny && naiveDenies(&rules[i], a) {
			return Deny, i
		}
	}
	for i := range rules {
		if rules[i].Effect == Allow && naiveAllows(&rules[i], a) {
			return Allow, i
		}
	}
	return Deny, -1
}

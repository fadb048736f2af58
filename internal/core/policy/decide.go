package policy

import (
	"strings"

	"postern/internal/core/gate"
)

// Decide answers one action. It allocates nothing unless a deny rule meets a path with an encoded slash or parameters.
func (p *Policy) Decide(s Subject, a Action) Decision {
	if p == nil || s.Session.IsZero() || a.Host.IsZero() || a.Port == 0 || a.Scheme == gate.NoScheme {
		return Decision{Reason: gate.ReasonHostNotListed}
	}
	if a.Kind != Connect && !(a.Kind == Request && a.Method != gate.NoMethod && !a.Path.IsZero()) {
		return Decision{Reason: gate.ReasonMalformedRequest}
	}
	f := finding{allow: -1, deny: -1, miss: missHost}
	f.scan(p, p.exact[a.Host], &a)
	for h := a.Host.Parent(); !h.IsZero(); h = h.Parent() {
		f.scan(p, p.wildcard[h], &a)
	}
	f.scan(p, p.any, &a)

	if f.deny >= 0 {
		return Decision{Reason: gate.ReasonRuleDenies, Rule: p.rules[f.deny].Name}
	}
	if f.allow < 0 {
		return Decision{Reason: f.miss.reason(&a)}
	}
	r := &p.rules[f.allow]
	d := Decision{Verdict: Allow, Reason: gate.ReasonAllowed, Rule: r.Name}
	if a.Kind == Connect {
		d.Mode = r.TLS
	}
	d.Permit.g = grant{rule: r, session: s.Session, kind: a.Kind, scheme: a.Scheme, host: a.Host, port: a.Port, git: a.Git.Op}
	return d
}

// finding is the lowest matching rule of each effect, and how near the best non-match came.
type finding struct {
	allow, deny int32
	miss        miss
}

// scan walks one index list, which is in rule order.
func (f *finding) scan(p *Policy, list []int32, a *Action) {
	for _, i := range list {
		r := &p.rules[i]
		if r.Effect == Deny {
			if (f.deny < 0 || i < f.deny) && denies(r, a) {
				f.deny = i
			}
			continue
		}
		if f.allow >= 0 && i > f.allow {
			continue
		}
		if m := allows(r, a); m == hit {
			f.allow = i
		} else if m > f.miss {
			f.miss = m
		}
	}
}

// miss says how far an action got into a rule before it failed; the furthest becomes the reason.
type miss uint8

const (
	missHost miss = iota
	missPort
	missScheme
	missPath
	missMethod
	missSlash
	missRepo
	missPush
	missUpgrade
	hit
)

func (m miss) reason(a *Action) gate.Reason {
	switch m {
	case missPort:
		return gate.ReasonPortNotListed
	case missScheme:
		return gate.ReasonSchemeNotListed
	case missPath:
		if a.Git.Op != 0 {
			return gate.ReasonRepoNotListed
		}
		return gate.ReasonPathNotListed
	case missMethod:
		return gate.ReasonMethodNotListed
	case missSlash:
		return gate.ReasonEncodedSlash
	case missRepo:
		return gate.ReasonRepoNotListed
	case missPush:
		return gate.ReasonPushNotListed
	case missUpgrade:
		return gate.ReasonUpgradeNotListed
	}
	return gate.ReasonHostNotListed
}

func allows(r *Rule, a *Action) miss {
	if r.Scheme != a.Scheme {
		return missScheme
	}
	if r.Port != a.Port {
		return missPort
	}
	if a.Kind == Connect {
		return hit
	}
	if r.TLS != Intercept {
		return missPath // a tunnel never allows a request that was decrypted
	}
	if !r.Repo.IsZero() {
		return allowsGit(r, a)
	}
	if !matchPaths(r.Paths, a.Path.Decoded()) {
		return missPath
	}
	if !r.Methods.Has(a.Method) {
		return missMethod
	}
	if a.Path.EncodedSlash() && !r.EncodedSlash {
		return missSlash
	}
	if a.Upgrade && !r.WebSocket {
		return missUpgrade
	}
	return hit
}

func allowsGit(r *Rule, a *Action) miss {
	switch {
	case a.Git.Op == 0:
		return missPath
	case a.Git.Repo != r.Repo:
		return missRepo
	case a.Git.Op.Writes() && !r.Push:
		return missPush
	case a.Upgrade:
		return missUpgrade
	}
	return hit
}

// denies matches wider than allows. A deny without paths also refuses the connection itself. A deny with paths also refuses what an encoded
// slash or path parameters (";…", which many servers drop) might mean to the server. A deny of a repository refuses every request below its
// path: what git would not send, a forge may still serve.
func denies(r *Rule, a *Action) bool {
	if r.Scheme != a.Scheme || r.Port != a.Port {
		return false
	}
	if a.Kind == Connect {
		return len(r.Paths) == 0 && r.Methods == gate.AllMethods && r.Repo.IsZero()
	}
	if !r.Repo.IsZero() {
		return a.Git.Op != 0 && a.Git.Repo == r.Repo || belowRepo(a.Path.Decoded(), r.Repo.Path())
	}
	if !r.Methods.Has(a.Method) {
		return false
	}
	path := a.Path.Decoded()
	if matchPaths(r.Paths, path) {
		return true
	}
	if a.Path.EncodedSlash() {
		path = slashed(path)
		if matchPaths(r.Paths, path) {
			return true
		}
	}
	if strings.IndexByte(path, ';') < 0 {
		return false
	}
	return matchPaths(r.Paths, withoutParameters(a.Path.Decoded())) || matchPaths(r.Paths, withoutParameters(path))
}

// belowRepo reports whether path is a repository's, in any case and with or without ".git", or one below it.
func belowRepo(path, repo string) bool {
	if len(path) <= len(repo) || !strings.EqualFold(path[1:1+len(repo)], repo) {
		return false
	}
	rest := path[1+len(repo):]
	if len(rest) >= 4 && strings.EqualFold(rest[:4], ".git") {
		rest = rest[4:]
	}
	return rest == "" || rest[0] == '/' || rest[0] == ';' || rest[0] == '%'
}

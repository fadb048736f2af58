package config

import (
	"strconv"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/operator/preset"
	"postern/internal/operator/strictyaml"
)

// Suggest is what a person could write to allow a refused action: a section of a profile and a line for it, or "", "" when no line
// helps (the request is malformed, a deny rule stands against it, or a limit was reached). It suggests no credential: that is the
// person's to add. Where an embedded preset allows the request, that is suggested before a line of its own. The host, path and repository were parsed, so the line holds nothing that YAML or a terminal could misread.
func Suggest(a policy.Action, d policy.Decision) (section, line string) {
	switch d.Reason {
	case gate.ReasonRepoNotListed:
		if a.Git.Op == 0 {
			return "", ""
		}
		return "git", "- {repo: " + a.Git.Repo.String() + pushKey(a) + "}"
	case gate.ReasonPushNotListed:
		return "git", "- {repo: " + a.Git.Repo.String() + ", push: true}"
	case gate.ReasonHostNotListed, gate.ReasonPortNotListed, gate.ReasonSchemeNotListed, gate.ReasonPathNotListed, gate.ReasonMethodNotListed,
		gate.ReasonEncodedSlash, gate.ReasonUpgradeNotListed:
	default:
		return "", ""
	}
	if a.Host.IsZero() {
		return "", ""
	}
	if a.Git.Op != 0 {
		return "git", "- {repo: " + a.Git.Repo.String() + pushKey(a) + "}"
	}
	if name := presetFor(a); name != "" && d.Reason == gate.ReasonHostNotListed {
		return "use", "- " + name
	}
	var b strings.Builder
	b.WriteString("- {host: " + a.Host.String())
	if a.Scheme == gate.HTTP {
		b.WriteString(", scheme: http")
	}
	if a.Port != 0 && a.Port != a.Scheme.DefaultPort() {
		b.WriteString(", port: " + a.Port.String())
	}
	if a.Kind == policy.Request {
		b.WriteString(", methods: [" + a.Method.String() + "]")
		if p, ok := quotedPattern(a.Path); ok {
			b.WriteString(", paths: [" + p + "]")
		}
		if a.Path.EncodedSlash() {
			b.WriteString(", encoded_slash: true")
		}
		if a.Upgrade {
			b.WriteString(", websocket: true")
		}
	}
	b.WriteString("}")
	return "allow", b.String()
}

// presetFor is the first embedded preset that allows a request, "" when none does.
func presetFor(a policy.Action) string {
	if a.Kind != policy.Request {
		return ""
	}
	for _, name := range preset.Names() {
		ps, err := preset.Load(name)
		if err != nil {
			continue
		}
		var rules []policy.Rule
		for _, r := range ps.Allow {
			rules = append(rules, r.Rule)
		}
		p, err := policy.Compile(rules)
		if err == nil && p.Decide(policy.Subject{Session: gate.NewSessionID([10]byte{1})}, a).Verdict == policy.Allow {
			return name
		}
	}
	return ""
}

func pushKey(a policy.Action) string {
	if a.Git.Op.Writes() {
		return ", push: true"
	}
	return ""
}

// quotedPattern writes a path as a pattern that matches it and little else; false when no pattern can spell it.
func quotedPattern(p gate.Path) (string, bool) {
	text := strings.ReplaceAll(p.Decoded(), "%2F", "*")
	if len(text) > 512 || strings.Contains(text, "**") || strings.ContainsFunc(text, strictyaml.Unshown) || strictyaml.LooksSecret(text) {
		return "", false
	}
	if _, err := policy.ParsePathPattern(text); err != nil {
		return "", false
	}
	return strconv.Quote(text), true
}

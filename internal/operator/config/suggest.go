package config

import (
	"strconv"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/operator/strictyaml"
)

// Suggest is what a person could write to allow a refused action: a section of a profile and a line for it, or "", "" when no line
// helps (the request is malformed, a deny rule stands against it, or a limit was reached). It suggests no credential: that is the
// person's to add. The host, path and repository were parsed, so the line holds nothing that YAML or a terminal could misread.
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

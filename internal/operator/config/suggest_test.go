package config_test

import (
	"strings"
	"testing"

	"postern/internal/core/gate"
	"postern/internal/core/git"
	"postern/internal/core/policy"
	"postern/internal/operator/config"
)

// Each suggestion, written into the profile, allows what was refused.
func TestTheSuggestedLineAllowsTheRequest(t *testing.T) {
	isolate(t)
	const base = "version: 1\nprofiles:\n  default:\n    mounts: []\n"
	subject := policy.Subject{Session: gate.NewSessionID([10]byte{1})}
	for _, r := range []struct {
		method, scheme, authority, path string
		upgrade                         bool
	}{
		{"GET", "https", "a.example.com", "/", false}, {"POST", "https", "a.example.com:8443", "/v1/x/y?q=1", false}, {"GET", "http", "a.example.com", "/x", false},
		{"GET", "https", "a.example.com", "/@scope%2Fname", false}, {"GET", "https", "a.example.com", "/a*b/it's%20\"quoted\"", false}, {"GET", "https", "a.example.com", "/socket", true},
		{"GET", "https", "github.com", "/acme/widgets/info/refs?service=git-upload-pack", false}, {"POST", "https", "github.com", "/acme/widgets.git/git-receive-pack", false},
		{"GET", "https", "pypi.org", "/simple/x/", false}, {"GET", "https", "a.example.com", "/%C3%A9t%C3%A9", false}, {"GET", "https", "a.example.com", "/100%25", false},
	} {
		a := policy.Action{Kind: policy.Request, Scheme: gate.HTTPS, Upgrade: r.upgrade}
		if r.scheme == "http" {
			a.Scheme = gate.HTTP
		}
		to, err := gate.ParseAuthority(r.authority, a.Scheme.DefaultPort())
		if err != nil {
			t.Fatal(err)
		}
		a.Host, a.Port = to.Host, to.Port
		if a.Method, err = gate.ParseMethod(r.method); err != nil {
			t.Fatal(err)
		}
		path := strings.ReplaceAll(r.path, `"`, "%22")
		if a.Path, err = gate.ParsePath(path); err != nil {
			t.Fatal(err)
		}
		a.Git = git.Classify(a.Host, a.Method, a.Path)
		before, err := config.Parse("/x/postern.yaml", []byte(base))
		if err != nil {
			t.Fatal(err)
		}
		c, err := before.Profile("default")
		if err != nil {
			t.Fatal(err)
		}
		d := c.Policy.Decide(subject, a)
		section, line := config.Suggest(a, d)
		if d.Verdict != policy.Deny || line == "" {
			t.Errorf("%s %s: %s, no line", r.method, r.path, d.Verdict)
			continue
		}
		after, err := config.Parse("/x/postern.yaml", []byte(base+"    "+section+":\n      "+line+"\n"))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if c, err = after.Profile("default"); err != nil {
			t.Fatal(err)
		}
		if d := c.Policy.Decide(subject, a); d.Verdict != policy.Allow {
			t.Errorf("%s does not allow %s %s: %s", line, r.method, r.path, d.Reason)
		}
	}
}

func TestNothingIsSuggestedAgainstADenyRule(t *testing.T) {
	for _, reason := range []gate.Reason{gate.ReasonRuleDenies, gate.ReasonMalformedPath, gate.ReasonLimitRequests, gate.ReasonForeignCredential} {
		if _, line := config.Suggest(policy.Action{}, policy.Decision{Reason: reason}); line != "" {
			t.Errorf("%s: %s", reason, line)
		}
	}
}

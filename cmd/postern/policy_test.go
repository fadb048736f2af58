package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"postern/internal/operator/config"
)

// call runs one command with text as what a person types, and gives what it printed and its exit status.
func call(t *testing.T, c *cobra.Command, typed string, args ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	root := &cobra.Command{Use: "postern", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(c)
	root.SetArgs(append([]string{c.Name()}, args...))
	root.SetIn(strings.NewReader(typed))
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.Execute()
	var exit *exitError
	switch {
	case err == nil:
		return out.String(), 0
	case errors.As(err, &exit):
		if exit.err != nil {
			out.WriteString(exit.err.Error())
		}
		return out.String(), exit.code
	}
	return out.String() + err.Error(), 1
}

// workingTree is a fresh directory with a home of its own; PATH holds the programs named.
func workingTree(t *testing.T, programs ...string) (dir, home string) {
	t.Helper()
	dir, home = t.TempDir(), t.TempDir()
	bin := t.TempDir()
	for _, p := range programs {
		put(t, filepath.Join(bin, p), "#!/bin/sh\nexit 97\n", 0o700)
	}
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("PATH", bin)
	t.Chdir(dir)
	return dir, home
}

func put(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func contains(t *testing.T, what, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%s: %q is missing in\n%s", what, w, got)
		}
	}
}

const examplePolicy = `version: 1
credentials:
  stripe: {kind: api-key, source: {command: [pass, "stripe\u0041"]}}
profiles:
  default:
    use: [npm]
    git: [{repo: github.com/acme/widgets}]
    allow:
      - {host: api.stripe.com, methods: [GET], inject: {credential: stripe, header: Authorization, format: "Bearer {}"}}
      - {host: raw.example.com, tls: tunnel}
    deny:
      - {host: api.stripe.com, paths: ["/v1/payouts/**"]}
`

func TestInitAsksBeforeItUsesACredential(t *testing.T) {
	for typed, want := range map[string][2]string{
		"n\n":    {"use: [npm]", "credential: github"},
		"y\nn\n": {"credential: github}", "push: true"},
		"y\ny\n": {"credential: github, push: true}", "# credentials"},
	} {
		dir, home := workingTree(t, "npm")
		put(t, filepath.Join(dir, ".git/config"), "[remote \"origin\"]\n\turl = git@github.com:acme/widgets.git\n", 0o600)
		put(t, filepath.Join(home, ".config/postern/github"), "not a real one", 0o600)
		out, code := call(t, newInitCmd(), typed)
		if code != 0 {
			t.Fatalf("%q: %d %s", typed, code, out)
		}
		text, err := os.ReadFile(filepath.Join(dir, config.Name))
		if err != nil {
			t.Fatal(err)
		}
		contains(t, typed, string(text), want[0])
		if strings.Contains(string(text), want[1]) {
			t.Errorf("%q: %s", typed, text)
		}
		if _, err := config.Open("", dir); err != nil {
			t.Errorf("%q: what init wrote is not used: %v", typed, err)
		}
		if st, err := os.Stat(filepath.Join(dir, config.Name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", st, err)
		}
		contains(t, typed, out, "Let the gateway use the file ~/.config/postern/github", "next: ")
	}
}

func TestInitWithNobodyToAskUsesNoCredential(t *testing.T) {
	dir, home := workingTree(t, "claude")
	put(t, filepath.Join(home, ".config/postern/claude"), "not a real one", 0o600)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var out bytes.Buffer
	c := newInitCmd()
	c.SetIn(null)
	c.SetOut(&out)
	c.SetArgs([]string{})
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, config.Name))
	if err != nil {
		t.Fatal(err)
	}
	contains(t, "output", out.String(), "credential claude: not used; nobody to ask")
	contains(t, "policy", string(text), "# claude needs a credential named claude")
}

func TestInitNeverOverwrites(t *testing.T) {
	dir, _ := workingTree(t)
	put(t, filepath.Join(dir, config.Name), "mine", 0o600)
	out, code := call(t, newInitCmd(), "", "--yes")
	text, err := os.ReadFile(filepath.Join(dir, config.Name))
	if err != nil || code != 1 || string(text) != "mine" {
		t.Errorf("%d %s %q %v", code, out, text, err)
	}
	contains(t, "output", out, "exists")
}

func TestCheckPrintsRulesInOrderWithRelaxations(t *testing.T) {
	dir, _ := workingTree(t)
	put(t, filepath.Join(dir, config.Name), examplePolicy, 0o600)
	out, code := call(t, newPolicyCmd(), "", "check")
	if code != 0 {
		t.Fatal(out)
	}
	contains(t, "output", out, "not trusted yet", "postern.yaml:7", "git fetch github.com/acme/widgets", "GET https://api.stripe.com  (credential stripe on every request, in Authorization: Bearer …)",
		"preset npm:4", "deny   postern.yaml:12", "relaxation: postern.yaml:10: tls: tunnel")
	if strings.Index(out, "postern.yaml:9") > strings.Index(out, "preset npm:4") {
		t.Error("out of order")
	}
}

func TestCheckPrintsEveryError(t *testing.T) {
	dir, _ := workingTree(t)
	put(t, filepath.Join(dir, "p.yaml"), "version: 1\nprofile: {}\naudits: {}\n", 0o600)
	out, code := call(t, newPolicyCmd(), "", "check", "p.yaml")
	if code != 1 {
		t.Error(code)
	}
	contains(t, "output", out, "p.yaml:2:1: unknown key \"profile\"", "did you mean \"profiles\"?", "p.yaml:3:1: unknown key \"audits\"")
}

func TestExplainSaysVerdictRuleCredentialAndRemedy(t *testing.T) {
	dir, _ := workingTree(t)
	put(t, filepath.Join(dir, config.Name), examplePolicy, 0o600)
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"https://api.stripe.com/v1/charges"}, []string{"allow  GET", "rule: postern.yaml:9", "credential stripe"}},
		{[]string{"-X", "POST", "https://api.stripe.com/v1/charges"}, []string{"deny  POST", "method.not_listed", `- {host: api.stripe.com, methods: [POST], paths: ["/v1/charges"]}`}},
		{[]string{"https://api.stripe.com/v1/payouts/1"}, []string{"deny", "rule.denies", "rule: postern.yaml:12", "remedy: narrow or remove"}},
		{[]string{"https://raw.example.com/x"}, []string{"allow", "passed through unread"}},
		{[]string{"https://raw.example.com:8443/x"}, []string{"deny", "port.not_listed", "port: 8443"}},
		{[]string{"https://pypi.org/simple/x/"}, []string{"deny", "use:\n      - pypi"}},
		{[]string{"https://github.com/acme/widgets/info/refs?service=git-receive-pack"}, []string{"push.not_listed", "push: true"}},
		{[]string{"https://192.0.2.1/"}, []string{"host.is_address"}},
		{[]string{"https://api.stripe.com/a/../b"}, []string{"path.malformed"}},
		{[]string{"ftp://api.stripe.com/"}, []string{"not an https:// or http:// URL"}},
		{[]string{"https://a.example.com/\x1b[2J"}, []string{`\x1b`}},
	} {
		out, _ := call(t, newPolicyCmd(), "", append([]string{"explain"}, c.args...)...)
		contains(t, strings.Join(c.args, " "), out, c.want...)
		if strings.Contains(out, "\x1b") {
			t.Errorf("%v: an escape reaches the terminal", c.args)
		}
	}
}

func TestPolicyTestComparesATable(t *testing.T) {
	dir, _ := workingTree(t)
	put(t, filepath.Join(dir, config.Name), examplePolicy, 0o600)
	put(t, filepath.Join(dir, "good.yaml"), `- {url: "https://api.stripe.com/v1/charges", want: allow, rule: "postern.yaml:9", credential: stripe}
- {method: POST, url: "https://api.stripe.com/v1/charges", want: deny}
- {url: "https://raw.example.com/", want: allow, credential: none}
`, 0o600)
	if out, code := call(t, newPolicyCmd(), "", "test", "good.yaml"); code != 0 || !strings.Contains(out, "3 of 3 as wanted") {
		t.Errorf("%d %s", code, out)
	}
	for name, c := range map[string]struct{ line, want string }{
		"verdict":    {`- {url: "https://api.stripe.com/x", want: deny}`, "wanted deny"},
		"rule":       {`- {url: "https://api.stripe.com/x", want: allow, rule: "postern.yaml:1"}`, `wanted "postern.yaml:1"`},
		"credential": {`- {url: "https://api.stripe.com/x", want: allow, credential: none}`, "wanted none"},
		"want":       {`- {url: "https://api.stripe.com/x", want: maybe}`, "want is allow or deny"},
		"key":        {`- {url: "https://api.stripe.com/x", wants: allow}`, `unknown key "wants"`},
		"empty":      {`[]`, "0 of 0"},
	} {
		put(t, filepath.Join(dir, "bad.yaml"), c.line+"\n", 0o600)
		out, code := call(t, newPolicyCmd(), "", "test", "bad.yaml")
		if code != 1 {
			t.Errorf("%s: exit %d", name, code)
		}
		contains(t, name, out, c.want)
	}
}

func TestTrustShowsWhatItGrantsAndAsks(t *testing.T) {
	dir, _ := workingTree(t)
	put(t, filepath.Join(dir, config.Name), examplePolicy, 0o600)
	out, code := call(t, newPolicyCmd(), "n\n", "trust")
	if code != 1 {
		t.Errorf("exit %d", code)
	}
	contains(t, "output", out, `the output of the command ["pass" "stripeA"]`, "mount the working directory", "Trust this file? [y/N]", "sha256 ")
	if _, err := config.Open("", dir); !errors.Is(err, config.ErrNotTrusted) {
		t.Errorf("after no: %v", err)
	}
	if out, code := call(t, newPolicyCmd(), "yes\n", "trust"); code != 0 {
		t.Fatal(out)
	}
	if _, err := config.Open("", dir); err != nil {
		t.Errorf("after yes: %v", err)
	}
}

func TestTrustWithNobodyToAskDoesNothing(t *testing.T) {
	dir, _ := workingTree(t)
	put(t, filepath.Join(dir, config.Name), examplePolicy, 0o600)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	c := newPolicyCmd()
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetIn(null)
	c.SetOut(&bytes.Buffer{})
	c.SetArgs([]string{"trust"})
	if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "nobody to ask") {
		t.Errorf("%v", err)
	}
	if _, err := config.Open("", dir); !errors.Is(err, config.ErrNotTrusted) {
		t.Errorf("%v", err)
	}
}

func TestPresetsAreListedAndShown(t *testing.T) {
	out, code := call(t, newPresetCmd(), "", "list")
	if code != 0 {
		t.Fatal(out)
	}
	contains(t, "list", out, "claude", "credential claude", "github", "(optional)", "npm")
	out, _ = call(t, newPresetCmd(), "", "show", "claude")
	contains(t, "show", out, "name: claude", "swap:")
	out, code = call(t, newPresetCmd(), "", "show", "clade")
	if code != 1 {
		t.Errorf("exit %d", code)
	}
	contains(t, "unknown", out, `did you mean "claude"?`)
}

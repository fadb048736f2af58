package preset_test

import (
	"encoding/json"
	"strings"
	"testing"

	"postern/internal/core/gate"
	"postern/internal/core/git"
	"postern/internal/core/policy"
	"postern/internal/operator/preset"
)

// compiled is the policy of one preset alone.
func compiled(t *testing.T, name string) *policy.Policy {
	t.Helper()
	p, err := preset.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	var rules []policy.Rule
	for _, a := range p.Allow {
		rules = append(rules, a.Rule)
	}
	out, err := policy.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// ask decides "METHOD URL", with " upgrade" behind it for a WebSocket.
func ask(t *testing.T, p *policy.Policy, request string) policy.Decision {
	t.Helper()
	method, url, _ := strings.Cut(request, " ")
	url, upgrade := strings.CutSuffix(url, " upgrade")
	scheme, rest, ok := strings.Cut(url, "://")
	host, path, _ := strings.Cut(rest, "/")
	a := policy.Action{Kind: policy.Request, Scheme: gate.HTTPS, Upgrade: upgrade}
	if scheme == "http" {
		a.Scheme = gate.HTTP
	}
	to, err := gate.ParseAuthority(host, a.Scheme.DefaultPort())
	if err != nil || !ok {
		t.Fatalf("%s: %v", request, err)
	}
	a.Host, a.Port = to.Host, to.Port
	if a.Method, err = gate.ParseMethod(method); err != nil {
		t.Fatalf("%s: %v", request, err)
	}
	if a.Path, err = gate.ParsePath("/" + path); err != nil {
		t.Fatalf("%s: %v", request, err)
	}
	a.Git = git.Classify(a.Host, a.Method, a.Path)
	return p.Decide(policy.Subject{Session: gate.NewSessionID([10]byte{1})}, a)
}

func TestPresetsAllowWhatTheirClientsNeedAndNothingElse(t *testing.T) {
	const npmHost, goHost, debHost = "https://r.npmjs.org", "https://p.golang.org", "d.debian.org"
	table := []struct {
		preset      string
		credential  string // on every allowed request
		allow, deny []string
	}{
		{
			"claude", "claude",
			[]string{"POST https://api.anthropic.com/v1/messages", "POST https://api.anthropic.com/v1/messages?beta=true", "POST https://api.anthropic.com/v1/messages/count_tokens"},
			[]string{
				"POST https://api.anthropic.com/v1/files", "GET https://api.anthropic.com/v1/files", "GET https://api.anthropic.com/v1/files/x/content",
				"POST https://api.anthropic.com/v1/messages/batches", "GET https://api.anthropic.com/v1/messages/batches", "GET https://api.anthropic.com/v1/messages",
				"GET https://api.anthropic.com/v1/organizations/users", "POST https://api.anthropic.com/v1/organizations/api_keys/x", "POST https://api.anthropic.com/v1/skills",
				"POST https://api.anthropic.com/api/event_logging/batch", "POST https://api.anthropic.com/api/eval/sdk", "POST https://api.anthropic.com/v1/messages/",
				"POST https://api.anthropic.com:8443/v1/messages", "POST http://api.anthropic.com/v1/messages", "POST https://a.api.anthropic.com/v1/messages",
				"POST https://api.anthropic.com/v1/complete", "POST https://platform.claude.com/v1/oauth/token", "POST https://statsig.anthropic.com/v1/rgstr",
				"POST https://api.anthropic.com/V1/messages", "GET https://api.anthropic.com/v1/messages upgrade", "POST https://api.anthropic.com/v1/files%2F..x",
			},
		},
		{
			"codex", "openai",
			[]string{"POST https://api.openai.com/v1/responses", "POST https://api.openai.com/v1/chat/completions", "GET https://api.openai.com/v1/models", "POST https://api.openai.com/v1/responses/compact"},
			[]string{
				"GET https://api.openai.com/v1/responses upgrade", "GET https://api.openai.com/v1/responses/r1", "POST https://api.openai.com/v1/files", "POST https://api.openai.com/v1/batches",
				"POST https://api.openai.com/v1/uploads", "POST https://api.openai.com/v1/vector_stores", "POST https://api.openai.com/v1/fine_tuning/jobs", "POST https://api.openai.com/v1/evals",
				"POST https://api.openai.com/v1/containers", "GET https://api.openai.com/v1/organization/users", "POST https://api.openai.com/v1/organization/admin_api_keys",
				"POST https://chatgpt.com/backend-api/codex/responses", "POST https://auth.openai.com/oauth/token", "DELETE https://api.openai.com/v1/models/x",
			},
		},
		{
			"openai", "openai",
			[]string{"POST https://api.openai.com/v1/responses", "POST https://api.openai.com/v1/embeddings", "GET https://api.openai.com/v1/models/gpt-5"},
			[]string{
				"POST https://api.openai.com/v1/files", "POST https://api.openai.com/v1/batches", "POST https://api.openai.com/v1/assistants", "POST https://api.openai.com/v1/threads",
				"DELETE https://api.openai.com/v1/models/x", "GET https://api.openai.com/v1/organization/projects", "POST https://api.openai.com/v1/audio/transcriptions",
			},
		},
		{
			"gemini", "gemini",
			[]string{
				"POST https://generativelanguage.googleapis.com/v1beta/models/gemini-3-pro:generateContent", "POST https://generativelanguage.googleapis.com/v1beta/models/g:streamGenerateContent?alt=sse",
				"POST https://generativelanguage.googleapis.com/v1beta/models/g:countTokens", "GET https://generativelanguage.googleapis.com/v1beta/models",
			},
			[]string{
				"POST https://generativelanguage.googleapis.com/v1beta/models/g:batchGenerateContent", "POST https://generativelanguage.googleapis.com/v1beta/models/g:predictLongRunning",
				"POST https://generativelanguage.googleapis.com/upload/v1beta/files", "POST https://generativelanguage.googleapis.com/v1beta/files", "POST https://generativelanguage.googleapis.com/v1beta/cachedContents",
				"POST https://generativelanguage.googleapis.com/v1beta/corpora", "POST https://generativelanguage.googleapis.com/v1beta/tunedModels", "POST https://storage.googleapis.com/x",
				"POST https://generativelanguage.googleapis.com/v1beta/models/a/b:generateContent", "POST https://play.googleapis.com/log", "POST https://cloudcode-pa.googleapis.com/v1internal:generateContent",
			},
		},
		{
			"github", "github",
			[]string{"GET https://api.github.com/repos/acme/widgets", "HEAD https://api.github.com/user"},
			[]string{
				"POST https://api.github.com/graphql", "POST https://api.github.com/repos/acme/widgets/issues", "PUT https://api.github.com/repos/acme/widgets/pulls/1/merge", "POST https://api.github.com/gists",
				"DELETE https://api.github.com/repos/acme/widgets", "PATCH https://api.github.com/user", "POST https://uploads.github.com/repos/a/b/releases/1/assets", "GET https://github.com/acme/widgets",
				"GET https://github.com/acme/widgets/info/refs?service=git-upload-pack", "GET https://raw.githubusercontent.com/a/b/c/d",
			},
		},
		{
			"npm", "",
			[]string{"GET " + npmHost + "/left-pad", "GET " + npmHost + "/@types%2Fnode", "HEAD " + npmHost + "/x/-/x-1.tgz", "POST " + npmHost + "/-/npm/v1/security/advisories/bulk"},
			[]string{"PUT " + npmHost + "/left-pad", "POST " + npmHost + "/-/v1/login", "PUT " + npmHost + "/-/user/org.couchdb.user:me", "POST " + npmHost + "/-/npm/v1/tokens", "DELETE " + npmHost + "/left-pad/-rev/1", "GET https://npmjs.org/", "GET http://r.npmjs.org/left-pad", "GET https://xnpmjs.org/"},
		},
		{"pypi", "", []string{"GET https://pypi.org/simple/requests/", "GET https://f.pythonhosted.org/a.whl"}, []string{"POST https://u.pypi.org/legacy/", "POST https://pypi.org/legacy/", "GET https://t.pypi.org/simple/", "GET http://pypi.org/simple/x/"}},
		{"go", "", []string{"GET " + goHost + "/golang.org/x/net/@v/list", "GET https://s.golang.org/lookup/x@v1"}, []string{"POST " + goHost + "/x", "GET https://golang.org/", "GET https://storage.googleapis.com/go-x"}},
		{"crates", "", []string{"GET https://i.crates.io/se/rd/serde", "GET https://crates.io/api/v1/crates/serde/1.0.0/download"}, []string{"PUT https://crates.io/api/v1/crates/new", "DELETE https://crates.io/api/v1/crates/x/1/yank"}},
		{"debian", "", []string{"GET https://" + debHost + "/debian/dists/x/InRelease", "GET http://" + debHost + "/debian/pool/a.deb", "GET http://" + debHost + "/debian/pool/g/g++_1%3a2.deb"}, []string{"POST https://" + debHost + "/x", "PUT http://" + debHost + "/x", "GET http://debian.org/"}},
		{"ubuntu", "", []string{"GET http://a.ubuntu.com/ubuntu/dists/x/InRelease"}, []string{"POST https://paste.ubuntu.com/", "GET http://ubuntu.com/"}},
	}
	covered := map[string]bool{}
	for _, row := range table {
		covered[row.preset] = true
		p := compiled(t, row.preset)
		for _, r := range row.allow {
			d := ask(t, p, r)
			if d.Verdict != policy.Allow {
				t.Errorf("%s: %s: %s", row.preset, r, d.Reason)
			}
			if got := d.Permit.Injection().Credential.String(); got != row.credential {
				t.Errorf("%s: %s: credential %q", row.preset, r, got)
			}
		}
		for _, r := range row.deny {
			if d := ask(t, p, r); d.Verdict != policy.Deny {
				t.Errorf("%s: %s: allowed by %s", row.preset, r, d.Rule)
			}
		}
	}
	for _, name := range preset.Names() {
		if !covered[name] {
			t.Errorf("%s has no table", name)
		}
	}
}

func TestPresetsNeverAllowAnotherPresetsAttack(t *testing.T) {
	// What carries data out of a sandbox must not be allowed by any preset at all.
	for _, r := range []string{
		"POST https://api.anthropic.com/v1/files", "POST https://api.openai.com/v1/files", "POST https://generativelanguage.googleapis.com/upload/v1beta/files",
		"POST https://api.github.com/gists", "PUT https://r.npmjs.org/x", "POST https://u.pypi.org/legacy/", "POST https://statsig.anthropic.com/v1/rgstr", "POST https://sentry.io/api/1/envelope/",
		"GET https://169.254.169.254.example.com/", "GET https://metadata.google.internal/",
	} {
		for _, name := range preset.Names() {
			if d := ask(t, compiled(t, name), r); d.Verdict == policy.Allow {
				t.Errorf("%s allows %s", name, r)
			}
		}
	}
}

func TestEveryPresetLoadsAndItsFilesExpand(t *testing.T) {
	if len(preset.Names()) < 11 {
		t.Fatalf("only %v", preset.Names())
	}
	for _, name := range preset.Names() {
		p, err := preset.Load(name)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		values := map[gate.CredentialName]string{}
		if p.Credential != nil {
			v, err := p.Credential.Shape.Make(make([]byte, p.Credential.Shape.Random()))
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			values[p.Credential.Name] = v
		}
		for _, f := range p.Files {
			text, err := f.Content.Expand(values, "/src")
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if strings.HasSuffix(f.Path, ".json") && !json.Valid([]byte(text)) {
				t.Errorf("%s: %s is not JSON", name, f.Path)
			}
		}
		for variable, v := range p.Env {
			if _, err := v.Expand(values, "/src"); err != nil {
				t.Errorf("%s: %s: %v", name, variable, err)
			}
		}
	}
}

func TestClaudeFindsItsPlaceholderApproved(t *testing.T) {
	p, err := preset.Load("claude")
	if err != nil {
		t.Fatal(err)
	}
	random := make([]byte, p.Credential.Shape.Random())
	for i := range random {
		random[i] = byte(i * 7)
	}
	key, err := p.Credential.Shape.Make(random)
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Files[0].Content.Expand(map[gate.CredentialName]string{p.Credential.Name: key}, `/src/a "b"`)
	if err != nil {
		t.Fatal(err)
	}
	var settings struct {
		HasCompletedOnboarding bool
		CustomAPIKeyResponses  struct{ Approved []string } `json:"customApiKeyResponses"`
		Projects               map[string]struct{ HasTrustDialogAccepted bool }
	}
	if err := json.Unmarshal([]byte(text), &settings); err != nil {
		t.Fatal(err)
	}
	want := key[len(key)-20:]
	if a := settings.CustomAPIKeyResponses.Approved; !settings.HasCompletedOnboarding || len(a) != 1 || a[0] != want {
		t.Errorf("%s", text)
	}
	if !settings.Projects[`/src/a "b"`].HasTrustDialogAccepted {
		t.Errorf("the working directory is not trusted: %s", text)
	}
	if strings.Contains(text, key) {
		t.Error("the settings hold the whole placeholder")
	}
}

func TestBindRenamesTheCredentialEverywhere(t *testing.T) {
	p, err := preset.Load("claude")
	if err != nil {
		t.Fatal(err)
	}
	mine, err := gate.ParseCredentialName("mine")
	if err != nil {
		t.Fatal(err)
	}
	bound := p.Bind(mine)
	if bound.Credential.Name != mine || bound.Allow[0].Rule.Inject.Credential != mine {
		t.Error("a rule keeps the old name")
	}
	for _, c := range append(bound.Env["ANTHROPIC_API_KEY"].Credentials(), bound.Files[0].Content.Credentials()...) {
		if c != mine {
			t.Errorf("a template keeps %s", c)
		}
	}
	if p.Credential.Name == mine || p.Allow[0].Rule.Inject.Credential == mine {
		t.Error("the original was changed")
	}
}

func TestWithoutItsCredentialAPresetInjectsAndGivesNothing(t *testing.T) {
	p, err := preset.Load("github")
	if err != nil {
		t.Fatal(err)
	}
	bare := p.Without()
	if bare.Allow[0].Rule.Inject.Mode != policy.InjectNone || len(bare.Env["GH_TOKEN"].Credentials()) != 0 {
		t.Error("a credential is left")
	}
	if _, kept := bare.Env["GH_TOKEN"]; kept {
		t.Error("an empty GH_TOKEN would make gh fail")
	}
	if _, kept := bare.Env["GH_NO_UPDATE_NOTIFIER"]; !kept {
		t.Error("a variable without placeholder is gone")
	}
}

func TestMistakesInPresets(t *testing.T) {
	const head = "name: x\nsummary: s\n"
	for name, c := range map[string]struct{ src, want string }{
		"other name":            {"name: y\nsummary: s\n", `x.yaml:1:1: not the file's name`},
		"foreign credential":    {head + "allow: [{host: a.example.com, inject: {credential: c, header: X-Key}}]\n", "x.yaml:3:10: a credential that the preset does not ask for"},
		"swap without shape":    {head + "credential: {name: c}\nallow: [{host: a.example.com, swap: {credential: c, header: X-Key}}]\n", "swap needs a placeholder"},
		"weak shape":            {head + "credential: {name: c, placeholder: \"a{hex:4}\"}\n", "x.yaml:3:36: not the shape of a placeholder"},
		"file leaves home":      {head + "files: [{path: ../x, content: a}]\n", "not a clean path below home"},
		"file is absolute":      {head + "files: [{path: /etc/x, content: a}]\n", "not a clean path below home"},
		"setuid mode":           {head + "files: [{path: x, mode: \"4755\", content: a}]\n", "mode is"},
		"unknown voice":         {head + "voices: {a.example.com: loud}\n", "voice: one of"},
		"any host":              {head + "allow: [{host: \"*\"}]\n", `"*" allows every host`},
		"command":               {head + "command: [x]\n", `unknown key "command"`},
		"upstreams":             {head + "upstreams: {}\n", `unknown key "upstreams"`},
		"template of no preset": {head + "env: {A: \"{placeholder:c}\"}\n", "does not ask for"},
	} {
		_, err := preset.Parse("x", "x.yaml", []byte(c.src))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
	"postern/internal/core/git"
	"postern/internal/core/limit"
	"postern/internal/core/policy"
	"postern/internal/operator/config"
)

const minimal = "version: 1\nprofiles:\n  default:\n    allow:\n      - host: docs.example.com\n"

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// profile compiles text as the policy of a fresh directory and gives its profile "default".
func profile(t testing.TB, text string) *config.Compiled {
	t.Helper()
	isolate(t)
	f, err := config.Parse(filepath.Join(t.TempDir(), config.Name), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Profile("default")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func decide(t testing.TB, c *config.Compiled, method, scheme, authority, path string) policy.Decision {
	t.Helper()
	a := policy.Action{Kind: policy.Request, Scheme: gate.HTTPS}
	if scheme == "http" {
		a.Scheme = gate.HTTP
	}
	to, err := gate.ParseAuthority(authority, a.Scheme.DefaultPort())
	if err != nil {
		t.Fatal(err)
	}
	a.Host, a.Port = to.Host, to.Port
	if a.Method, err = gate.ParseMethod(method); err != nil {
		t.Fatal(err)
	}
	if a.Path, err = gate.ParsePath(path); err != nil {
		t.Fatal(err)
	}
	a.Git = git.Classify(a.Host, a.Method, a.Path)
	return c.Policy.Decide(policy.Subject{Session: gate.NewSessionID([10]byte{1})}, a)
}

func TestEmptyPoliciesDenyEverything(t *testing.T) {
	for _, text := range []string{"version: 1\nprofiles: {default: {}}\n", "version: 1\nprofiles:\n  default: {allow: []}\n"} {
		c := profile(t, text)
		if d := decide(t, c, "GET", "https", "docs.example.com", "/"); d.Verdict != policy.Deny {
			t.Errorf("%q allows", text)
		}
	}
	isolate(t)
	f, err := config.Parse("/x/postern.yaml", []byte("version: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if c, err := f.Profile("default"); err == nil || c != nil {
		t.Error("a profile that nobody wrote")
	}
}

func TestProfileIsFoundByNameOrSuggested(t *testing.T) {
	isolate(t)
	f, err := config.Parse("/x/postern.yaml", []byte("version: 1\nprofiles: {default: {}, review: {}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Profile("reviw")
	var e *config.Error
	if !errors.As(err, &e) || e.Hint != `did you mean "review"?` {
		t.Errorf("%v", err)
	}
	if got := f.Profiles(); !slices.Equal(got, []string{"default", "review"}) {
		t.Errorf("%v", got)
	}
}

func TestDenyCoversEveryEndpointThatIsOpen(t *testing.T) {
	c := profile(t, `version: 1
profiles:
  default:
    allow:
      - {host: "*.example.com"}
      - {host: "*.example.com", port: 8443}
      - {host: "*.example.com", scheme: http}
    deny:
      - {host: bad.example.com}
      - {host: half.example.com, port: 8443}
      - {host: paths.example.com, paths: ["/secret/**"]}
`)
	for _, r := range []struct {
		scheme, authority, path string
		want                    policy.Verdict
	}{
		{"https", "good.example.com", "/", policy.Allow}, {"https", "good.example.com:8443", "/", policy.Allow}, {"http", "good.example.com", "/", policy.Allow},
		{"https", "bad.example.com", "/", policy.Deny}, {"https", "bad.example.com:8443", "/", policy.Deny}, {"http", "bad.example.com", "/", policy.Deny},
		{"https", "half.example.com", "/", policy.Allow}, {"https", "half.example.com:8443", "/", policy.Deny}, {"http", "half.example.com", "/", policy.Allow},
		{"http", "paths.example.com", "/secret/x", policy.Deny}, {"https", "paths.example.com:8443", "/secret", policy.Deny}, {"https", "paths.example.com", "/public", policy.Allow},
	} {
		if d := decide(t, c, "GET", r.scheme, r.authority, r.path); d.Verdict != r.want {
			t.Errorf("%s://%s%s: %s, want %s", r.scheme, r.authority, r.path, d.Verdict, r.want)
		}
	}
}

func TestRulesAreTriedInOrderAndNamedByLine(t *testing.T) {
	c := profile(t, `version: 1
credentials:
  github: {kind: api-key, source: {file: ~/github}}
  special: {kind: api-key, source: {file: ~/special}}
profiles:
  default:
    use: [github]
    git:
      - {repo: github.com/acme/widgets, credential: github, push: true}
      - repo: gitlab.com/acme/tools
        credential: special
    allow:
      - {host: api.github.com, paths: [/special], methods: [GET], inject: {credential: special, header: Authorization, format: "Bearer {}"}}
`)
	for _, r := range []struct{ path, host, rule, credential string }{
		{"/special", "api.github.com", "postern.yaml:13", "special"},
		{"/repos/acme/widgets", "api.github.com", "preset github:9", "github"},
		{"/acme/widgets/info/refs?service=git-receive-pack", "github.com", "postern.yaml:9", "github"},
		{"/acme/widgets.git/info/refs?service=git-upload-pack", "github.com", "postern.yaml:9", "github"},
		{"/acme/tools/info/refs?service=git-upload-pack", "gitlab.com", "postern.yaml:10", "special"},
	} {
		d := decide(t, c, "GET", "https", r.host, r.path)
		if d.Rule != r.rule || d.Permit.Injection().Credential.String() != r.credential {
			t.Errorf("%s%s: rule %s, credential %s", r.host, r.path, d.Rule, d.Permit.Injection().Credential)
		}
	}
	if d := decide(t, c, "GET", "https", "gitlab.com", "/acme/tools/info/refs?service=git-receive-pack"); d.Reason != gate.ReasonPushNotListed {
		t.Errorf("push: %s", d.Reason)
	}
	if got := c.Rules[1].Inject.Slots[0].User; got != "oauth2" {
		t.Errorf("gitlab's user is %q", got)
	}
	if !slices.ContainsFunc(c.H1Only, func(p policy.HostPattern) bool { return p.String() == "gitlab.com" }) {
		t.Error("gitlab.com is offered HTTP/2")
	}
}

func TestEverythingOfAFileReachesTheProfile(t *testing.T) {
	home := isolate(t)
	work := t.TempDir()
	t.Chdir(work)
	f, err := config.Parse(filepath.Join(work, config.Name), []byte(`version: 1
credentials:
  a: {kind: api-key, source: {file: ~/a.json, json: x.y}}
  b: {kind: basic, source: {command: [pass, show, b]}}
  unused: {kind: api-key, source: {file: ~/u}}
profiles:
  default:
    allow:
      - {host: a.example.com, inject: {credential: a, query: key}, max_body: 10MiB}
      - {host: b.example.com, inject: {credential: b, basic: me}}
    limits: {requests: 600/min, handshakes: 50/s, dns: 3600/h, leaves: 5/s, connections: 256, header: 64KiB, body: 1GiB, upload: 2GiB, streams: 99, idle: 1h, progress: 90s, answer: 1h30m, duration: 2d}
    mounts: [{path: ., write: true}, {path: ~/data, target: /data}]
    env: {CI: "1", PATH_LIKE_TOKEN: /run/token}
    sandbox: {memory: 8GiB, processes: 4096, files: 1024, file_size: 1TiB}
upstreams:
  a.example.com: {address: "127.0.0.1:9443", ca: ./root.pem}
  b.example.com:8443: {address: "[::1]:1"}
proxy: {url: "http://proxy.corp.example:3128"}
audit: {dir: logs, rotate: 64MiB}
`))
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Profile("default")
	if err != nil {
		t.Fatal(err)
	}
	want := limit.Limits{
		Connections: 256, Handshakes: limit.Rate{Per: 50, Burst: 50}, Requests: limit.Rate{Per: 10, Burst: 600}, DNS: limit.Rate{Per: 1, Burst: 3600}, Leaves: limit.Rate{Per: 5, Burst: 5},
		Header: 64 << 10, Body: 1 << 30, Upload: 2 << 30, Streams: 99, Idle: time.Hour, Progress: 90 * time.Second, Answer: 90 * time.Minute, Duration: 48 * time.Hour,
	}
	if c.Limits != want {
		t.Errorf("limits: %+v", c.Limits)
	}
	if c.Sandbox != (config.Sandbox{Memory: 8 << 30, Processes: 4096, Files: 1024, FileSize: 1 << 40}) {
		t.Errorf("sandbox: %+v", c.Sandbox)
	}
	if !slices.Equal(c.Mounts, []config.Mount{{Path: work, Target: work, Write: true}, {Path: home + "/data", Target: "/data"}}) {
		t.Errorf("mounts: %+v", c.Mounts)
	}
	if c.Proxy.String() != "http://proxy.corp.example:3128" || c.Audit != (config.Audit{Dir: work + "/logs", Rotate: 64 << 20}) {
		t.Errorf("proxy %s, audit %+v", c.Proxy, c.Audit)
	}
	if len(c.Credentials) != 2 {
		t.Errorf("credentials that no rule uses are handed on: %v", c.Credentials)
	}
	for name, cred := range c.Credentials {
		if s := cred.Source; name.String() == "a" && (s.File != home+"/a.json" || !slices.Equal(s.JSON, []string{"x", "y"}) || cred.Line != 3) {
			t.Errorf("a: %+v", cred)
		}
	}
	for a, u := range c.Upstreams {
		if a.String() == "a.example.com:443" && (u.CAFile != work+"/root.pem" || u.Address.String() != "127.0.0.1:9443") {
			t.Errorf("%s: %+v", a, u)
		}
	}
	env, _, err := c.Render(nil, "/src")
	if err != nil || env["CI"] != "1" || env["PATH_LIKE_TOKEN"] != "/run/token" {
		t.Errorf("env: %v, %v", env, err)
	}
	if len(c.Relaxations) != 2 {
		t.Errorf("relaxations: %q", c.Relaxations)
	}
}

func TestMountsOfAPolicyElsewhereBeginAtTheWorkingDirectory(t *testing.T) {
	isolate(t)
	work := t.TempDir()
	t.Chdir(work)
	f, err := config.Parse(filepath.Join(t.TempDir(), config.Name), []byte("version: 1\nprofiles: {default: {mounts: [{path: ., write: true}]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Profile("default")
	if err != nil {
		t.Fatal(err)
	}
	if c.Mounts[0].Path != work {
		t.Errorf("mounts %s", c.Mounts[0].Path)
	}
}

func TestACredentialThatTheSandboxWouldSeeIsRefused(t *testing.T) {
	home := isolate(t)
	work := t.TempDir()
	t.Chdir(work)
	text := func(file, mounts string) []byte {
		return []byte("version: 1\ncredentials:\n  c: {kind: api-key, source: {file: " + file + "}}\nprofiles:\n  default:\n    allow: [{host: a.example.com, inject: {credential: c, header: X-Key}}]\n" + mounts)
	}
	for _, c := range []struct {
		file, mounts string
		ok           bool
	}{
		{"./key", "", false}, {"./key", "    mounts: [{path: .}]\n", false}, {"./key", "    mounts: []\n", true}, {"~/d/key", "    mounts: [{path: ~/d}]\n", false},
		{"~/dd/key", "    mounts: [{path: ~/d}]\n", true}, {"~/key", "", true}, {"/etc/../" + work + "/sub/key", "", false},
	} {
		_, err := config.Parse(filepath.Join(work, config.Name), text(c.file, c.mounts))
		if c.ok != (err == nil) || err != nil && !strings.Contains(err.Error(), "postern.yaml:3:31: a sandbox would see this file") {
			t.Errorf("%s with %q: %v", c.file, c.mounts, err)
		}
	}
	t.Chdir(home)
	if _, err := config.Parse(filepath.Join(home, ".config/postern", config.Name), text("~/.config/postern/key", "")); err != nil {
		t.Errorf("at home: %v", err)
	}
}

func TestRelaxationsAreNamedByLine(t *testing.T) {
	c := profile(t, `version: 1
profiles:
  default:
    use: [debian]
    allow:
      - {host: "*", any_host: true, methods: [GET]}
      - {host: "*.github.io", public_suffix: true}
      - {host: t.example.com, tls: tunnel}
      - {host: k.example.com, client_credentials: keep}
      - {host: h.example.com, scheme: http}
      - {host: a.example.com, address: 10.0.0.0/8}
upstreams: {u.example.com: {address: "127.0.0.1:1"}}
`)
	want := []string{
		"postern.yaml:6: any_host:", "postern.yaml:7: public_suffix:", "postern.yaml:8: tls: tunnel", "postern.yaml:9: client_credentials: keep",
		"postern.yaml:10: scheme: http", "postern.yaml:11: address:", "preset debian:6: scheme: http", "postern.yaml:12: upstreams: u.example.com:443",
	}
	if len(c.Relaxations) != len(want) {
		t.Fatalf("%q", c.Relaxations)
	}
	for i, w := range want {
		if !strings.HasPrefix(c.Relaxations[i].String(), w) {
			t.Errorf("%q, want %q", c.Relaxations[i], w)
		}
	}
}

func TestPlaceholdersAreOneForEachCredential(t *testing.T) {
	c := profile(t, `version: 1
credentials:
  openai: {kind: api-key, source: {file: ~/o}}
  mine: {kind: api-key, source: {file: ~/m}, placeholder: "m_{alnum:20}"}
profiles:
  default:
    use: [codex, openai, {preset: claude, credential: mine}]
    env: {EXTRA: "x{placeholder:mine}y"}
`)
	if len(c.Placeholders) != 2 {
		t.Fatalf("%+v", c.Placeholders)
	}
	values := map[gate.CredentialName]string{}
	for _, p := range c.Placeholders {
		v, err := p.Shape.Make(make([]byte, p.Shape.Random()))
		if err != nil {
			t.Fatal(err)
		}
		values[p.Credential] = v
		switch p.Credential.String() {
		case "openai":
			if !slices.Equal(p.Env, []string{"CODEX_API_KEY", "OPENAI_API_KEY"}) || !slices.Equal(p.Files, []string{".codex/auth.json"}) {
				t.Errorf("openai: %v %v", p.Env, p.Files)
			}
		case "mine":
			if p.Shape.Text != "m_{alnum:20}" {
				t.Errorf("the preset's shape wins: %s", p.Shape.Text)
			}
		}
	}
	env, files, err := c.Render(values, "/src")
	if err != nil {
		t.Fatal(err)
	}
	if v := env["ANTHROPIC_API_KEY"]; !strings.HasPrefix(v, "m_") || env["EXTRA"] != "x"+v+"y" {
		t.Errorf("env: %v", env)
	}
	text := ""
	for _, f := range files {
		text += f.Text
	}
	if len(files) != 3 || strings.Contains(text, "{placeholder") || strings.Contains(text, "{workdir") || !strings.Contains(text, `"/src"`) {
		t.Errorf("files: %v", files)
	}
	if _, _, err := c.Render(nil, "/src"); err == nil {
		t.Error("rendered without placeholders")
	}
}

func TestVoicesCoverPresetsThatAreNotUsed(t *testing.T) {
	c := profile(t, "version: 1\nprofiles: {default: {}}\n")
	for host, want := range map[string]policy.Voice{
		"api.anthropic.com": policy.VoiceAnthropic, "api.openai.com": policy.VoiceOpenAI, "generativelanguage.googleapis.com": policy.VoiceGoogle,
		"github.com": policy.VoiceGit, "api.github.com": policy.VoiceJSON, "a.npmjs.org": policy.VoiceJSON, "example.com": policy.VoicePlain,
	} {
		h, err := gate.ParseHost(host)
		if err != nil {
			t.Fatal(err)
		}
		got := policy.VoicePlain
		if i := slices.IndexFunc(c.Voices, func(v config.HostVoice) bool { return v.Host.Match(h) }); i >= 0 {
			got = c.Voices[i].Voice
		}
		if got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
	if !slices.ContainsFunc(c.H1Only, func(p policy.HostPattern) bool { return p.String() == "github.com" }) {
		t.Error("github.com is offered HTTP/2")
	}
}

func TestAnExceptionBeforeItsRuleIsNotAmbiguous(t *testing.T) {
	c := profile(t, `version: 1
credentials:
  one: {kind: api-key, source: {file: ~/1}}
  two: {kind: api-key, source: {file: ~/2}}
profiles:
  default:
    allow:
      - {host: a.example.com, paths: [/v1/admin], inject: {credential: one, header: X-Key}}
      - {host: a.example.com, paths: ["/v1/**"], inject: {credential: two, header: X-Key}}
      - {host: a.example.com, methods: [GET], paths: [/x], inject: {credential: one, header: X-Key}}
      - {host: a.example.com, methods: [POST], paths: [/x], inject: {credential: two, header: X-Key}}
`)
	if d := decide(t, c, "GET", "https", "a.example.com", "/v1/admin"); d.Permit.Injection().Credential.String() != "one" {
		t.Error("the exception does not win")
	}
}

func TestFilesOthersCouldHaveWrittenAreRefused(t *testing.T) {
	isolate(t)
	dir := t.TempDir()
	path := filepath.Join(dir, config.Name)
	write(t, path, minimal)
	if _, err := config.Load(path); err != nil {
		t.Fatal(err)
	}
	refused := func(what, path, want string) {
		t.Helper()
		_, err := config.Load(path)
		var e *config.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, mode := range []fs.FileMode{0o620, 0o602, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		refused(mode.String(), path, "others can write to it")
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.yaml")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	refused("link", link, "a symbolic link")
	fifo := filepath.Join(dir, "fifo.yaml")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("fifo", fifo, "not a regular file")
	refused("directory", dir, "not a regular file")
	refused("nothing", filepath.Join(dir, "none"), "no such file")
	write(t, filepath.Join(dir, "large"), strings.Repeat("#", 1<<20+1))
	refused("large", filepath.Join(dir, "large"), "larger than 1 MiB")
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 12345, -1); err != nil {
			t.Fatal(err)
		}
		refused("foreign", path, "belongs to another user")
	}
}

func TestManyRulesLoadInASecond(t *testing.T) {
	isolate(t)
	var b strings.Builder
	b.WriteString("version: 1\ncredentials: {c: {kind: api-key, source: {file: ~/c}}, d: {kind: api-key, source: {file: ~/d}}}\nprofiles:\n  default:\n    allow:\n")
	for i := range 1200 {
		cred := []string{"c", "d"}[i%2]
		b.WriteString("      - {host: h" + strings.Repeat("x", i%50) + string(rune('a'+i%26)) + ".example.com, paths: [/" + strings.Repeat("p", i/50+1) + cred + "/*], inject: {credential: " + cred + ", header: K}}\n")
	}
	start := time.Now()
	if _, err := config.Parse("/x/postern.yaml", []byte(b.String())); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

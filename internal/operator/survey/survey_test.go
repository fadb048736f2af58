package survey_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"postern/internal/operator/config"
	"postern/internal/operator/survey"
)

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// on is a PATH that holds these programs.
func on(programs ...string) func(string) (string, error) {
	return func(p string) (string, error) {
		if slices.Contains(programs, p) {
			return "/bin/" + p, nil
		}
		return "", errors.New("not found")
	}
}

func TestRemotesBecomeRepositories(t *testing.T) {
	for raw, want := range map[string]string{
		"https://github.com/acme/widgets":          "github.com/acme/widgets",
		"https://github.com/Acme/Widgets.git":      "github.com/acme/widgets",
		"https://me@github.com/acme/widgets":       "github.com/acme/widgets",
		"https://me:pw@github.com:443/acme/w":      "github.com/acme/w password",
		"git@github.com:acme/widgets.git":          "github.com/acme/widgets",
		"github.com:acme/widgets":                  "github.com/acme/widgets",
		"org-123@github.com:acme/widgets.git":      "github.com/acme/widgets",
		"ssh://git@github.com/acme/widgets.git":    "github.com/acme/widgets",
		"ssh://git@github.com:22/acme/widgets.git": "github.com/acme/widgets",
		"git://github.com/acme/widgets":            "github.com/acme/widgets",
		"ssh://git@github.com:2222/acme/widgets":   "",
		"http://github.com/acme/widgets":           "",
		"https://192.0.2.1/acme/widgets":           "",
		"/srv/git/widgets":                         "",
		"../widgets":                               "",
		"file:///srv/git/widgets":                  "",
		"ext::sh -c whoami":                        "",
		"https://github.com/../x":                  "",
		"https://github.com/a/b\x1b[2J":            "",
		"":                                         "",
	} {
		repo, password, ok := survey.ParseRemote(raw)
		got := ""
		if ok {
			got = repo.String()
			if password {
				got += " password"
			}
		}
		if got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
}

func TestOriginIsReadWithoutRunningGit(t *testing.T) {
	for name, c := range map[string]struct{ config, origin, hint string }{
		"plain":      {"[core]\n\tbare = false\n[remote \"origin\"]\n\turl = git@github.com:acme/widgets.git\n\tfetch = x\n", "github.com/acme/widgets", ""},
		"other only": {"[remote \"upstream\"]\n\turl = https://github.com/acme/widgets\n", "/", "no remote named origin"},
		"comment":    {"[remote \"origin\"]\n\t; url = https://github.com/evil/x\n\turl = https://github.com/acme/widgets # home\n", "github.com/acme/widgets", ""},
		"case":       {"[Remote \"origin\"]\nURL=https://github.com/acme/widgets\n", "github.com/acme/widgets", ""},
		"one line":   {"[remote \"origin\"] url = \"https://github.com/acme/widgets\"\n", "github.com/acme/widgets", ""},
		"fsmonitor":  {"[core]\n\tfsmonitor = touch /tmp/pwned\n[remote \"origin\"]\n\turl = ext::sh -c x\n", "/", "nothing that https reaches"},
		"password":   {"[remote \"origin\"]\n\turl = https://me:hunter22@github.com/acme/widgets\n", "github.com/acme/widgets", "password"},
		"local":      {"[remote \"origin\"]\n\turl = /srv/x\n", "/", "nothing that https reaches"},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, ".git/config"), c.config)
		deep := filepath.Join(dir, "a/b")
		if err := os.MkdirAll(deep, 0o700); err != nil {
			t.Fatal(err)
		}
		f := survey.Look(survey.Config{Dir: deep, Home: t.TempDir(), LookPath: on()})
		if f.Root != dir || f.Origin.String() != c.origin || !strings.Contains(f.OriginHint, c.hint) || strings.Contains(fmt.Sprint(f), "hunter22") {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestOriginOfAWorktree(t *testing.T) {
	main, tree := t.TempDir(), t.TempDir()
	write(t, filepath.Join(main, ".git/config"), "[remote \"origin\"]\n\turl = https://github.com/acme/widgets\n")
	write(t, filepath.Join(main, ".git/worktrees/t/commondir"), "../..\n")
	write(t, filepath.Join(tree, ".git"), "gitdir: "+filepath.Join(main, ".git/worktrees/t")+"\n")
	f := survey.Look(survey.Config{Dir: tree, Home: t.TempDir(), LookPath: on()})
	if f.Root != tree || f.Origin.String() != "github.com/acme/widgets" {
		t.Errorf("%+v", f)
	}
}

func TestCredentialsAreOfferedByPlaceAndNeverKept(t *testing.T) {
	home, secret := t.TempDir(), "sk-ant-"+rand.Text()
	write(t, filepath.Join(home, ".claude.json"), `{"x": 1, "primaryApiKey": "`+secret+`"}`)
	write(t, filepath.Join(home, ".codex/auth.json"), `{"OPENAI_API_KEY": null, "tokens": {"access_token": "`+secret+`"}}`)
	write(t, filepath.Join(home, ".config/gh/hosts.yml"), "github.com:\n    oauth_token: "+secret+"\n")
	write(t, filepath.Join(home, ".config/postern/gemini"), secret)
	if err := os.Chmod(filepath.Join(home, ".config/postern/gemini"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := survey.Look(survey.Config{Dir: t.TempDir(), Home: home, LookPath: on("claude", "codex", "gemini", "gh")})
	var names []string
	for _, c := range f.Credentials {
		names = append(names, c.Name)
		if c.Loose != (c.Name == "gemini") {
			t.Errorf("%s: loose is %v", c.Name, c.Loose)
		}
	}
	if !slices.Equal(names, []string{"gemini", "claude", "github"}) {
		t.Errorf("offered: %v", names)
	}
	if strings.Contains(fmt.Sprintf("%+v", f), secret) || strings.Contains(f.Policy(survey.Answers{Credentials: names}), secret) {
		t.Error("a credential was kept")
	}
	if f := survey.Look(survey.Config{Dir: t.TempDir(), Home: home, LookPath: on("npm")}); len(f.Credentials) != 0 {
		t.Errorf("offered although nothing uses them: %v", f.Credentials)
	}
}

func TestPrivateRegistriesComeFromTheUsersSettingsOnly(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	write(t, filepath.Join(home, ".npmrc"), "registry=https://npm.corp.example/r/\n@acme:registry = https://npm.corp.example:8443/\n//npm.corp.example/:_authToken=hunter22\n@pub:registry=https://r.npmjs.org/\n@bad:registry=http://plain.example/\n")
	write(t, filepath.Join(home, ".config/pip/pip.conf"), "[global]\nindex-url = https://me:hunter22@pypi.corp.example/simple\nextra-index-url =\n    https://two.corp.example/simple\n    https://pypi.org/simple\ntimeout = 5\n")
	write(t, filepath.Join(dir, ".npmrc"), "registry=https://attacker.example/\n")
	f := survey.Look(survey.Config{Dir: dir, Home: home, LookPath: on()})
	var got []string
	for _, r := range f.Registries {
		got = append(got, r.Tool+" "+r.Host.String()+":"+r.Port.String())
	}
	if want := []string{"npm npm.corp.example:443", "npm npm.corp.example:8443", "pip pypi.corp.example:443", "pip two.corp.example:443"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if strings.Contains(fmt.Sprintf("%+v", f), "hunter22") || len(f.Notes) != 1 {
		t.Errorf("%+v", f)
	}
}

func TestEveryPolicyThatIsWrittenIsValid(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", "")
	programs := []string{"claude", "codex", "gemini", "gh", "npm", "pip", "go", "cargo"}
	home, dir := t.TempDir(), t.TempDir()
	for _, name := range []string{"claude", "openai", "gemini", "github"} {
		write(t, filepath.Join(home, ".config/postern", name), rand.Text())
	}
	write(t, filepath.Join(home, ".npmrc"), "registry=https://npm.corp.example:8443/r/\n")
	write(t, filepath.Join(dir, ".git/config"), "[remote \"origin\"]\nurl = git@github.com:acme/widgets\n")
	names := []string{"claude", "openai", "gemini", "github"}
	for mask := 0; mask < 1<<len(programs); mask += 5 { // a fifth of the mixtures, the empty and the full one among them
		var have []string
		for i, p := range programs {
			if mask&(1<<i) != 0 {
				have = append(have, p)
			}
		}
		f := survey.Look(survey.Config{Dir: dir, Home: home, LookPath: on(have...)})
		for _, answered := range []int{0, 1, 1<<len(f.Credentials) - 1} {
			a := survey.Answers{Push: answered%2 == 0}
			for i, c := range f.Credentials {
				if answered&(1<<i) != 0 && slices.Contains(names, c.Name) {
					a.Credentials = append(a.Credentials, c.Name)
				}
			}
			text := f.Policy(a)
			parsed, err := config.Parse(filepath.Join(dir, config.Name), []byte(text))
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			c, err := parsed.Profile("default")
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Credentials) != len(a.Credentials) {
				t.Fatalf("%d credentials used, %d agreed to\n%s", len(c.Credentials), len(a.Credentials), text)
			}
		}
	}
}

func FuzzGitConfig(f *testing.F) {
	f.Add("[remote \"origin\"]\n\turl = git@github.com:acme/widgets.git\n")
	f.Add("[remote \"origin\"]url=\"https://a:b@h.example/x\"#\n[")
	f.Add("[\n]=\n[remote \"origin\"\nurl")
	dir, home := f.TempDir(), f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		write(t, filepath.Join(dir, ".git/config"), text)
		write(t, filepath.Join(home, ".npmrc"), text)
		write(t, filepath.Join(home, ".pip/pip.conf"), text)
		found := survey.Look(survey.Config{Dir: dir, Home: home, LookPath: on("npm", "gh")})
		policy := found.Policy(survey.Answers{})
		if _, err := config.Parse(filepath.Join(dir, config.Name), []byte(policy)); err != nil {
			t.Errorf("%v\n%s", err, policy)
		}
	})
}

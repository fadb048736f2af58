package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"postern/internal/testkit"
)

// mistake is something that people do, and what they must be told.
type mistake struct {
	name  string
	args  []string                             // after postern
	make  func(t *testing.T, h *testkit.House) // the mistake, where it is not in the arguments
	after func(t *testing.T, cmd *exec.Cmd)    // changes the call itself
	says  string                               // a regular expression of the first line
	hint  string                               // and of the second
}

// TestMistakesAreSaidWithARemedy: each ends with 125 before anything runs, in one line and one hint.
func TestMistakesAreSaidWithARemedy(t *testing.T) {
	run := []string{"run", "--", "true"}
	for _, m := range []mistake{
		{name: "no command", args: []string{"run", "--"}, says: `no command to run`, hint: `postern run -- COMMAND`},
		{name: "an unknown flag", args: []string{"run", "--profil", "ci", "--", "true"}, says: `unknown flag: --profil`, hint: `did you mean "--profile"\? .*`},
		{name: "an unknown profile", args: []string{"run", "--profile", "defualt", "--", "true"}, says: `.*postern\.yaml: no such profile`, hint: `did you mean "default"\?`},
		{name: "a policy that is not there", args: []string{"run", "--config", "nowhere.yaml", "--", "true"}, says: `nowhere\.yaml: no such file`},
		{name: "a policy that is not trusted", args: run, make: policy("version: 1\nprofiles: {default: {}}\n"), says: `postern\.yaml: not trusted: .*`, hint: `read it, then: postern policy trust postern\.yaml`},
		{name: "a policy that is not valid", args: []string{"run", "--config", "postern.yaml", "--", "true"}, make: policy("version: 1\nprofile: {}\n"),
			says: `postern\.yaml:2:1: unknown key "profile"`, hint: `did you mean "profiles"\?`},
		{name: "an unknown preset", args: []string{"run", "--config", "postern.yaml", "--", "true"}, make: policy("version: 1\nprofiles: {default: {use: [nmp]}}\n"),
			says: `postern\.yaml:2:.*preset.*"nmp"`, hint: `did you mean "npm"\?`},
		{name: "a credential that is missing", args: []string{"run", "--config", "postern.yaml", "--", "true"}, make: policy(credential),
			says: `credential key: .*/key does not exist`, hint: `.*umask 077.*/key\)`},
		{name: "a credential that others can read", args: []string{"run", "--config", "postern.yaml", "--", "true"}, make: func(t *testing.T, h *testkit.House) {
			policy(credential)(t, h)
			file(t, h, filepath.Join(h.Home, "key"), "random", 0o644)
		}, says: `credential key: .*/key has mode 0644, so others can read or change it`, hint: `chmod 600 .*/key`},
		{name: "a mount of nothing", args: []string{"run", "--mount", "/no/such/place", "--", "true"}, says: `sandbox: mount /no/such/place: no such file or directory`, hint: `a mount shows .*`},
		{name: "a mount in the wrong form", args: []string{"run", "--mount", "a:b:c", "--", "true"}, says: `--mount "a:b:c": not SRC\[:DST\]\[:rw\]`, hint: `--mount ~/data:/data.*`},
		{name: "a dangerous mount: the home directory", args: run, after: func(_ *testing.T, cmd *exec.Cmd) { cmd.Dir = filepath.Dir(cmd.Dir) },
			says: `sandbox: mount .*/home: it contains .*/\.config/postern, which no sandbox should see`, hint: `mount only .*--allow-dangerous-mount`},
		{name: "no HOME", args: run, after: without("HOME"), says: `home directory: HOME is not set to an absolute path`, hint: `HOME=.*`},
		{name: "a variable that is not set", args: []string{"run", "--env", "NOT_SET", "--", "true"}, says: `--env NOT_SET: not set here`, hint: `--env NOT_SET=VALUE`},
		{name: "a working directory that is gone", args: run, after: gone, says: `working directory: getwd: no such file or directory`, hint: `cd into one that exists`},
		{name: "another user", args: []string{"run", "--uid", "4711", "--", "true"}, says: `--uid: only root .*`, hint: `leave it away.*`},
		{name: "an unknown log level", args: []string{"run", "--log-level", "loud", "--", "true"}, says: `--log-level "loud": no such level`, hint: `one of debug, info, warn, error`},
		{name: "no user namespaces", args: run, after: unshared, says: `sandbox: namespaces: no space left on device`, hint: `.*/max_user_namespaces.*postern doctor.*`},
	} {
		t.Run(m.name, func(t *testing.T) { m.check(t) })
	}
}

const credential = `version: 1
credentials: {key: {kind: api-key, source: {file: ~/key}}}
profiles: {default: {allow: [{host: a.example.com, inject: {credential: key, header: X-Key}}]}}
`

func (m *mistake) check(t *testing.T) {
	h := testkit.NewNet(t).NewHouse(t, testkit.Config{Profile: "allow: []"})
	if m.make != nil {
		m.make(t, h)
	}
	cmd := h.Command(within(t, time.Minute), m.args...)
	if m.after != nil {
		m.after(t, cmd)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 125 || out.Len() > 0 {
		t.Errorf("%v, stdout %q, want exit 125", err, out.String())
	}
	want := `^postern: ` + m.says + `\n$`
	if m.hint != "" {
		want = `^postern: ` + m.says + `\n  hint: ` + m.hint + `\n$`
	}
	if !regexp.MustCompile(want).MatchString(errs.String()) {
		t.Errorf("got\n%swant\n%s", errs.String(), want)
	}
}

// file writes a file that belongs to the house's user.
func file(t *testing.T, h *testkit.House, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(name, h.User.UID, h.User.GID); err != nil {
			t.Fatal(err)
		}
	}
}

// policy lays a postern.yaml into the working directory, as if it had come with a repository.
func policy(text string) func(*testing.T, *testkit.House) {
	return func(t *testing.T, h *testkit.House) { file(t, h, filepath.Join(h.Work, "postern.yaml"), text, 0o600) }
}

func without(variable string) func(*testing.T, *exec.Cmd) {
	return func(_ *testing.T, cmd *exec.Cmd) {
		var env []string
		for _, kv := range cmd.Env {
			if !strings.HasPrefix(kv, variable+"=") {
				env = append(env, kv)
			}
		}
		cmd.Env = env
	}
}

// shell puts a script before the call, which it reaches with exec "$@".
func shell(cmd *exec.Cmd, wrap []string, script string) {
	cmd.Args = append(append(wrap, "sh", "-c", script, "sh"), append([]string{cmd.Path}, cmd.Args[1:]...)...)
	cmd.Path = "/usr/bin/" + cmd.Args[0]
}

func gone(_ *testing.T, cmd *exec.Cmd) {
	shell(cmd, []string{"env"}, `mkdir gone && cd gone && rmdir ../gone && exec "$@"`)
}

// unshared calls postern in a user namespace that may have no more of them below it, which is what a machine without them looks like.
func unshared(_ *testing.T, cmd *exec.Cmd) {
	shell(cmd, []string{"unshare", "--user", "--map-current-user", "--keep-caps"}, `echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"`)
}

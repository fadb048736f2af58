package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"postern/internal/testkit"
)

// A credential's command runs on the host, and a policy file decides about it. What the sandbox can write must be neither.

// policyFile writes a policy for a house, besides its own. It belongs to whoever runs the tests, and everybody can read it.
func policyFile(t *testing.T, n *testkit.Net, name, rest string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte("version: 1\n"+n.Upstreams()+"\n"+rest), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestTheSandboxCannotChangeWhatRunsOnTheHost(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		mark := filepath.Join(w.Home, "ran-on-the-host")
		bin := t.TempDir()
		for _, d := range []string{filepath.Dir(bin), bin} {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		tool := "#!/usr/bin/env bash\necho real-" + w.echoKey.Random + "\n"
		if err := os.WriteFile(filepath.Join(bin, "mytoken"), []byte(tool), 0o755); err != nil {
			t.Fatal(err)
		}
		for what, c := range map[string]struct {
			command string
			plant   string // below the working directory
			arrives bool
		}{
			"a directory of PATH":      {"[mytoken]", ".venv/bin/mytoken", true},
			"what the program runs":    {"[mytoken]", ".venv/bin/bash", true},
			"the program itself":       {"[" + w.Work + "/tok]", "tok", false},
			"a script for the program": {"[sh, " + w.Work + "/tok]", "tok", false},
		} {
			rest := fmt.Sprintf("credentials: {k: {kind: api-key, source: {command: %s}}}\naudit: {dir: %s}\nprofiles: {default: {allow: [{host: echo.test, inject: {credential: k, header: Authorization}}]}}\n",
				c.command, filepath.Join(w.State, "audit"))
			config := policyFile(t, w.Net, filepath.Join(w.Home, ".config", "postern", "command.yaml"), rest)
			nonce := fmt.Sprintf("host-%x", time.Now().UnixNano())
			script := fmt.Sprintf(`mkdir -p .venv/bin; printf '#!/bin/sh\nid >%s\necho planted-credential\n' >%s; chmod +x %[2]s; curl -sS https://echo.test/%s; rm -f %[2]s`, mark, c.plant, nonce)
			cmd := w.Command(within(t, time.Minute), "run", "--config", config, "--", "sh", "-c", script)
			cmd.Env = append(cmd.Env, "PATH="+filepath.Join(w.Work, ".venv", "bin")+":"+bin+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if _, e := os.Stat(mark); e == nil {
				t.Errorf("%s: the sandbox's program ran on the host", what)
				_ = os.Remove(mark)
			}
			got := w.Log.Holding(nonce)
			if (len(got) == 1) != c.arrives {
				t.Errorf("%s: %d requests arrived: %v %s", what, len(got), err, out)
			}
		}
	})
}

func TestThePolicyInForceCannotBeRewrittenFromInside(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		const deny, allow = "profiles: {default: {allow: [{host: open.test}], mounts: [{path: ., target: /src, write: true}]}}\n", "profiles: {default: {allow: [{host: evil.test}, {host: open.test}]}}\n"
		audit := "audit: {dir: " + filepath.Join(w.State, "audit") + "}\n"
		name := policyFile(t, w.Net, filepath.Join(w.Work, "policy.yaml"), audit+deny)
		if os.Getuid() == 0 {
			if err := os.Chown(name, w.User.UID, w.User.GID); err != nil {
				t.Fatal(err)
			}
		}
		before, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		nonce := fmt.Sprintf("rewritten-%x", time.Now().UnixNano())
		text := "version: 1\n" + w.Upstreams() + "\n" + audit + allow
		script := `for f in /src/policy.yaml "$PWD/policy.yaml"; do printf %s "$1" >$f; cp "$f" "$f.new"; printf %s "$1" >"$f.new"; mv -f "$f.new" "$f"; done
			i=0; while [ $i -lt 15 ]; do curl -sS "https://evil.test/` + nonce + `" | grep -q host.not_listed || break; sleep 0.2; i=$((i+1)); done; curl -sS https://open.test/twin-` + nonce
		r := w.Postern(t, nil, "run", "--config", name, "--", "sh", "-c", script, "sh", text)
		if after, err := os.ReadFile(name); err != nil || string(after) != string(before) {
			t.Errorf("the policy was changed: %v", err)
		}
		for _, got := range w.Log.Holding(nonce) {
			if !strings.Contains(got.Target, "twin-") {
				t.Errorf("arrived: %s %s%s", got.Method, got.Host, got.Target)
			}
		}
		if len(w.Log.Holding("twin-"+nonce)) != 1 {
			t.Errorf("the allowed request did not arrive: %s %s", r.Stdout, r.Stderr)
		}
	})
}

func TestWhatTheHostsGitWouldRunIsTold(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		const told = "git may now run programs of the sandbox"
		for _, c := range []struct {
			script string
			want   bool
		}{
			{"git init -q . && git checkout -q -b work && git config branch.work.remote origin", false},
			{"git config core.fsmonitor ./x", true},
			{"true", false}, // it was told
			{"echo '#!/bin/sh' >.git/hooks/post-checkout", true},
		} {
			if r := ok(t, w.RunWith(t, []string{"--quiet"}, "sh", "-c", c.script)); strings.Contains(r.Stderr, told) != c.want {
				t.Errorf("%s: told %t: %s", c.script, !c.want, r.Stderr)
			}
		}
	})
}

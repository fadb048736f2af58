package e2e

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"postern/internal/testkit"
)

// TestNoSecretIsInTheSandbox uses every credential once, so that the gateway holds them all, and then searches everything that can be
// read inside: environment, files, /proc and memory.
func TestNoSecretIsInTheSandbox(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		if err := os.WriteFile(w.Home+"/set.json", []byte(w.canaries.File(t)), 0o644); err != nil {
			t.Fatal(err)
		}
		script := strings.Join([]string{
			`curl -sS https://echo.test/ >/dev/null`,
			`curl -sS https://api.anthropic.com/v1/messages -H "x-api-key: $ANTHROPIC_API_KEY" -d '{"messages":[]}' >/dev/null`,
			`git ls-remote -q https://github.com/acme/widgets >/dev/null`,
			probePath(t) + " sweep /mnt/set.json",
		}, " && ")
		flags := []string{"--mount", filepath.Dir(testkit.Probe(t)) + ":/mnt/probe", "--mount", w.Home + "/set.json:/mnt/set.json"}
		r := ok(t, w.RunWith(t, flags, "sh", "-c", script))
		f := testkit.Findings(t, r)[0]
		if !f.OK {
			t.Fatalf("the sweep was not made: %s", describe(f))
		}
		if found, _ := f.Data["found"].([]any); len(found) > 0 {
			t.Errorf("found in the sandbox: %v", found)
		}
		for _, host := range []string{"echo.test", "api.anthropic.com", "github.com"} {
			if len(w.Log.To(host)) == 0 {
				t.Errorf("%s was not asked: its credential was never in use", host)
			}
		}
		w.canaries.Results(t, w.House, r)
		w.canaries.Tree(t, w.Home, w.Home+"/.config/postern/secrets")
	})
}

// TestTheSweepFindsWhatIsThere is the control of the sweep: a secret that is in the sandbox is found wherever it is.
func TestTheSweepFindsWhatIsThere(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	planted := testkit.NewSecret("planted", "")
	c := testkit.NewCanaries(t, planted)
	if err := os.WriteFile(w.Home+"/set.json", []byte(c.File(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`printf %%s '%s' | base64 > /tmp/planted; %s sweep /mnt/set.json`, planted.Value(), probePath(t))
	flags := []string{"--mount", filepath.Dir(testkit.Probe(t)) + ":/mnt/probe", "--mount", w.Home + "/set.json:/mnt/set.json", "--env", "PLANTED=" + planted.Value()}
	f := testkit.Findings(t, ok(t, w.RunWith(t, flags, "sh", "-c", script)))[0]
	found := fmt.Sprint(f.Data["found"])
	for _, where := range []string{"/tmp/planted", "/environ", "/cmdline", "/mem"} {
		if !strings.Contains(found, where) {
			t.Errorf("the sweep misses what is in %s: %s", where, found)
		}
	}
}

func TestReflectedCredentialsAreScrubbed(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		var commands [][]string
		for _, as := range testkit.Echoes() {
			for _, version := range []string{"1", "2"} {
				for _, chunk := range []string{"0", "1", "7"} {
					url := "https://echo.test/?chunk=" + chunk + "&pad=100&as=" + strings.ReplaceAll(as, "+", "%2B")
					commands = append(commands, []string{"http", "-v", version, "GET", url})
				}
			}
		}
		before := len(w.Log.To("echo.test"))
		for i, f := range w.probe(t, commands...) {
			text := describeAll(f)
			w.canaries.Text(t, strings.Join(commands[i], " "), text)
			w.canaries.Text(t, "JSON escapes of "+strings.Join(commands[i], " "), unescapeJSON(text))
			if !f.OK {
				t.Errorf("%v: %s", commands[i], describe(f))
			}
		}
		if got := len(w.Log.To("echo.test")) - before; got != len(commands) {
			t.Errorf("%d of %d requests arrived: the rest proves nothing", got, len(commands))
		}
	})
}

func TestReflectionOnAWebSocketIsScrubbed(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	f := w.probe(t, []string{"ws", "-first", "wss://echo.test/ws?leak=1"})[0]
	if !f.OK || !strings.HasPrefix(f.Text("first"), "you sent ") {
		t.Fatalf("%s", describe(f))
	}
	w.canaries.Text(t, "the first message", f.Text("first"))
	if got := w.Log.To("echo.test"); len(got) != 1 || got[0].Header.Get("Authorization") != "Bearer "+w.echoKey.Value() {
		t.Error("the upgrade did not carry the credential: this proves nothing")
	}
}

// TestAnUpstreamThatSpeaksOutOfTurnIsNotQuoted: what comes on an idle connection is an answer to nothing, and must not end in the host's log,
// which is the standard error that the command has too.
func TestAnUpstreamThatSpeaksOutOfTurnIsNotQuoted(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	cut := make(chan struct{})
	talker := http.NewServeMux()
	talker.HandleFunc("/talk", func(rw http.ResponseWriter, r *http.Request) {
		c, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer close(cut)
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n")
		_, _ = io.WriteString(c, r.Header.Get("Authorization")[len("Bearer "):]+"\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
	})
	talker.HandleFunc("/wait", func(http.ResponseWriter, *http.Request) { <-cut })
	talk := w.ServeWith("talk.test", talker, testkit.OnlyHTTP1)
	config := policyFile(t, w.Net, filepath.Join(w.Home, ".config", "postern", "talk.yaml"), fmt.Sprintf(
		"credentials: {echo: {kind: api-key, source: {file: secrets/echo}}}\naudit: {dir: %s}\nprofiles: {default: {allow: [{host: talk.test, inject: {credential: echo, header: Authorization, format: \"Bearer {}\"}}]}}\n", filepath.Join(w.State, "audit")))
	r := ok(t, w.Postern(t, nil, "run", "--config", config, "--", "sh", "-c", "curl -sS --http1.1 https://talk.test/talk && curl -sS --http1.1 https://talk.test/wait"))
	if got := talk.Requests(); len(got) != 2 || got[0].Header.Get("Authorization") != "Bearer "+w.echoKey.Value() || !strings.Contains(r.Stdout, "ok") {
		t.Fatalf("the upstream did not get the credential: this proves nothing: %s %s", r.Stdout, r.Stderr)
	}
	w.canaries.Text(t, "standard output", r.Stdout)
	w.canaries.Text(t, "standard error", r.Stderr)
}

// TestTheGatewaysMemoryIsClosed: another process of the same user, outside the sandbox, cannot read the gateway either.
func TestTheGatewaysMemoryIsClosed(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	cmd := w.Command(within(t, time.Minute), "run", "--config", w.Config, "--", "sh", "-c", "curl -sS https://echo.test/ && sleep 30")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Cancel(); _ = cmd.Wait() }()
	if _, err := w.Log.Wait(within(t, 20*time.Second), func(r *testkit.Request) bool { return r.Server == "echo.test" }); err != nil {
		t.Fatal("the credential was never in use")
	}
	for _, name := range []string{"environ", "cmdline"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", cmd.Process.Pid, name))
		if err != nil && !os.IsPermission(err) {
			t.Fatal(err)
		}
		w.canaries.Text(t, "/proc/PID/"+name, string(b))
	}
	reader := w.Command(within(t, 10*time.Second))
	reader.Path, reader.Args = "/usr/bin/head", []string{"head", "-c", "1", fmt.Sprintf("/proc/%d/environ", cmd.Process.Pid)}
	if out, err := reader.CombinedOutput(); err == nil {
		t.Errorf("the same user reads the gateway's environment: it is dumpable: %q", out)
	}
}

func describeAll(f testkit.Finding) string { return fmt.Sprint(f.Data) }

// unescapeJSON reads \u00xx escapes, which a client's JSON parser would.
func unescapeJSON(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		var c rune
		if i+6 <= len(s) && s[i] == '\\' && s[i+1] == 'u' {
			if _, err := fmt.Sscanf(s[i+2:i+6], "%04x", &c); err == nil {
				b.WriteRune(c)
				i += 5
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func TestNothingIsLeftBehind(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		before := temporary(t)
		ok(t, w.Run(t, "sh", "-c", "curl -sS https://echo.test/ >/dev/null; touch /tmp/x /run/y 2>/dev/null; true"))
		for name := range temporary(t) {
			if !before[name] {
				t.Errorf("%s was left behind", name)
			}
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(mounts), filepath.Dir(w.Home)) {
			t.Error("a mount was left behind")
		}
		w.canaries.Tree(t, w.Home, w.Home+"/.config/postern/secrets")
	})
}

// temporary lists what lies in the places where programs leave things, but for what the tests make themselves.
func temporary(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, dir := range []string{os.TempDir(), "/run", "/dev/shm", "/var/tmp"} {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Type()&fs.ModeSymlink == 0 && strings.Contains(e.Name(), "postern") && !strings.HasPrefix(e.Name(), "postern-test-") {
				found[filepath.Join(dir, e.Name())] = true
			}
		}
	}
	return found
}

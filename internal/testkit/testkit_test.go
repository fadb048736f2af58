package testkit

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onHost runs a client on the host through the open door, in an empty directory that is its home.
func onHost(t *testing.T, d *OpenDoor, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + cmd.Dir, "GOPATH=" + cmd.Dir, "GOCACHE=" + filepath.Join(cmd.Dir, "cache")}, d.Env()...), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestRealClientsAcceptTheKitsServers(t *testing.T) {
	token := NewSecret("forge", "ghp_")
	n := NewNet(t)
	forge := NewForge(t, token.Value())
	forge.AddRepo("acme/widgets", map[string]string{"README.md": "# widgets\n"})
	npm, files, goproxy := Registry("registry", "npmjs.org"), Registry("files", "pythonhosted.org"), Registry("proxy", "golang.org")
	n.Serve("forge.test", forge)
	n.Serve(npm, NPM(t, npm))
	n.Serve("pypi.org", PyPIIndex(t, files))
	n.Serve(files, PyPIFiles(t))
	n.Serve(goproxy, GoProxy(t))
	n.Serve("deb.test", Apt(t))
	d := n.NewOpenDoor(t)

	t.Run("git", func(t *testing.T) {
		onHost(t, d, nil, "git", "clone", "https://x-access-token:"+token.Value()+"@forge.test/acme/widgets")
		work := t.TempDir()
		url := "https://u:" + token.Value() + "@forge.test/acme/widgets.git"
		script := "git clone -q " + url + " w && cd w && echo new > new && git add new && git -c user.name=a -c user.email=a@example.com commit -qm new && git -c http.postBuffer=10 push -q origin HEAD:refs/heads/topic"
		onHost(t, d, []string{"TMPDIR=" + work}, "sh", "-c", script)
		if forge.Head("acme/widgets", "topic") == "" {
			t.Error("the push did not arrive")
		}
	})
	t.Run("git without the token", func(t *testing.T) {
		cmd := exec.Command("git", "clone", "https://u:wrong@forge.test/acme/widgets", t.TempDir())
		cmd.Env = append(append(os.Environ(), d.Env()...), "GIT_TERMINAL_PROMPT=0")
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("a wrong token cloned:\n%s", out)
		}
	})
	t.Run("npm", func(t *testing.T) {
		if out := onHost(t, d, nil, "npm", "exec", "--yes", "--", "postern-sample"); !strings.Contains(out, Sample) {
			t.Errorf("got %q", out)
		}
	})
	t.Run("pip", func(t *testing.T) {
		out := onHost(t, d, nil, "sh", "-c", "/usr/bin/python3 -m pip install -q --disable-pip-version-check --no-cache-dir --target lib postern-sample && PYTHONPATH=lib /usr/bin/python3 -m postern_sample")
		if !strings.Contains(out, Sample) {
			t.Errorf("got %q", out)
		}
	})
	t.Run("go", func(t *testing.T) {
		main := "package main\n\nimport (\n\t\"fmt\"\n\t\"example.test/sample\"\n)\n\nfunc main() { fmt.Println(sample.Text()) }\n"
		script := "go mod init x && printf '%s' '" + main + "' > main.go && go get -modcacherw example.test/sample@v1.0.0 && go run -modcacherw ."
		if out := onHost(t, d, []string{"GONOSUMDB=example.test", "GOFLAGS=-mod=mod", "GOTOOLCHAIN=local", "GOPROXY=https://" + goproxy}, "sh", "-c", script); !strings.Contains(out, Sample) {
			t.Errorf("got %q", out)
		}
	})
	t.Run("apt", func(t *testing.T) {
		if out := onHost(t, d, nil, "sh", "-c", AptScript("deb.test", "-o Acquire::https::CAInfo="+n.CAFile())); !strings.Contains(out, Sample) {
			t.Errorf("got %q", out)
		}
	})
	if len(n.Log.To("deb.test")) == 0 || len(n.Log.To(npm)) == 0 {
		t.Error("the log does not hold what the clients did")
	}
}

func TestProvidersAnswerOnlyTheRunsKey(t *testing.T) {
	key := NewSecret("key", "sk-")
	n := NewNet(t)
	for _, c := range []struct {
		host, header, value, path, body string
		h                               http.Handler
	}{
		{"api.anthropic.com", "X-Api-Key", key.Value(), "/v1/messages", `{"model":"m","messages":[]}`, &Anthropic{Key: key.Value()}},
		{"claude.test", "Authorization", "Bearer " + key.Value(), "/v1/messages", `{"stream":true,"model":"m","messages":[]}`, &Anthropic{Key: key.Value()}},
		{"api.openai.com", "Authorization", "Bearer " + key.Value(), "/v1/responses", `{"stream":true}`, &OpenAI{Key: key.Value()}},
		{"chat.test", "Authorization", "Bearer " + key.Value(), "/v1/chat/completions", `{}`, &OpenAI{Key: key.Value()}},
		{"gemini.test", "X-Goog-Api-Key", key.Value(), "/v1beta/models/m:generateContent", `{}`, &Gemini{Key: key.Value()}},
	} {
		s := n.Serve(c.host, c.h)
		for _, value := range []string{c.value, "wrong", ""} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+c.host+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set(c.header, value)
			resp, err := s.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if right := value == c.value; right != (resp.StatusCode == http.StatusOK) || right != strings.Contains(string(b), "fake provider") && right != strings.Contains(string(b), "fake ") {
				t.Errorf("%s%s with the right key %t: %s %s", c.host, c.path, right, resp.Status, b)
			}
		}
	}
}

func TestEchoReflectsInEveryWay(t *testing.T) {
	key := NewSecret("key", "sk-")
	n := NewNet(t)
	s := n.Serve("echo.test", Echo())
	canaries := NewCanaries(t, key)
	for _, as := range Echoes() {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://echo.test/?chunk=5&as="+strings.ReplaceAll(as, "+", "%2B"), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+key.Value())
		r.Header.Set("Accept-Encoding", "gzip, deflate")
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		text := fmt.Sprint(resp.Header, resp.Trailer) + string(b)
		if as == "gzip" {
			z, err := gzip.NewReader(strings.NewReader(string(b)))
			if err != nil {
				t.Fatal(err)
			}
			plain, _ := io.ReadAll(z)
			text += string(plain)
		}
		if as == "deflate" || as == "json-unicode" || as == "event-split" {
			continue // spelled in a way that a sweep of the bytes does not read
		}
		found, err := canaries.set.Scan(strings.NewReader(text))
		if err != nil || len(found) == 0 {
			t.Errorf("%s: the credential is not in %q", as, text)
		}
	}
}

func TestSinkSeesEveryWayIn(t *testing.T) {
	s := NewSink(t)
	s.Reach(t, "control")
	if n := s.Holding("control"); n != 4 {
		t.Errorf("%d arrivals, want 4: %v", n, s.Arrivals())
	}
	if len(s.Targets(t)) < 3 {
		t.Errorf("only %v would be tried", s.Targets(t))
	}
}

func TestLogHoldsHeadsBodiesAndNonces(t *testing.T) {
	n := NewNet(t)
	s := n.Serve("bulk.test", Bulk())
	resp, err := s.Client().Post("https://bulk.test/in/nonce-1", "text/plain", strings.NewReader(strings.Repeat("x", 300<<10)+"nonce-2"))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	got := n.Log.Holding("nonce-1")
	if len(got) != 1 || got[0].SNI != "bulk.test" || got[0].Proto != "HTTP/2.0" {
		t.Fatalf("got %+v", got)
	}
	size, sum, head := got[0].Body()
	if size != 300<<10+7 || len(sum) != 64 || len(head) != 256<<10 {
		t.Errorf("the body has %d bytes, hash %q and a head of %d", size, sum, len(head))
	}
	if len(n.Log.Holding(base64.StdEncoding.EncodeToString([]byte("elsewhere")))) != 0 {
		t.Error("found what was not sent")
	}
}

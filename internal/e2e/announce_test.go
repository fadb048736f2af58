package e2e

import (
	"slices"
	"strings"
	"testing"

	"postern/internal/testkit"
)

// TestEveryRelaxationIsAnnouncedByName: in one line for each kind, to a person and to a log file alike, without colour; in full in the
// audit log; and not at all with --quiet.
func TestEveryRelaxationIsAnnouncedByName(t *testing.T) {
	n := testkit.NewNet(t)
	n.Serve("a.test", testkit.Echo())
	n.Serve("b.test", testkit.Echo())
	h := n.NewHouse(t, testkit.Config{Profile: `
use: [debian]
git: [{repo: github.com/acme/widgets, push: true}]
allow:
  - {host: t.test, tls: tunnel}
  - {host: u.test, tls: tunnel}
  - {host: k.test, client_credentials: keep}
  - {host: p.test, port: 8443, address: 10.1.2.0/24}
`})
	loud := ok(t, h.Run(t, "true"))
	var got []string
	for line := range strings.Lines(loud.Stderr) {
		if !strings.HasSuffix(line, ": see postern doctor\n") { // of this machine
			got = append(got, strings.TrimSuffix(line, "\n"))
		}
	}
	want := []string{
		"postern: relaxed: tls: tunnel (t.test, u.test)",
		"postern: relaxed: client_credentials: keep (k.test)",
		"postern: relaxed: address (p.test)",
		"postern: relaxed: scheme: http (*.debian.org)",
		"postern: relaxed: upstreams (a.test, b.test)",
		"postern: warnings about the policy: 1; postern policy check " + h.Config,
	}
	if !slices.Equal(got, want) || strings.Contains(loud.Stderr, "\x1b") {
		t.Errorf("got\n%s\nwant\n%s", loud.Stderr, strings.Join(want, "\n"))
	}
	if quiet := ok(t, h.RunWith(t, []string{"--quiet"}, "curl", "-sS", "https://elsewhere.test/")); quiet.Stderr != "" {
		t.Errorf("--quiet: %q", quiet.Stderr)
	}
	var notes []string
	for _, r := range h.Audit(t) {
		if r.Text("kind") == "notice" {
			notes = append(notes, r.Text("detail"))
		}
	}
	for _, full := range []string{": tls: tunnel: t.test: nothing in it is seen", ": upstreams: b.test:443: dialled at 127.0.0.1:", "a push without credential"} {
		if !slices.ContainsFunc(notes, func(s string) bool { return strings.Contains(s, full) }) {
			t.Errorf("the audit log does not say %q:\n%s", full, strings.Join(notes, "\n"))
		}
	}
}

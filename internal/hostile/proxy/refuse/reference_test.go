package refuse

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"postern/internal/core/gate"
)

var update = flag.Bool("update", false, "write docs/reference/refusals.md anew")

const reference = "../../../../docs/reference/refusals.md"

// TestReferencePageListsEveryReason keeps docs/reference/refusals.md as what gate.Reasons and this package say.
func TestReferencePageListsEveryReason(t *testing.T) {
	want := page()
	if *update {
		if err := os.WriteFile(reference, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the page is out of date; run: go test ./internal/hostile/proxy/refuse -run Reference -update")
	}
}

func page() []byte {
	var b bytes.Buffer
	b.WriteString(`# Refusals

<!-- Written by go test ./internal/hostile/proxy/refuse -run Reference -update; do not edit. -->

What postern does not allow it refuses at once, with a reason and an event id. ` + "`postern explain EVENT`" + ` on the host tells
which rule decided and what would allow it; ` + "`postern log --denied`" + ` lists refusals.

## What the client sees

| client | answer |
| --- | --- |
| of a model host | HTTP 400 and the provider's own JSON error; its ` + "`message`" + ` holds everything below |
| git | its own protocol's error: ` + "`fatal: remote error: postern refused this request …`" + ` |
| gRPC | status 7, PERMISSION_DENIED |
| that accepts JSON | the status below and an object with ` + "`error`, `reason`, `event`, `message` and `hint`" + ` |
| any other over HTTP | the status below and two or three lines of text |
| ssh, ` + "`git://`" + ` | a disconnect or error message of that protocol |

Every HTTP answer carries ` + "`x-postern-reason`, `x-postern-event` and `x-should-retry: false`" + `. It is never 401, 429 or 5xx: clients
would start a login or try again for minutes. Nothing tells one session about another, and nothing tells whether a repository exists.

## Reasons

Reasons are stable: they are added, never renamed.

| reason | status | meaning | what to do |
| --- | --- | --- | --- |
`)
	for _, r := range gate.Reasons() {
		if r.Code == gate.ReasonAllowed {
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", r.Code, Status(r.Code), cell(r.Meaning), cell(r.Remedy))
	}
	return b.Bytes()
}

func cell(s string) string {
	if s == "" {
		return "–"
	}
	return strings.ReplaceAll(s, "|", `\|`)
}

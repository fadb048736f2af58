package testkit

import (
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Attack is one attempt to get something past the gateway, with what makes its result mean something: a control that shows that the
// attack works where nothing stops it, and a twin that shows that the way is open to a request that may pass.
//
// The three arms are judged at the sink, never by what a client said. "{nonce}" in a command stands for a random word that the sink
// can recognise; each arm has its own.
type Attack struct {
	Name    string
	Control func(t *testing.T, nonce string) // makes the attack without postern; it must reach the sink
	Attempt []string                         // the same, inside the sandbox; it must not
	Twin    []string                         // the closest legitimate request, inside the sandbox; it must reach the sink. Empty: Twin of the table
	Sink    func(nonce string) int           // how much of the arm with this nonce arrived; nil: the Net's Log and the table's Sinks

	// Reason is the reason code of the one audit record that the refusal must leave; empty where there is nothing to decide
	// (a packet for which the kernel has no route).
	Reason string
}

// Attacks runs a table of attacks in one house.
type Attacks struct {
	House *House
	Net   *Net
	Sinks []*Sink
	Flags []string // of postern run
	Twin  []string // for attacks without their own
	Rows  []Attack
}

// Run runs each row as a subtest.
func (a *Attacks) Run(t *testing.T) {
	t.Helper()
	for _, row := range a.Rows {
		t.Run(row.Name, func(t *testing.T) { a.row(t, row) })
	}
}

func (a *Attacks) row(t *testing.T, row Attack) {
	t.Helper()
	sink := row.Sink
	if sink == nil {
		sink = a.sink
	}
	control, attempt, twin := nonce(), nonce(), nonce()
	if row.Control == nil {
		t.Fatal("an attack without a control proves nothing")
	}
	row.Control(t, control)
	if sink(control) == 0 {
		t.Fatal("the control did not reach the sink: this attack is not live, and the rest would prove nothing")
	}
	before := len(a.House.Audit(t))
	got := a.House.RunWith(t, a.Flags, fill(row.Attempt, attempt)...)
	if n := sink(attempt); n != 0 {
		t.Errorf("%d of the attempt arrived at the sink\nstdout: %s\nstderr: %s", n, got.Stdout, got.Stderr)
	}
	if row.Reason != "" {
		a.denied(t, a.House.Audit(t)[before:], row.Reason)
	}
	legitimate := row.Twin
	if len(legitimate) == 0 {
		legitimate = a.Twin
	}
	ok := a.House.RunWith(t, a.Flags, fill(legitimate, twin)...)
	if a.sink(twin) == 0 && sink(twin) == 0 {
		t.Errorf("the twin did not arrive: nothing gets through, so nothing was proved\nstdout: %s\nstderr: %s", ok.Stdout, ok.Stderr)
	}
}

func (a *Attacks) sink(nonce string) int {
	n := len(a.Net.Log.Holding(nonce))
	for _, s := range a.Sinks {
		n += s.Holding(nonce)
	}
	return n
}

// denied requires at least one refusal in the records, and that all of them give the reason. A refusal is a decision to deny, or the
// outcome of an allowed request that then could not be made.
func (a *Attacks) denied(t *testing.T, records []Record, reason string) {
	t.Helper()
	n := 0
	for _, r := range records {
		failed := r.Text("kind") == "outcome" && r.Text("reason") != "" && r.Text("reason") != "allowed"
		if r.Text("verdict") != "deny" && !failed {
			continue
		}
		n++
		if got := r.Text("reason"); got != reason {
			t.Errorf("the refusal gives the reason %q, want %q", got, reason)
		}
	}
	if n == 0 {
		t.Errorf("no audit record of the refusal, want one with the reason %q", reason)
	}
}

func nonce() string { return "n" + strings.ToLower(rand.Text()[:20]) }

func fill(command []string, nonce string) []string {
	out := slices.Clone(command)
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], "{nonce}", nonce)
	}
	return out
}

// Counter is a sink of a row's own: what arrived, by nonce. It is safe for concurrent use.
type Counter struct {
	mu sync.Mutex
	n  map[string]int
}

// Add counts an arrival.
func (c *Counter) Add(nonce string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[nonce]++
}

// Count is how many arrived.
func (c *Counter) Count(nonce string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[nonce]
}

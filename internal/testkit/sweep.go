package testkit

import (
	"crypto/rand"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"postern/internal/testkit/canary"
)

// Canaries is what a sweep looks for: the random parts of the run's secrets, in every spelling, down to pieces of 12 bytes.
type Canaries struct{ set *canary.Set }

// NewCanaries makes the search for the secrets of a run.
func NewCanaries(t T, secrets ...Secret) *Canaries {
	t.Helper()
	parts := map[string]string{}
	for _, s := range secrets {
		parts[s.Name] = s.Random
	}
	set, err := canary.New([]byte(rand.Text()), parts)
	return &Canaries{must(t, set, err)}
}

// File writes the search in a form without the secrets, for the probe inside the sandbox, and returns its text.
func (c *Canaries) File(t T) string {
	t.Helper()
	b, err := c.set.Marshal()
	return string(must(t, b, err))
}

// Text fails the test when a text holds what is searched for.
func (c *Canaries) Text(t *testing.T, where, text string) {
	t.Helper()
	c.Reader(t, where, strings.NewReader(text))
}

// Reader is Text for a stream.
func (c *Canaries) Reader(t *testing.T, where string, r io.Reader) {
	t.Helper()
	found, err := c.set.Scan(r)
	if err != nil {
		t.Errorf("sweep: %s: %v", where, err)
	}
	for _, f := range found {
		t.Errorf("sweep: %s holds %s", where, f)
	}
}

// Tree sweeps every regular file below a directory but the ones that may hold a secret.
func (c *Canaries) Tree(t *testing.T, root string, except ...string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, e := range except {
			if name == e {
				if d.IsDir() {
					return filepath.SkipDir
				}
				return nil
			}
		}
		if !d.Type().IsRegular() {
			return nil
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		files++
		c.Reader(t, name, f)
		c.Text(t, "the name of "+name, filepath.Base(name))
		return nil
	})
	if err != nil {
		t.Errorf("sweep: %v", err)
	}
	if files == 0 {
		t.Errorf("sweep: %s holds no file: nothing was swept", root)
	}
}

// Results sweeps what a run printed and every audit record of the house.
func (c *Canaries) Results(t *testing.T, h *House, results ...Result) {
	t.Helper()
	for _, r := range results {
		c.Text(t, "stdout", r.Stdout)
		c.Text(t, "stderr", r.Stderr)
	}
	for _, name := range h.AuditFiles(t) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Errorf("sweep: %v", err)
		}
		c.Text(t, name, string(b))
	}
}

// Finding is a line that the probe prints.
type Finding struct {
	Probe string         `json:"probe"`
	OK    bool           `json:"ok"` // what was tried succeeded
	Error string         `json:"error,omitempty"`
	Errno string         `json:"errno,omitempty"` // EPERM, ECONNREFUSED, …
	Data  map[string]any `json:"data,omitempty"`
}

// Text is a text of the finding's data, "" when it has none.
func (f Finding) Text(key string) string {
	s, _ := f.Data[key].(string)
	return s
}

// Findings reads what the probe printed; other lines are an error.
func Findings(t T, r Result) []Finding {
	t.Helper()
	var out []Finding
	for line := range strings.Lines(r.Stdout) {
		var f Finding
		if err := json.Unmarshal([]byte(line), &f); err != nil || f.Probe == "" {
			t.Fatalf("testkit: the probe printed %q\nstderr: %s", line, r.Stderr)
		}
		out = append(out, f)
	}
	if len(out) == 0 {
		t.Fatalf("testkit: the probe printed nothing; exit %d, stderr: %s", r.Exit, r.Stderr)
	}
	return out
}

// Probe runs the probe inside a sandbox, with the directory it lies in mounted, and reads its findings.
func (h *House) Probe(t T, args ...string) []Finding {
	t.Helper()
	return Findings(t, h.ProbeRun(t, nil, args...))
}

// ProbeRun is Probe with further flags of postern run.
func (h *House) ProbeRun(t T, flags []string, args ...string) Result {
	t.Helper()
	p := Probe(t)
	flags = append([]string{"--mount", filepath.Dir(p) + ":/mnt/probe"}, flags...)
	return h.RunWith(t, flags, append([]string{"/mnt/probe/" + filepath.Base(p)}, args...)...)
}

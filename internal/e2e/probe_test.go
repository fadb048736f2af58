package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"path/filepath"
	"testing"

	"postern/internal/testkit"
)

// probe runs several probe commands in one sandbox; each is a slice of arguments.
func (w *world) probe(t *testing.T, commands ...[]string) []testkit.Finding {
	t.Helper()
	var args []string
	for _, c := range commands {
		args = append(append(args, "--"), c...)
	}
	found := w.House.Probe(t, args[1:]...)
	if len(found) != len(commands) {
		t.Fatalf("%d findings for %d commands", len(found), len(commands))
	}
	return found
}

func describe(f testkit.Finding) string {
	b, _ := json.Marshal(f)
	return string(b[:min(len(b), 600)])
}

// probePath is where the probe is seen inside the sandbox.
func probePath(t *testing.T) string {
	t.Helper()
	return "/mnt/probe/" + filepath.Base(testkit.Probe(t))
}

// probeDir is where the probe lies on the host.
func probeDir(t *testing.T) string {
	t.Helper()
	return filepath.Dir(testkit.Probe(t))
}

// readUntil reads a stream until a word has come, at most 8 MiB.
func readUntil(t *testing.T, r io.Reader, word string) string {
	t.Helper()
	var text []byte
	for b := make([]byte, 4096); len(text) < 8<<20; {
		n, err := r.Read(b)
		text = append(text, b[:n]...)
		if bytes.Contains(text, []byte(word)) {
			return string(text)
		}
		if err != nil {
			t.Fatalf("%q did not come: %v; %q", word, err, text)
		}
	}
	t.Fatalf("%q did not come", word)
	return ""
}

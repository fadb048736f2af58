// Package testkit is a small internet on loopback, and the means to run postern against it.
//
// A Net has a certificate authority of its own and servers under real names: a forge, model providers, package registries, an echo
// server that reflects what it was sent in every way a secret could come back. All of them listen on 127.0.0.1, port 0, and are
// named to postern through `upstreams:`. Every request that arrives anywhere is in the Net's Log: that log is the sink that tests
// judge by, never a client's exit status. All secrets are random and new in each run.
//
// The kit is also what attacks are written in: an Attack has a control that must reach the sink, an attempt that must not, and a
// legitimate twin that must succeed (see Attack).
package testkit

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
)

// T is what the kit needs of a *testing.T, so that the demo can use the kit too.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
	Cleanup(func())
	Context() context.Context
}

// Secret is a credential made for one run: a public prefix of the provider's shape and a random part that must be seen nowhere.
type Secret struct {
	Name   string
	Prefix string
	Random string
}

// NewSecret makes a secret of about 40 random letters and digits.
func NewSecret(name, prefix string) Secret {
	return Secret{Name: name, Prefix: prefix, Random: (strings.ToLower(rand.Text()) + rand.Text())[:40]}
}

// Value is the whole credential.
func (s Secret) Value() string { return s.Prefix + s.Random }

// dir makes a directory that every user of the machine may walk through, which t.TempDir is not.
func dir(t T, name string) string {
	t.Helper()
	d, err := os.MkdirTemp("", "postern-test-"+name+"-")
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(d) })
	if err := os.Chmod(d, 0o755); err != nil {
		t.Fatalf("testkit: %v", err)
	}
	return d
}

func must[V any](t T, v V, err error) V {
	t.Helper()
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	return v
}

package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"postern/internal/sandbox/native"
)

func TestACommandThatTheSandboxDoesNotSeeIsPointedAt(t *testing.T) {
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(home, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(home, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(home, to), filepath.Join(home, name)); err != nil {
			t.Fatal(err)
		}
	}
	file("plain/bin/one")
	file("prefix/lib/node_modules/two/cli.js")
	link("prefix/lib/node_modules/two/cli.js", "prefix/bin/two")
	file("apps/three/three")
	link("apps/three/three", "links/three")
	t.Setenv("PATH", strings.Join([]string{home + "/plain/bin", home + "/prefix/bin", home + "/links"}, ":"))
	for name, want := range map[string]string{
		"one": "--mount HOME/plain/bin\n", "two": "--mount HOME/prefix\n", "three": "--mount HOME/links --mount HOME/apps/three\n", "four": "",
	} {
		got := unseen(home, &native.ExecError{Name: name, Code: 127})
		if want = strings.ReplaceAll(want, "HOME", home); !strings.HasSuffix(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := unseen(home, &native.ExecError{Name: "one", Code: 126}); got != "" {
		t.Errorf("what is there but cannot be executed: %q", got)
	}
}

func TestTheLoginProfileQuotesThePath(t *testing.T) {
	if got := loginProfile([]string{"A=b", "PATH=/it's here:/bin"}); got != "PATH='/it'\\''s here:/bin'\nexport PATH\n" {
		t.Errorf("%q", got)
	}
}

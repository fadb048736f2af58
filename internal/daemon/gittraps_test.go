package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"postern/internal/sandbox/native"
)

func TestTrapsForTheHostsGitAreTold(t *testing.T) {
	config := func(text string) func(string) error {
		return func(dir string) error {
			f, err := os.OpenFile(filepath.Join(dir, ".git", "config"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString(text)
			return errors.Join(err, f.Close())
		}
	}
	for name, c := range map[string]struct {
		change func(dir string) error
		want   string
	}{
		"a tracked branch": {config("[branch \"x\"]\n\tremote = origin\n\tmerge = refs/heads/x\n[remote \"o\"]\n\turl = https://example.com/x.git\n\tfetch = +refs/heads/*:refs/remotes/o/*\n"), ""},
		"fsmonitor":        {config("[core]\n\tfsmonitor = ./x\n"), "fsmonitor"},
		"one line":         {config("[core] hooksPath = ./x\n"), "hooksPath"},
		"a pager":          {config("[pager]\n\tmerge = ./x\n"), "[pager]"},
		"continued":        {config("[core]\n\tname = a\\\n"), "name"},
		"an include":       {config("[include]\n\tpath = ../x\n"), "include"},
		"a hook": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, ".git/hooks/post-checkout"), []byte("#!"), 0o755)
		}, "post-checkout"},
		"a changed hook": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, ".git/hooks/pre-push"), []byte("#!x"), 0o755)
		}, "pre-push"},
		"another gitdir": {func(dir string) error {
			if err := os.Rename(filepath.Join(dir, ".git"), filepath.Join(dir, "g")); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, ".git"), []byte("gitdir: g\x1b[2J\n"), 0o644)
		}, "gitdir"},
		"a pipe in place of the configuration": {func(dir string) error {
			_ = os.Remove(filepath.Join(dir, ".git/config"))
			return unix.Mkfifo(filepath.Join(dir, ".git/config"), 0o644)
		}, ""},
	} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, ".git", "hooks"), 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"config": "[core]\n\tbare = false\n\teditor = vi\n", "hooks/pre-push": "#!", "hooks/x.sample": "#!"} {
			if err := os.WriteFile(filepath.Join(dir, ".git", file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		mounts := []native.Mount{{Source: dir, Write: true}}
		before := gitTraps(mounts)
		if err := c.change(dir); err != nil {
			t.Fatal(err)
		}
		got := newTraps(before, gitTraps(mounts))
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) || strings.Contains(got, "\x1b") {
			t.Errorf("%s: %q", name, got)
		}
		mounts[0].Write = false
		if len(gitTraps(mounts)) != 0 {
			t.Errorf("%s: what cannot be written was looked at", name)
		}
	}
}

package config_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"postern/internal/operator/config"
)

var update = flag.Bool("update", false, "write what is said into testdata/mistakes.txtar")

// isolate gives the test a home, configuration and state of its own.
func isolate(t testing.TB) (home string) {
	t.Helper()
	home = t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("XDG_STATE_HOME", "")
	return home
}

// secretText is a made-up credential of a shape that services issue.
func secretText() string { return "sk-ant-" + rand.Text() + "7" + rand.Text() }

func TestMistakesAreSaidWithLineColumnAndHint(t *testing.T) {
	isolate(t)
	const archive = "testdata/mistakes.txtar"
	src, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	comment, files := readArchive(src)
	if len(files) < 2*60 {
		t.Fatalf("%d files", len(files))
	}
	dir := t.TempDir()
	t.Chdir(dir)
	secret := secretText()
	for i := 0; i+1 < len(files); i += 2 {
		name := strings.TrimSuffix(files[i].name, ".yaml")
		src := bytes.ReplaceAll(files[i].data, []byte("SECRET"), []byte(secret))
		if err := os.WriteFile(config.Name, src, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := config.Load(filepath.Join(dir, config.Name))
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		var e *config.Error
		if !errors.As(err, &e) || e.File == "" {
			t.Errorf("%s: not a config.Error: %v", name, err)
		}
		got := strings.ReplaceAll(err.Error(), dir, "DIR") + "\n"
		for _, never := range []string{secret, "hunter22", "a1b2c3d4e5f6", "BEGIN PRIVATE"} {
			if strings.Contains(got, never) {
				t.Errorf("%s: the error repeats the file", name)
			}
		}
		if *update {
			files[i+1].data = []byte(got)
		} else if want := string(files[i+1].data); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
	if *update {
		if err := os.WriteFile(filepath.Join(sourceDir(t), archive), writeArchive(comment, files), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

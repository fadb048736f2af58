package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"postern/internal/operator/config"
)

func approve(t testing.TB, path string) {
	t.Helper()
	f, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := config.DefaultTrust()
	if err != nil {
		t.Fatal(err)
	}
	if err := trust.Add(f); err != nil {
		t.Fatal(err)
	}
}

func TestAPolicyInAWorkingTreeIsUsedOnlyOnceApproved(t *testing.T) {
	home := isolate(t)
	dir := t.TempDir()
	path := filepath.Join(dir, config.Name)
	write(t, path, minimal)

	if _, err := config.Open("", dir); !errors.Is(err, config.ErrNotTrusted) || !strings.Contains(err.Error(), "postern policy trust") {
		t.Fatalf("before: %v", err)
	}
	if _, err := config.Open(path, dir); err != nil {
		t.Errorf("named explicitly: %v", err)
	}
	approve(t, path)
	if _, err := config.Open("", filepath.Join(dir)); err != nil {
		t.Errorf("approved: %v", err)
	}
	if err := config.CheckTrust(path); err != nil {
		t.Errorf("approved: %v", err)
	}
	write(t, path, minimal+"      - host: attacker.example.com\n")
	if err := config.CheckTrust(path); !errors.Is(err, config.ErrNotTrusted) || !strings.Contains(err.Error(), "changed since") {
		t.Errorf("changed: %v", err)
	}
	write(t, path, minimal)
	if err := config.CheckTrust(path); err != nil {
		t.Errorf("changed back: %v", err)
	}
	st, err := os.Stat(filepath.Join(home, ".local/state/postern/trusted"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the list: %v %v", st, err)
	}
}

func TestTheSameContentElsewhereIsNotTrusted(t *testing.T) {
	isolate(t)
	one, two := t.TempDir(), t.TempDir()
	write(t, filepath.Join(one, config.Name), minimal)
	write(t, filepath.Join(two, config.Name), minimal)
	approve(t, filepath.Join(one, config.Name))
	if err := config.CheckTrust(filepath.Join(two, config.Name)); !errors.Is(err, config.ErrNotTrusted) {
		t.Errorf("%v", err)
	}
}

func TestTrustCoversPresetsNamedByPath(t *testing.T) {
	isolate(t)
	dir := t.TempDir()
	path, mine := filepath.Join(dir, config.Name), filepath.Join(dir, "mine.yaml")
	write(t, path, "version: 1\nprofiles: {default: {use: [./mine.yaml]}}\n")
	const before = "name: mine\nsummary: s\nallow: [{host: a.example.com}]\n"
	write(t, mine, before)
	approve(t, path)
	f, err := config.Open("", dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Sources) != 2 {
		t.Errorf("sources: %v", f.Sources)
	}
	write(t, mine, strings.Replace(before, "a.example", "attacker.example", 1))
	if _, err := config.Open("", dir); !errors.Is(err, config.ErrNotTrusted) || !strings.Contains(err.Error(), "mine.yaml") {
		t.Errorf("%v", err)
	}
}

func TestTheConfigurationDirectoryIsTrusted(t *testing.T) {
	home := isolate(t)
	write(t, filepath.Join(home, ".config/postern", config.Name), "version: 1\nprofiles: {default: {use: [mine]}}\n")
	write(t, filepath.Join(home, ".config/postern/presets/mine.yaml"), "name: mine\nsummary: s\nallow: [{host: a.example.com}]\n")
	f, err := config.Open("", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Profile("default")
	if err != nil || len(c.Rules) != 1 {
		t.Errorf("%v %v", c, err)
	}
}

func TestAPresetOfTheUsersCannotReplaceAnEmbeddedOne(t *testing.T) {
	home := isolate(t)
	write(t, filepath.Join(home, ".config/postern/presets/npm.yaml"), "name: npm\nsummary: s\nallow: [{host: a.example.com}]\n")
	_, err := config.Parse("/x/postern.yaml", []byte("version: 1\nprofiles: {default: {use: [npm]}}\n"))
	if err == nil || !strings.Contains(err.Error(), "and so have you") {
		t.Errorf("%v", err)
	}
}

func TestFindGoesUpwardAndThenToTheConfigurationDirectory(t *testing.T) {
	home := isolate(t)
	top := t.TempDir()
	deep := filepath.Join(top, "a/b/c")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Find(deep); !errors.Is(err, config.ErrNotFound) {
		t.Errorf("nothing: %v", err)
	}
	own := filepath.Join(home, ".config/postern", config.Name)
	write(t, own, minimal)
	if got, err := config.Find(deep); got != own {
		t.Errorf("own: %s %v", got, err)
	}
	for _, path := range []string{filepath.Join(top, config.Name), filepath.Join(top, "a/b", config.Name)} {
		write(t, path, minimal)
		if got, err := config.Find(deep); got != path {
			t.Errorf("%s %v, want %s", got, err, path)
		}
	}
	// What is nearest counts even when it cannot be used: falling through to a wider policy would be a surprise.
	dangling := filepath.Join(deep, config.Name)
	if err := os.Symlink("/nonexistent", dangling); err != nil {
		t.Fatal(err)
	}
	if got, err := config.Find(deep); got != dangling {
		t.Errorf("%s %v, want %s", got, err, dangling)
	}
}

func TestADamagedListTrustsNothing(t *testing.T) {
	home := isolate(t)
	dir := t.TempDir()
	path := filepath.Join(dir, config.Name)
	write(t, path, minimal)
	approve(t, path)
	list := filepath.Join(home, ".local/state/postern/trusted")
	good, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(good); i += 7 {
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x15
		write(t, list, string(bad))
		if err := config.CheckTrust(path); err == nil {
			t.Errorf("trusted with byte %d of the list changed", i)
		}
	}
	write(t, list, string(good))
	if err := os.Chmod(list, 0o622); err != nil {
		t.Fatal(err)
	}
	if err := config.CheckTrust(path); err == nil {
		t.Error("a list that others can write is believed")
	}
}

func TestApprovalsAtOnceAreAllKept(t *testing.T) {
	isolate(t)
	top := t.TempDir()
	var wg sync.WaitGroup
	for i := range 16 {
		path := filepath.Join(top, fmt.Sprint(i), config.Name)
		write(t, path, minimal)
		f, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			trust, err := config.DefaultTrust()
			if err == nil {
				err = trust.Add(f)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range 16 {
		if err := config.CheckTrust(filepath.Join(top, fmt.Sprint(i), config.Name)); err != nil {
			t.Error(err)
		}
	}
}

func TestWriteNewFileNeverOverwrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := config.WriteNewFile(path, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := config.WriteNewFile(path, []byte("two")); !errors.Is(err, os.ErrExist) {
		t.Errorf("%v", err)
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "one" {
		t.Errorf("%q %v", got, err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v %v", entries, err)
	}
}

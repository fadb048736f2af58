package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"postern/internal/operator/config"
	"postern/internal/trusted/audit"
)

func TestLogIsTheOneThatThePolicyNames(t *testing.T) {
	d := newDiary(t)
	denied := d.day()
	dir, _ := workingTree(t)
	name := filepath.Join(dir, config.Name)
	put(t, name, "version: 1\naudit: {dir: "+d.dir+"}\nprofiles: {default: {}}\n", 0o600)
	below := filepath.Join(dir, "src", "deep")
	if err := os.MkdirAll(below, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(below)
	byDefault, err := audit.DefaultDir(os.Getenv, os.Geteuid())
	if err != nil {
		t.Fatal(err)
	}

	var errs bytes.Buffer
	if got, err := (place{}).find(&errs); err != nil || got != byDefault || !strings.Contains(errs.String(), "not trusted") || !strings.Contains(errs.String(), byDefault) {
		t.Errorf("a policy that is not trusted: %s, %v; said %q", got, err, errs.String())
	}
	for _, args := range [][]string{{"log"}, {"explain", denied}, {"audit", "verify"}} {
		if out, errs, code := spoken(append(args, "--config", name)...); code != 0 || errs != "" || out == "" {
			t.Errorf("%v --config: exit %d\n%s%s", args, code, out, errs)
		}
	}

	f, err := config.Load(name)
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
	for _, c := range []struct {
		args []string
		want string
	}{{[]string{"log", "--denied"}, denied}, {[]string{"explain", denied}, denied + " was refused"}, {[]string{"audit", "verify"}, "intact"}} {
		if out, errs, code := spoken(c.args...); code != 0 || errs != "" || !strings.Contains(out, c.want) {
			t.Errorf("%v: exit %d\n%s%s", c.args, code, out, errs)
		}
	}

	errs.Reset()
	if got, err := (place{dir: "/elsewhere"}).find(&errs); got != "/elsewhere" || err != nil || errs.Len() > 0 {
		t.Errorf("--dir: %s, %v, %q", got, err, errs.String())
	}
	put(t, name, "version: 1\nprofiles: {default: {}}\n", 0o600)
	if f, err = config.Load(name); err != nil {
		t.Fatal(err)
	}
	if err := trust.Add(f); err != nil {
		t.Fatal(err)
	}
	if got, err := (place{}).find(&errs); got != byDefault || err != nil || errs.Len() > 0 {
		t.Errorf("a policy without audit: %s, %v, %q", got, err, errs.String())
	}
	if _, err := (place{config: "none.yaml"}).find(&errs); err == nil {
		t.Error("--config names no file, and nothing is said")
	}
}

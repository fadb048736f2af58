package broker

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func source(t testing.TB, path string, keys ...string) *File {
	t.Helper()
	f, err := NewFile(path, keys...)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFileIsReadWhole(t *testing.T) {
	path, value := filepath.Join(t.TempDir(), "key"), token(t)
	write(t, path, value+"\n")
	b, _ := newBroker(t, APIKey, source(t, path))
	if _, err := b.Ready(t.Context(), permit(t, nil)); err != nil {
		t.Fatal(err)
	}
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if got, err := source(t, link).Load(t.Context()); err != nil || string(got) != value+"\n" {
		t.Errorf("through a link: %v", err)
	}
}

func TestFilesThatAreNotPrivateAreRefused(t *testing.T) {
	dir, value := t.TempDir(), token(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, mode := range map[string]os.FileMode{"group": 0o640, "others": 0o604, "group writes": 0o620, "executable by all": 0o611} {
		write(t, path(name), value)
		if err := os.Chmod(path(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(t, path("huge"), strings.Repeat("x", maxSource+1))
	if err := syscall.Mkfifo(path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path("directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path("missing"), path("dangling")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"group", "others", "group writes", "executable by all", "huge", "pipe", "directory", "missing", "dangling"} {
		_, err := source(t, path(name)).Load(t.Context())
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		if strings.Contains(err.Error(), value) || !strings.Contains(err.Error(), path(name)) {
			t.Errorf("%s: the error tells the value, or not the file: %v", name, err)
		}
	}
	if _, err := source(t, "/dev/null").Load(t.Context()); err == nil {
		t.Error("a device: accepted")
	}
	if _, err := NewFile("relative/path"); err == nil {
		t.Error("a relative path: accepted")
	}
}

func TestFileOfAnotherUserIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	write(t, path, token(t))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := private(path, info); err != nil {
		t.Errorf("our own file: %v", err)
	}
	if err := private(path, owned{info, 54321}); err == nil {
		t.Error("a stranger's file: accepted")
	}
	if err := private(path, owned{info, 0}); err != nil {
		t.Errorf("root's file: %v", err)
	}
}

// owned is a file's state under another owner.
type owned struct {
	os.FileInfo
	uid uint32
}

func (o owned) Sys() any {
	st := *o.FileInfo.Sys().(*syscall.Stat_t)
	st.Uid = o.uid
	return &st
}

func TestRotatedFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	write(t, path, token(t))
	b, clk := newBroker(t, APIKey, source(t, path))
	receipt := func() string {
		t.Helper()
		r, err := b.Ready(t.Context(), permit(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		return r.Fingerprint
	}
	first := receipt()
	clk.add(time.Second)
	if receipt() != first {
		t.Error("another receipt for the same file")
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, rotate := range map[string]func(){
		"renamed over": func() {
			write(t, path+".new", token(t))
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		},
		"written in place with the old time": func() {
			write(t, path, token(t))
			if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		rotate()
		clk.add(statGap)
		next := receipt()
		if next == first {
			t.Errorf("%s: the old value is used", what)
		}
		first = next
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	clk.add(statGap)
	if _, err := b.Ready(t.Context(), permit(t, nil)); err == nil {
		t.Error("the file is gone, its value is used")
	}
}

func TestValueInsideJSON(t *testing.T) {
	path, value := filepath.Join(t.TempDir(), "credentials.json"), token(t)
	content, err := json.Marshal(map[string]any{"oauth": map[string]any{"access.token": value, "n": 1, "o": map[string]any{}}, "list": []string{value}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, string(content))
	if got, err := source(t, path, "oauth", "access.token").Load(t.Context()); err != nil || string(got) != value {
		t.Errorf("the value: %v", err)
	}
	for _, keys := range [][]string{{"oauth"}, {"oauth", "n"}, {"oauth", "o"}, {"oauth", "missing"}, {"list", "0"}, {"oauth", "access.token", "x"}, {""}} {
		_, err := source(t, path, keys...).Load(t.Context())
		if err == nil {
			t.Errorf("%v: accepted", keys)
		} else if strings.Contains(err.Error(), value) {
			t.Errorf("%v: the error tells the value", keys)
		}
	}
	write(t, path, "{"+value)
	if _, err := source(t, path, "a").Load(t.Context()); err == nil || strings.Contains(err.Error(), value) {
		t.Error("broken JSON: accepted, or quoted")
	}
}

func shell(t testing.TB, script string, more ...string) CommandConfig {
	t.Helper()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Fatal("sh is needed by this test: ", err)
	}
	return CommandConfig{Argv: append([]string{"sh", "-c", script, "sh"}, more...)}
}

func command(t testing.TB, c CommandConfig) *Command {
	t.Helper()
	k, err := NewCommand(c)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestCommandPrintsTheValue(t *testing.T) {
	value := token(t)
	got, err := command(t, shell(t, `echo "$1"; echo noise >&2`, value)).Load(t.Context())
	if err != nil || string(got) != value+"\n" {
		t.Errorf("output: %v", err)
	}
}

func TestCommandRunsInACleanPlace(t *testing.T) {
	t.Setenv("POSTERN_TEST_SECRET", "x")
	t.Setenv("LD_PRELOAD", "")
	got, err := command(t, shell(t, `pwd; cat; env | grep -c -e POSTERN_TEST -e LD_PRELOAD; test -n "$PATH" && echo path; cut -d' ' -f5 /proc/$$/stat | grep -qx $$ && echo group`)).Load(t.Context())
	if err != nil || string(got) != "/\n0\npath\ngroup\n" {
		t.Errorf("%q, %v", got, err)
	}
	own := shell(t, `env | grep -c ^A=b$`)
	own.Env = []string{"A=b"}
	if got, err := command(t, own).Load(t.Context()); err != nil || string(got) != "1\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// A sandbox that can write what runs on the host has the host.
func TestNothingThatASandboxCanWriteIsRun(t *testing.T) {
	script := func(path, word string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho "+word+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	work, bin := t.TempDir(), t.TempDir()
	script(filepath.Join(work, "tool"), "sandbox")
	script(filepath.Join(bin, "tool"), "host")
	for name, to := range map[string]string{"direct": filepath.Join(work, "tool"), "chain": filepath.Join(work, "back"), "dir": work, "good": "tool"} {
		if err := os.Symlink(to, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(bin, "tool"), filepath.Join(work, "back")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		argv []string
		want string // "": refused
	}{
		{work + ":" + bin, []string{"tool"}, "host\n"},
		{bin + "/dir:" + bin, []string{"tool"}, "host\n"},
		{".::bin:" + bin, []string{"good"}, "host\n"},
		{work, []string{"tool"}, ""},
		{bin, []string{"direct"}, ""},
		{bin, []string{"chain"}, ""}, // ends outside, by way of a link that a sandbox can turn
		{bin, []string{filepath.Join(work, "tool")}, ""},
		{bin, []string{filepath.Join(bin, "dir", "tool")}, ""},
		{bin, []string{"tool", filepath.Join(work, "script.py")}, ""},
		{work + ":" + bin, []string{"/bin/sh", "-c", "tool"}, "host\n"}, // what the program itself runs
		{bin, []string{filepath.Join(bin, "tool"), work + "2"}, "host\n"},
	} {
		k := command(t, CommandConfig{Argv: c.argv, Env: []string{"PATH=" + c.path}, Avoid: []string{work}})
		got, err := k.Load(t.Context())
		if string(got) != c.want || (err != nil) != (c.want == "") {
			t.Errorf("PATH=%s %v: %q, %v", c.path, c.argv, got, err)
		}
	}
	control := command(t, CommandConfig{Argv: []string{"tool"}, Env: []string{"PATH=" + work}})
	if got, err := control.Load(t.Context()); err != nil || string(got) != "sandbox\n" {
		t.Errorf("the arm without protection: %q, %v", got, err)
	}
}

func TestFailedCommandTellsItsComplaintOnly(t *testing.T) {
	value := token(t)
	_, err := command(t, shell(t, `echo "$1"; echo "vault is locked, last value $1" >&2; echo second line >&2; exit 3`, value)).Load(t.Context())
	if err == nil || !strings.Contains(err.Error(), "vault is locked") || !strings.Contains(err.Error(), "exit status 3") {
		t.Fatal(err)
	}
	if strings.Contains(err.Error(), value) || strings.Contains(err.Error(), "second") {
		t.Error("the error tells the value, or more than a line")
	}
	if _, err = command(t, shell(t, `head -c 70000 /dev/zero`)).Load(t.Context()); err == nil || !strings.Contains(err.Error(), "prints more than") {
		t.Errorf("endless output: %v", err)
	}
	for _, argv := range [][]string{nil, {""}, {"./program"}, {"bin/program"}} {
		if _, err := NewCommand(CommandConfig{Argv: argv}); err == nil {
			t.Errorf("%v: accepted", argv)
		}
	}
	for _, program := range []string{"/nonexistent/program", "no-such-program-anywhere", "/etc/passwd"} {
		if _, err := command(t, CommandConfig{Argv: []string{program}}).Load(t.Context()); err == nil || !strings.Contains(err.Error(), filepath.Base(program)) {
			t.Errorf("%s: %v", program, err)
		}
	}
}

func TestSlowCommandIsKilledWithItsGroup(t *testing.T) {
	c := shell(t, `sleep 600 & echo "$!" >&2; wait`)
	c.Time = 300 * time.Millisecond
	_, err := command(t, c).Load(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no answer within") {
		t.Fatalf("slow command: %v", err)
	}
	child := err.Error()[strings.LastIndex(err.Error(), " ")+1:]
	deadline := time.Now().Add(10 * time.Second)
	for { // until init has reaped it, or it waits for that
		stat, err := os.ReadFile("/proc/" + child + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("child %s outlives its group", child)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := command(t, shell(t, `sleep 600`)).Load(ctx); err == nil {
		t.Error("a cancelled fetch went on")
	}
}

func TestCommandIsRunAgainAfterItsTime(t *testing.T) {
	c := command(t, shell(t, `echo x`))
	now := time.Now()
	for age, want := range map[time.Duration]bool{0: false, commandTTL - 1: false, commandTTL: true, -time.Second: true} {
		if c.Changed(now, now.Add(age)) != want {
			t.Errorf("after %v: %v", age, !want)
		}
	}
}

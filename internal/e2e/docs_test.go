package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"postern/internal/testkit"
)

const (
	leastBlocks = 6 // console blocks that run; fewer means that they were not found
	mostSkipped = 2 // blocks that say why they cannot run
)

// TestTheDocumentationDoesWhatItSays types every console block of README.md and docs/ in a fresh home, page by page, and compares what
// is printed. A block that cannot run says why: ```console no-run REASON.
func TestTheDocumentationDoesWhatItSays(t *testing.T) {
	ran, skipped := 0, 0
	for _, page := range pages(t) {
		var todo []fence
		for _, f := range fences(t, page) {
			reason, isSkipped := strings.CutPrefix(f.info, "console no-run")
			switch {
			case isSkipped:
				skipped++
				if len(strings.TrimSpace(reason)) < 10 {
					t.Errorf("%s:%d: no-run without a reason", page, f.line)
				}
			case f.info == "console":
				ran++
				todo = append(todo, f)
			case strings.HasPrefix(f.info, "console"):
				t.Errorf("%s:%d: %q is neither run nor no-run", page, f.line, f.info)
			case strings.HasPrefix(f.info, "yaml file="):
				todo = append(todo, f)
			}
		}
		if len(todo) > 0 {
			t.Run(page, func(t *testing.T) { typed(t, todo) })
		}
	}
	if ran < leastBlocks || skipped > mostSkipped {
		t.Errorf("%d blocks ran, want at least %d; %d were not run, want at most %d", ran, leastBlocks, skipped, mostSkipped)
	}
}

// fence is one block of code of a page.
type fence struct {
	line int
	info string // what stands after the three backticks
	text string
}

const clone = "../.."

// pages are README.md and everything in docs.
func pages(t *testing.T) []string {
	t.Helper()
	list := []string{"README.md"}
	err := filepath.WalkDir(filepath.Join(clone, "docs"), func(name string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(name, ".md") {
			list = append(list, strings.TrimPrefix(name, clone+"/"))
		}
		return err
	})
	if err != nil || len(list) < 8 {
		t.Fatalf("pages: %v, %v", list, err)
	}
	return list
}

func fences(t *testing.T, page string) (list []fence) {
	t.Helper()
	src, err := os.ReadFile(filepath.Join(clone, page))
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	n := 0
	for line := range strings.Lines(string(src)) {
		n++
		info, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && !inside:
			list = append(list, fence{line: n, info: strings.TrimSpace(info)})
			inside = true
		case isFence:
			inside = false
		case inside:
			list[len(list)-1].text += line
		}
	}
	return list
}

// reader is somebody who follows a page: a fresh home, a clone's examples, and a service on the port that the page names.
type reader struct {
	house   *testkit.House
	path    string // of a directory with postern in it
	service string // what 127.0.0.1:8000 is in this run
	event   string // what EVENT stands for
}

func typed(t *testing.T, blocks []fence) {
	n := testkit.NewNet(t)
	service := n.ServePlain("hello.example", testkit.Echo())
	files := map[string]string{}
	examples, err := filepath.Glob(clone + "/examples/*/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("examples: %v, %v", examples, err)
	}
	for _, name := range examples {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(name, clone+"/")] = string(text)
	}
	r := &reader{house: n.NewHouse(t, testkit.Config{Profile: "allow: []", Files: files, Env: []string{"TZ=UTC"}}), path: t.TempDir(), service: service.Addr}
	if err := os.Remove(r.house.Config); err != nil { // a new user has none
		t.Fatal(err)
	}
	for _, dir := range []string{r.path, filepath.Dir(r.path)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(testkit.Binary(t), filepath.Join(r.path, "postern")); err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		if name, ok := strings.CutPrefix(b.info, "yaml file="); ok {
			file(t, r.house, filepath.Join(r.house.Work, name), r.here(b.text), 0o600)
			continue
		}
		commands := strings.Split("\n"+b.text, "\n$ ")
		if len(commands) < 2 || commands[0] != "" {
			t.Errorf("line %d: a console block begins with a command", b.line)
			continue
		}
		for _, c := range commands[1:] {
			command, want, _ := strings.Cut(c, "\n")
			r.try(t, command, want)
		}
	}
}

func (r *reader) here(text string) string {
	return strings.ReplaceAll(text, "127.0.0.1:8000", r.service)
}

// try runs one command and compares what it printed on both of its outputs.
func (r *reader) try(t *testing.T, command, want string) {
	t.Helper()
	known := strings.Contains(command, "EVENT")
	script := strings.ReplaceAll(r.here(command), "EVENT", r.event)
	cmd := r.house.Command(within(t, 2*time.Minute))
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path, cmd.Args = bash, []string{"bash", "-c", script}
	for i, kv := range cmd.Env {
		if rest, ok := strings.CutPrefix(kv, "PATH="); ok {
			cmd.Env[i] = "PATH=" + r.path + ":" + rest
		}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	got := ofThisMachine().ReplaceAllString(out.String(), "")
	event := ""
	if known {
		event = r.event
	}
	m := pattern(want, event).FindStringSubmatch(got)
	if m == nil {
		t.Errorf("$ %s\n%s(%v)\nthe page says:\n%s", command, got, err, want)
		return
	}
	if len(m) > 1 {
		r.event = m[1]
	}
}

// ofThisMachine are announcements that depend on the machine: they end with the remedy.
func ofThisMachine() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^postern: .*: see postern doctor\n`)
}

// pattern matches what a page says is printed. EVENT and SESSION are ids, times are any time, several blanks are any number of them,
// … is anything within a line, and a line of its own any number of lines. The first submatch is EVENT, unless it is known.
func pattern(want, event string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`^`)
	group := event == "" && strings.Contains(want, "EVENT")
	for line := range strings.Lines(strings.TrimSuffix(want, "\n") + "\n") {
		line = strings.TrimSuffix(line, "\n")
		if line == "…" {
			b.WriteString(`(?:.*\n)*?`)
			continue
		}
		if line == "" && want == "" {
			continue
		}
		line = regexp.QuoteMeta(line)
		line = regexp.MustCompile(`\d\d:\d\d:\d\d`).ReplaceAllString(line, `\d\d:\d\d:\d\d`)
		line = regexp.MustCompile(`\d{4}-\d\d-\d\d`).ReplaceAllString(line, `\d{4}-\d\d-\d\d`)
		line = regexp.MustCompile(`  +`).ReplaceAllString(line, ` +`)
		line = strings.NewReplacer("…", `.*`, "SESSION", `s[0-9a-z]{5,16}`).Replace(line)
		if event != "" {
			line = strings.ReplaceAll(line, "EVENT", event)
		} else if group && strings.Contains(line, "EVENT") {
			line = strings.Replace(line, "EVENT", `(e[0-9a-z]{16})`, 1)
			group = false
		}
		b.WriteString(strings.ReplaceAll(line, "EVENT", `e[0-9a-z]{16}`) + `\n`)
	}
	return regexp.MustCompile(b.String() + `$`)
}

func TestAPageThatLiesIsFoundOut(t *testing.T) {
	const id = "e0123456789abcdef"
	for _, c := range []struct {
		want, event, got string
		fits             bool
	}{
		{"a\n", "", "a\n", true}, {"a\n", "", "b\n", false}, {"a\n", "", "a\nb\n", false}, {"a\nb\n", "", "a\n", false}, {"", "", "", true}, {"", "", "a\n", false},
		{"a\n…\n", "", "a\nb\nc\n", true}, {"…\nc\n", "", "a\nc\n", true}, {"…\nc\n", "", "a\n", false}, {"a … c\n", "", "a b c\n", true}, {"a … c\n", "", "a b\nc\n", false},
		{"at 14:03:07 on 2026-11-21\n", "", "at 09:00:00 on 2027-01-01\n", true}, {"at 14:03:07\n", "", "at noon\n", false},
		{"x EVENT\n", "", "x " + id + "\n", true}, {"x EVENT\n", "", "x e0\n", false}, {"x EVENT\n", id, "x " + id + "\n", true}, {"x EVENT\n", id, "x e1123456789abcdef\n", false},
		{"SESSION  b\n", "", "s01234     b\n", true}, {"(a|b).\n", "", "a.\n", false}, {"(a|b).\n", "", "(a|b).\n", true},
	} {
		if got := pattern(c.want, c.event).MatchString(c.got); got != c.fits {
			t.Errorf("page %q, printed %q: fits %t, want %t", c.want, c.got, got, c.fits)
		}
	}
}

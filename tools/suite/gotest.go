package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// event is one line of `go test -json` (cmd/internal/test2json).
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of build output
	Elapsed                       float64
}

// result is what became of one test; the empty verdict means that it never ended.
type result struct {
	verdict string
	output  strings.Builder
	parent  bool // has subtests, which are counted in its place
	below   bool // a subtest failed
}

// unit is one package under test.
type unit struct {
	tests map[string]*result
	order []string
	text  strings.Builder // output of no test in particular
}

// test runs `go test -json` and counts every test that has no subtests.
func (s *suite) test(ctx context.Context, args []string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 10 * time.Second
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	before := s.failed
	s.read(pipe)
	if err := cmd.Wait(); err != nil && s.failed == before {
		s.fail("go test " + strings.Join(args, " ") + ": " + err.Error())
	}
	return nil
}

func (s *suite) read(r io.Reader) {
	units := map[string]*unit{}
	builds := map[string]*strings.Builder{}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(s.out, lines.Text())
			continue
		}
		if e.Package == "" {
			if e.Action == "build-output" {
				if builds[e.ImportPath] == nil {
					builds[e.ImportPath] = &strings.Builder{}
				}
				builds[e.ImportPath].WriteString(e.Output)
				fmt.Fprint(s.out, "        "+e.Output)
			}
			continue
		}
		u := units[e.Package]
		if u == nil {
			u = &unit{tests: map[string]*result{}}
			units[e.Package] = u
		}
		u.take(e)
		if e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") {
			s.count(e, u)
			delete(units, e.Package)
		}
	}
	for name := range units {
		s.fail(name + ": its tests never ended")
	}
}

func (u *unit) take(e event) {
	if e.Test == "" {
		if e.Action == "output" {
			u.text.WriteString(e.Output)
		}
		return
	}
	r := u.tests[e.Test]
	if r == nil {
		r = &result{}
		u.tests[e.Test] = r
		u.order = append(u.order, e.Test)
	}
	switch e.Action {
	case "output":
		r.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		r.verdict = e.Action
	}
	for name := e.Test; ; {
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return
		}
		name = name[:i]
		if p := u.tests[name]; p != nil {
			p.parent = true
			p.below = p.below || e.Action == "fail" || e.Action == "skip"
		}
	}
}

// count closes a package: one line when all is well, the output of what failed when not.
func (s *suite) count(e event, u *unit) {
	passed, before := 0, s.failed
	short := strings.TrimPrefix(e.Package, "postern/")
	for _, name := range u.order {
		r := u.tests[name]
		switch {
		case r.verdict == "pass":
			if !r.parent {
				passed++
			}
		case r.below: // its subtests say it
		default:
			what := map[string]string{"fail": "", "skip": " was skipped", "": " did not end"}[r.verdict]
			s.fail(short + "." + name + what)
			fmt.Fprintf(s.out, "  FAIL  %s.%s%s\n%s\n", short, name, what, indent(r.output.String()))
		}
	}
	s.passed += passed
	if e.Action == "fail" && s.failed == before {
		s.fail(short)
		fmt.Fprintf(s.out, "  FAIL  %s\n%s\n", short, indent(u.text.String()))
	}
	if s.failed == before && passed > 0 {
		fmt.Fprintf(s.out, "  pass  %-32s %4d tests %7.1fs\n", short, passed, e.Elapsed)
	}
}

// fuzz runs every fuzz target for a moment, one at a time: the engine uses all cores.
func (s *suite) fuzz(ctx context.Context) error {
	list, err := output(ctx, "go", "test", "-list", "^Fuzz", "./...")
	if err != nil {
		s.fail("go test -list: a package does not build")
		return nil
	}
	var names []string
	end := regexp.MustCompile(`^ok\s+(\S+)`)
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "Fuzz") {
			names = append(names, line)
			continue
		}
		if m := end.FindStringSubmatch(line); m != nil {
			for _, name := range names {
				s.command(ctx, fmt.Sprintf("%s in %s for %s", name, strings.TrimPrefix(m[1], "postern/"), s.fuzztime),
					"go", "test", "-run", "^$", "-fuzz", "^"+name+"$", "-fuzztime", s.fuzztime, m[1])
			}
			names = nil
		}
	}
	return nil
}

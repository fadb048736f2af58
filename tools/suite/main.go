// Command suite runs postern's checks and tests and says at the end how many passed and how many failed.
//
//	suite [-staticcheck FILE] STEP…    steps: check unit race e2e fuzz
//
// It runs in the repository's root. A test that is skipped has failed: a missing tool or privilege is an error here. FUZZTIME sets
// how long each fuzz target runs (3s).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// suite is one run: where it writes and what it has counted.
type suite struct {
	out         io.Writer
	staticcheck string
	fuzztime    string
	tally
}

// tally counts results; every name in failures is one of failed.
type tally struct {
	passed, failed int
	failures       []string
}

func (t *tally) pass()            { t.passed++ }
func (t *tally) fail(name string) { t.failed++; t.failures = append(t.failures, name) }

func main() {
	staticcheck := flag.String("staticcheck", "", "the staticcheck program; empty: not run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &suite{out: os.Stdout, staticcheck: *staticcheck, fuzztime: "3s"}
	if d := os.Getenv("FUZZTIME"); d != "" {
		s.fuzztime = d
	}
	if err := s.run(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(2)
	}
	if s.failed > 0 {
		os.Exit(1)
	}
}

// run does the steps in order, all of them whatever fails, and prints the closing line.
func (s *suite) run(ctx context.Context, steps []string) error {
	if len(steps) == 0 {
		return errors.New("name at least one step: check, unit, race, e2e, fuzz")
	}
	begin := time.Now()
	for _, name := range steps {
		start := time.Now()
		fmt.Fprintf(s.out, "== %s\n", name)
		if err := s.step(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(s.out, "== %s took %s\n\n", name, time.Since(start).Round(100*time.Millisecond))
	}
	for _, name := range s.failures {
		fmt.Fprintln(s.out, "FAILED", name)
	}
	fmt.Fprintf(s.out, "in %s\n%d passed, %d failed\n", time.Since(begin).Round(time.Second), s.passed, s.failed)
	if s.passed+s.failed == 0 {
		return errors.New("nothing was run")
	}
	return ctx.Err()
}

func (s *suite) step(ctx context.Context, name string) error {
	const e2e, arch = "postern/internal/e2e", "postern/internal/archtest"
	switch name {
	case "check":
		return s.check(ctx)
	case "unit", "race":
		pkgs, err := packages(ctx, func(p string) bool { return p != arch && !within(p, e2e) })
		if err != nil {
			return err
		}
		args := []string{"-timeout", "10m"}
		if name == "race" {
			args = append(args, "-race")
		}
		return s.test(ctx, append(args, pkgs...))
	case "e2e":
		return s.test(ctx, []string{"-count=1", "-timeout", "20m", e2e + "/..."})
	case "fuzz":
		return s.fuzz(ctx)
	}
	return errors.New("no such step")
}

// check runs what reads the source and runs none of it.
func (s *suite) check(ctx context.Context) error {
	files, err := output(ctx, "git", "ls-files", "*.go")
	if err != nil {
		return err
	}
	var present []string
	for _, f := range strings.Fields(files) {
		if _, err := os.Stat(f); err == nil {
			present = append(present, f)
		}
	}
	unformatted, err := output(ctx, "gofmt", append([]string{"-l"}, present...)...)
	s.verdict("gofmt", unformatted, err != nil || unformatted != "")
	s.command(ctx, "go vet", "go", "vet", "./...")
	if s.staticcheck != "" {
		s.command(ctx, "staticcheck", s.staticcheck, "./...")
	}
	s.command(ctx, "go build without cgo", "env", "CGO_ENABLED=0", "go", "build", "-o", os.DevNull, "./cmd/postern")
	return s.test(ctx, []string{"postern/internal/archtest"})
}

// command is a check that fails by its exit status.
func (s *suite) command(ctx context.Context, title, name string, args ...string) {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	s.verdict(title, string(out), err != nil && !outOfTime(string(out)))
}

// outOfTime recognises the fuzzing engine's own end of -fuzztime, which it reports as a failure when a worker was in the middle of an
// input. A failure that an input caused always names the file that holds the input.
func outOfTime(out string) bool {
	return strings.Contains(out, "now fuzzing with") && strings.Contains(out, "    context deadline exceeded\n") && !strings.Contains(out, "Failing input written")
}

func (s *suite) verdict(title, text string, failed bool) {
	if !failed {
		s.pass()
		fmt.Fprintf(s.out, "  pass  %s\n", title)
		return
	}
	s.fail(title)
	fmt.Fprintf(s.out, "  FAIL  %s\n%s\n", title, indent(text))
}

func packages(ctx context.Context, want func(string) bool) ([]string, error) {
	list, err := output(ctx, "go", "list", "./...")
	if err != nil {
		return nil, err
	}
	var pkgs []string
	for _, p := range strings.Fields(list) {
		if want(p) {
			pkgs = append(pkgs, p)
		}
	}
	return pkgs, nil
}

func within(p, parent string) bool { return p == parent || strings.HasPrefix(p, parent+"/") }

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args[:min(2, len(args))], " "), err)
	}
	return string(out), nil
}

func indent(text string) string {
	return "        " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n        ")
}

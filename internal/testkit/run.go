package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// User is who runs postern.
type User struct {
	Name     string
	UID, GID int
}

// Users are those whom every end-to-end test runs as: an ordinary user always, root too when the tests run as root.
func Users() []User {
	if os.Getuid() != 0 {
		return []User{{"user", os.Getuid(), os.Getgid()}}
	}
	return []User{{"root", 0, 0}, {"user", 65533, 65533}}
}

// Ordinary is the ordinary user of Users.
func Ordinary() User {
	all := Users()
	return all[len(all)-1]
}

// Credential is a line under credentials:, its value in a file of mode 0600 that belongs to the user.
type Credential struct {
	Secret Secret
	Kind   string // api-key, basic, …; "": api-key
}

// Config is what a postern.yaml of a test says besides upstreams.
type Config struct {
	User        User
	Credentials []Credential
	Profile     string            // the body of profiles.default, in YAML, indented by nothing
	Files       map[string]string // files of the working directory
	Env         []string          // of postern itself, besides PATH, HOME and the XDG directories
	Binary      string            // "": Binary(t)
}

// House is a user's home with a configuration in it: where postern is run from.
type House struct {
	User   User
	Home   string
	Work   string // the working directory
	Config string // postern.yaml, outside the working directory
	State  string // where postern keeps its audit log
	Binary string

	env []string
}

// NewHouse lays out a home for the configured user, with the credentials in it and the Net's servers under upstreams:.
func (n *Net) NewHouse(t T, c Config) *House {
	t.Helper()
	if c.User.Name == "" {
		c.User = Ordinary()
	}
	if c.Binary == "" {
		c.Binary = Binary(t)
	}
	top := dir(t, "house")
	h := &House{User: c.User, Home: filepath.Join(top, "home"), Work: filepath.Join(top, "home", "work"), State: filepath.Join(top, "home", ".local", "state"), Binary: c.Binary}
	h.Config = filepath.Join(h.Home, ".config", "postern", "postern.yaml")
	var b strings.Builder
	b.WriteString("version: 1\n\n")
	if len(c.Credentials) > 0 {
		b.WriteString("credentials:\n")
	}
	for _, cred := range c.Credentials {
		name := filepath.Join(h.Home, ".config", "postern", "secrets", cred.Secret.Name)
		h.write(t, name, cred.Secret.Value()+"\n", 0o600)
		kind := cred.Kind
		if kind == "" {
			kind = "api-key"
		}
		fmt.Fprintf(&b, "  %s: {kind: %s, source: {file: %s}}\n", cred.Secret.Name, kind, name)
	}
	fmt.Fprintf(&b, "\naudit: {dir: %s}\n", filepath.Join(h.State, "audit"))
	b.WriteString(n.Upstreams() + "\nprofiles:\n  default:\n")
	for line := range strings.Lines(strings.Trim(c.Profile, "\n") + "\n") {
		b.WriteString("    " + line)
	}
	h.write(t, h.Config, b.String(), 0o600)
	for name, text := range c.Files {
		h.write(t, filepath.Join(h.Work, filepath.FromSlash(name)), text, 0o644)
	}
	for _, d := range []string{h.Work, h.State, filepath.Join(top, "run")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatalf("testkit: %v", err)
		}
	}
	h.env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + h.Home, "USER=" + c.User.Name, "LANG=C.UTF-8",
		"XDG_CONFIG_HOME=" + filepath.Join(h.Home, ".config"), "XDG_STATE_HOME=" + h.State, "XDG_RUNTIME_DIR=" + filepath.Join(top, "run"),
	}, c.Env...)
	if os.Getuid() == 0 {
		chown(t, top, c.User)
	}
	return h
}

func (h *House) write(t T, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatalf("testkit: %v", err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatalf("testkit: %v", err)
	}
}

func chown(t T, root string, u User) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(name, u.UID, u.GID)
	})
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
}

// Result is what a run of postern left.
type Result struct {
	Stdout, Stderr string
	Exit           int
	Took           time.Duration
}

// Command prepares `postern ARGS…` as the house's user, in the working directory, in a process group of its own.
func (h *House) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, h.Binary, args...)
	cmd.Dir, cmd.Env = h.Work, h.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(h.User.UID), Gid: uint32(h.User.GID)} //nolint:gosec // small numbers
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Postern runs any postern command to its end, at most 2 minutes.
func (h *House) Postern(t T, stdin io.Reader, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := h.Command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	start := time.Now()
	err := cmd.Run()
	r := Result{Stdout: out.String(), Stderr: errs.String(), Took: time.Since(start)}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Fatalf("testkit: postern %s did not end: %v\nstdout: %s\nstderr: %s", strings.Join(args, " "), ctx.Err(), r.Stdout, r.Stderr)
	case errors.As(err, &exit):
		r.Exit = exit.ExitCode()
		if exit.ExitCode() < 0 {
			t.Fatalf("testkit: postern died: %v\nstderr: %s", err, r.Stderr)
		}
	case err != nil:
		t.Fatalf("testkit: postern %s: %v", strings.Join(args, " "), err)
	}
	return r
}

// Run is `postern run --config … -- ARGS…`.
func (h *House) Run(t T, args ...string) Result {
	t.Helper()
	return h.Postern(t, nil, append([]string{"run", "--config", h.Config, "--"}, args...)...)
}

// RunWith is Run with further flags of postern run.
func (h *House) RunWith(t T, flags []string, args ...string) Result {
	t.Helper()
	all := append([]string{"run", "--config", h.Config}, flags...)
	return h.Postern(t, nil, append(append(all, "--"), args...)...)
}

// Record is a line of the audit log.
type Record map[string]any

// Text is a text field, "" when the record has none.
func (r Record) Text(key string) string {
	s, _ := r[key].(string)
	return s
}

// Audit reads the records of every session of the house, in the order of their times.
func (h *House) Audit(t T) []Record {
	t.Helper()
	var out []Record
	for _, name := range h.AuditFiles(t) {
		if filepath.Base(name) == "ledger.jsonl" {
			continue // tells of segments, not of what happened
		}
		b, err := os.ReadFile(name)
		b = must(t, b, err)
		for line := range strings.Lines(string(b)) {
			var r Record
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatalf("testkit: %s holds a line that is not JSON: %v: %q", name, err, line)
			}
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b Record) int { return strings.Compare(a.Text("time"), b.Text("time")) })
	return out
}

// AuditFiles names the audit logs below the house's state directory.
func (h *House) AuditFiles(t T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(h.State, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(name, ".jsonl") {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	return names
}

// Main builds postern and the probe once, without cgo and as they are released, runs the tests and removes what it built:
//
//	func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
//
// POSTERN_BIN and POSTERN_PROBE name programs that are already built.
func Main(m interface{ Run() int }) int {
	d, err := os.MkdirTemp("", "postern-test-bin-")
	if err == nil {
		defer func() { _ = os.RemoveAll(d) }()
		err = os.Chmod(d, 0o755)
	}
	for env, pkg := range map[string]string{"POSTERN_BIN": "postern/cmd/postern", "POSTERN_PROBE": "postern/internal/testkit/probe"} {
		if err != nil || os.Getenv(env) != "" {
			continue
		}
		name := filepath.Join(d, filepath.Base(pkg))
		cmd := exec.Command("go", "build", "-trimpath", "-o", name, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		var out []byte
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("build %s: %w\n%s", pkg, err, out)
			break
		}
		err = os.Setenv(env, name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		return 1
	}
	return m.Run()
}

// Binary is the postern program under test.
func Binary(t T) string { t.Helper(); return built(t, "POSTERN_BIN") }

// Probe is the program that attacks from inside the sandbox. It is static and knows no secret.
func Probe(t T) string { t.Helper(); return built(t, "POSTERN_PROBE") }

func built(t T, env string) string {
	t.Helper()
	name := os.Getenv(env)
	if name == "" {
		t.Fatalf("testkit: %s is not set: TestMain must call testkit.Main", env)
	}
	return name
}

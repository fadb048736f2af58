package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"postern/internal/core/secret"
)

const (
	commandTime = 30 * time.Second
	commandTTL  = 15 * time.Minute
	maxStderr   = 4 << 10
	maxLinks    = 40 // on the way to a program, as in the kernel
	maxParts    = 64 // words of a failed command's output that its complaint is searched for
)

// CommandConfig describes a command that prints a credential.
type CommandConfig struct {
	Argv []string      // program and arguments; no shell reads them. A program without a slash is looked up in PATH
	Env  []string      // its whole environment, "NAME=value"; nil: a few harmless variables of ours
	Time time.Duration // it may run; zero: 30 s, which is also the most
	TTL  time.Duration // after which it is run again; zero: 15 min

	// Avoid are directories and files of the host that a sandbox can write, absolute and free of links. What lies in them is not run, not even
	// by way of a link, PATH is searched without them, and no argument may name what lies in them.
	Avoid []string
}

// Command is a credential that a program prints on its standard output, less one newline at its end.
//
// It runs in a process group of its own, in "/", with /dev/null as its input, and is killed with its group when its time is up.
type Command struct {
	CommandConfig
	dirs []string // in which the program is looked for
}

// NewCommand describes a command. The program is looked for when it is needed: a credential that no request asks for needs none.
func NewCommand(c CommandConfig) (*Command, error) {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return nil, errors.New("command: a program is needed")
	}
	if strings.Contains(c.Argv[0], "/") && !filepath.IsAbs(c.Argv[0]) {
		return nil, fmt.Errorf("command %q: give its absolute path, or its name alone", c.Argv[0])
	}
	if c.Env == nil {
		c.Env = harmless()
	}
	if c.Time <= 0 || c.Time > commandTime {
		c.Time = commandTime
	}
	if c.TTL <= 0 {
		c.TTL = commandTTL
	}
	k := &Command{CommandConfig: c}
	k.search()
	return k, nil
}

// harmless is what a program needs to find its files, its words and the user's keyring.
func harmless() []string {
	env := []string{}
	for _, name := range []string{"HOME", "PATH", "USER", "LOGNAME", "LANG", "LC_ALL", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DBUS_SESSION_BUS_ADDRESS"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// search takes out of PATH what a sandbox can write: a virtual environment or node_modules/.bin in the working directory often stands first.
func (c *Command) search() {
	list := os.Getenv("PATH")
	for _, kv := range c.Env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			list = v
		}
	}
	for _, dir := range filepath.SplitList(list) {
		if filepath.IsAbs(dir) && !through(dir, c.Avoid) {
			c.dirs = append(c.dirs, dir)
		}
	}
	env := []string{"PATH=" + strings.Join(c.dirs, string(filepath.ListSeparator))}
	for _, kv := range c.Env {
		if !strings.HasPrefix(kv, "PATH=") {
			env = append(env, kv)
		}
	}
	c.Env = env
}

// program looks for the command, and makes sure that nothing of it is a sandbox's to change.
func (c *Command) program() (string, error) {
	for _, word := range c.Argv {
		if filepath.IsAbs(word) && through(word, c.Avoid) {
			return "", errors.New(word + " can be changed from inside the sandbox, and would run on the host\n  hint: keep it outside of what is mounted writable")
		}
	}
	if filepath.IsAbs(c.Argv[0]) {
		return executable(c.Argv[0])
	}
	for _, dir := range c.dirs {
		p := filepath.Join(dir, c.Argv[0])
		if file, err := executable(p); err == nil && !through(p, c.Avoid) {
			return file, nil
		}
	}
	return "", exec.ErrNotFound
}

// executable is exec.LookPath for a path, with the reason alone as its error.
func executable(p string) (string, error) {
	file, err := exec.LookPath(p)
	return file, errors.Unwrap(err)
}

// through reports whether the way to path, links and all, leads through one of the places.
func through(path string, places []string) bool {
	rest, at := strings.Split(filepath.Clean(path), "/"), "/"
	for links := 0; ; {
		for _, place := range places {
			if at == place || strings.HasPrefix(at, strings.TrimSuffix(place, "/")+"/") {
				return true
			}
		}
		if len(rest) == 0 {
			return false
		}
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		to, err := os.Readlink(next)
		if err != nil { // no link, or nothing there
			at = next
			continue
		}
		if links++; links > maxLinks {
			return true
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
}

// Changed says when the value is to be fetched again.
func (c *Command) Changed(loaded, now time.Time) bool {
	age := now.Sub(loaded)
	return age < 0 || age >= c.TTL
}

// Load runs the command. When it fails, the first line of its standard error is part of the error; its standard output never is.
func (c *Command) Load(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Time)
	defer cancel()
	name := filepath.Base(c.Argv[0])
	program, err := c.program()
	if err != nil {
		return nil, fmt.Errorf("command %s: %w", name, err)
	}
	var stdout, stderr bounded
	stdout.most, stderr.most = maxSource, maxStderr
	cmd := exec.CommandContext(ctx, program, c.Argv[1:]...)
	cmd.Env, cmd.Dir = c.Env, "/"
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second // for what left the group and still holds the pipes
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("no answer within %s", c.Time)
	case stdout.over:
		err = fmt.Errorf("it prints more than %d bytes", maxSource)
	}
	if err != nil {
		line := firstLine(stderr.b, stdout.b)
		clear(stdout.b)
		if line != "" {
			return nil, fmt.Errorf("command %s: %w: %s", name, err, line)
		}
		return nil, fmt.Errorf("command %s: %w", name, err)
	}
	return stdout.b, nil
}

// firstLine is the first line of stderr for the host's log, with what stdout may hold of the value masked.
func firstLine(stderr, stdout []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimLeft(stderr, "\r\n"), []byte("\n"))
	var printed []secret.Value
	for part := range bytes.FieldsSeq(stdout) {
		if len(printed) == maxParts {
			return ""
		}
		printed = append(printed, secret.New("", bytes.Clone(part)))
	}
	text := secret.NewRedactor(printed...).String(string(line))
	for _, v := range printed {
		v.Wipe()
	}
	return strings.ToValidUTF8(strings.TrimSpace(text), "?")
}

// bounded keeps the first most bytes and remembers that there were more.
type bounded struct {
	b    []byte
	most int
	over bool
}

func (w *bounded) Write(p []byte) (int, error) {
	room := w.most - len(w.b)
	if w.b == nil {
		w.b = make([]byte, 0, w.most) // once, so that growing leaves no copies of a secret behind
	}
	w.over = w.over || len(p) > room
	w.b = append(w.b, p[:min(room, len(p))]...)
	return len(p), nil
}

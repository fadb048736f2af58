package daemon

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"postern/internal/core/record"
	"postern/internal/sandbox/native"
)

const (
	trapFile  = 1 << 20 // bytes that are read of a configuration or hook
	trapHooks = 256     // hooks that are looked at
)

// harmless matches lines of a repository's configuration by which git runs nothing: what checking out, tracking and pushing branches writes.
const harmless = `^\s*(\[(core|user)\]|\[(branch|remote|submodule) "[^"\\]*"\]|` +
	`(remote|merge|rebase|url|pushurl|fetch|active|name|email|bare|filemode|repositoryformatversion|logallrefupdates|ignorecase|symlinks)\s*=\s*[^\\;#"]*)?\s*$`

// gitTraps lists what makes git run programs, or may, in the repositories at the top of the writable mounts: hooks, and lines of the
// configuration that are not known to be harmless (core.fsmonitor runs on every `git status`). No git is run to find out.
func gitTraps(list []native.Mount) map[string]bool {
	found, quiet := map[string]bool{}, regexp.MustCompile(harmless)
	for _, m := range list {
		if !m.Write {
			continue
		}
		root, err := os.OpenRoot(m.Source) // no link in it leads out
		if err != nil {
			continue
		}
		for _, name := range []string{".git", ".git/config", ".git/config.worktree"} {
			for line := range strings.Lines(readTrap(root, name)) {
				if line = strings.TrimSpace(line); !quiet.MatchString(line) {
					found[m.Source+"/"+name+": "+line] = true
				}
			}
		}
		if dir, err := root.OpenFile(".git/hooks", os.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
			hooks, _ := dir.Readdirnames(trapHooks)
			_ = dir.Close()
			for _, h := range hooks {
				if !strings.HasSuffix(h, ".sample") {
					found[fmt.Sprintf("%s/.git/hooks/%s (%.4x)", m.Source, h, sha256.Sum256([]byte(readTrap(root, ".git/hooks/"+h))))] = true
				}
			}
		}
		_ = root.Close()
	}
	return found
}

// readTrap is a regular file's beginning, "" when there is none.
func readTrap(root *os.Root, name string) string {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	var b strings.Builder
	_, _ = io.Copy(&b, bufio.NewReader(io.LimitReader(f, trapFile)))
	return b.String()
}

// tellTraps says, quiet or not, what git on the host would run since the command did.
func (r *run) tellTraps() error {
	set := newTraps(r.traps, gitTraps(r.given.Mounts))
	if set == "" {
		return nil
	}
	fmt.Fprintln(r.Stderr, "postern:", set)
	return r.audit.Append(&record.Record{Kind: record.Notice, Event: newEvent(), Session: r.id, Detail: set})
}

// newTraps says which traps were set since before, "" for none: git on the host would run what the sandbox wrote there.
func newTraps(before, after map[string]bool) string {
	var set []string
	for _, t := range slices.Sorted(maps.Keys(after)) {
		if !before[t] {
			set = append(set, t)
		}
	}
	if len(set) == 0 {
		return ""
	}
	text := fmt.Sprintf("git may now run programs of the sandbox on the host; look before you run git there, even git status: %+.200q", set[0])
	if len(set) > 1 {
		text += fmt.Sprintf(" and %d more", len(set)-1)
	}
	return text
}

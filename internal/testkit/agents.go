package testkit

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// The agents are pinned by a lock file with the digest of every package; it names no registry, which is npm's own to know.
//
//go:embed clients/package.json clients/package-lock.json
var pinned embed.FS

// AgentVersions are the pinned versions of the agents' packages, by the command's name.
func AgentVersions(t T) map[string]string {
	t.Helper()
	b, err := pinned.ReadFile("clients/package.json")
	b = must(t, b, err)
	var p struct {
		Dependencies map[string]string `json:"dependencies"`
	}
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatalf("testkit: %v", err)
	}
	return map[string]string{"claude": p.Dependencies["@anthropic-ai/claude-code"], "codex": p.Dependencies["@openai/codex"], "gemini": p.Dependencies["@google/gemini-cli"]}
}

// InstallAgents gives the house claude, codex and gemini where their installers put them for a user: claude as its own installer does,
// the others as `npm install --global` with a prefix below the home does, and puts both places first in PATH.
func (h *House) InstallAgents(t T) {
	t.Helper()
	from := agents(t)
	version := AgentVersions(t)["claude"]
	arch := npmArch(t)
	versions := filepath.Join(h.Home, ".local", "share", "claude", "versions")
	modules := filepath.Join(h.Home, ".npm-global", "lib", "node_modules")
	bin, global := filepath.Join(h.Home, ".local", "bin"), filepath.Join(h.Home, ".npm-global", "bin")
	for _, d := range []string{versions, modules, bin, global} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatalf("testkit: %v", err)
		}
	}
	share(t, filepath.Join(from, "@anthropic-ai", "claude-code-linux-"+arch, "claude"), filepath.Join(versions, version))
	share(t, filepath.Join(from, "node-linux-"+arch, "bin", "node"), filepath.Join(global, "node"))
	for _, name := range []string{"@openai", "@google", "@github", "@lydell", "node-pty"} {
		share(t, filepath.Join(from, name), filepath.Join(modules, name))
	}
	for name, to := range map[string]string{
		filepath.Join(bin, "claude"):    filepath.Join(versions, version),
		filepath.Join(global, "codex"):  "../lib/node_modules/@openai/codex/bin/codex.js",
		filepath.Join(global, "gemini"): "../lib/node_modules/@google/gemini-cli/bundle/gemini.js",
	} {
		if err := os.Symlink(to, name); err != nil {
			t.Fatalf("testkit: %v", err)
		}
	}
	for i, kv := range h.env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			h.env[i] = "PATH=" + bin + ":" + global + ":" + path
		}
	}
}

// npmArch is the machine's architecture in npm's words.
func npmArch(t T) string {
	t.Helper()
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	if arch == "" {
		t.Fatalf("testkit: the agents are not published for %s", runtime.GOARCH)
	}
	return arch
}

// share makes a file or tree appear at another place: as hard links where both are on one file system, else as copies. The files are
// the cache's own; nobody who runs in a house may write them.
func share(t T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		at := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return os.MkdirAll(at, 0o755)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			return os.Symlink(target, at)
		}
		if err := os.Link(name, at); !errors.Is(err, syscall.EXDEV) && !errors.Is(err, syscall.EPERM) {
			return err
		}
		return copyFile(name, at)
	})
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, st.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// agents installs the pinned packages into the user's cache, once for each lock file, and returns their node_modules. No package's
// install script is run. What cannot be installed is an error.
func agents(t T) string {
	t.Helper()
	lock, err := pinned.ReadFile("clients/package-lock.json")
	lock = must(t, lock, err)
	sum := sha256.Sum256(lock)
	cache, err := os.UserCacheDir()
	cache = must(t, cache, err)
	top := filepath.Join(cache, "postern-tests")
	if err := os.MkdirAll(top, 0o700); err != nil {
		t.Fatalf("testkit: %v", err)
	}
	held, err := os.OpenFile(filepath.Join(top, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	held = must(t, held, err)
	defer held.Close()
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatalf("testkit: %v", err)
	}
	at := filepath.Join(top, "agents-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(at); err == nil {
		return filepath.Join(at, "node_modules")
	}
	t.Logf("installing the agents into %s: about 400 MB are downloaded, once", at)
	d, err := os.MkdirTemp(top, "new-")
	d = must(t, d, err)
	defer os.RemoveAll(d)
	for _, name := range []string{"package.json", "package-lock.json"} {
		b, err := pinned.ReadFile("clients/" + name)
		b = must(t, b, err)
		if err := os.WriteFile(filepath.Join(d, name), b, 0o600); err != nil {
			t.Fatalf("testkit: %v", err)
		}
	}
	if err := npmInstall(t.Context(), d); err != nil {
		t.Fatalf("testkit: %v", err)
	}
	if err := os.Rename(d, at); err != nil {
		t.Fatalf("testkit: %v", err)
	}
	return filepath.Join(at, "node_modules")
}

// npmInstall takes at most 10 minutes.
func npmInstall(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	return nil
}

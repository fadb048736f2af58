// Package survey looks at a working tree and a home directory for what a first policy would name: the repository's origin, clients on
// PATH, files that hold credentials, private registries. It runs no program, reads no configuration that a repository could have
// written for its own gain, and keeps no credential: of a file that holds one it learns that it does.
package survey

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
)

// Config says where to look.
type Config struct {
	Dir      string                               // the working tree, absolute
	Home     string                               // absolute
	LookPath func(program string) (string, error) // whether a program exists; exec.LookPath
}

// Found is what there is.
type Found struct {
	Root        string    // of the git working tree, "" when there is none
	Origin      gate.Repo // zero when there is none, or none that https reaches
	OriginHint  string    // why there is no Origin although there is a repository, or that its URL holds a password
	Clients     []Client
	Credentials []Candidate
	Registries  []Registry
	Notes       []string // what was seen and left out, and why
}

// Client is a program on PATH and the preset that it needs.
type Client struct{ Program, Preset string }

// Candidate is a credential that could be used, if the user agrees.
type Candidate struct {
	Name   string // for credentials:
	Source string // for source:, in YAML
	Where  string // for people
	Loose  bool   // others can read the file; it will be refused until that is mended
}

// Registry is a private package registry.
type Registry struct {
	Host gate.Host
	Port gate.Port
	Tool string // "npm" or "pip"
	File string // where it is configured, as people write it
}

// clients are the programs that postern has presets for.
func clients() []Client {
	return []Client{
		{"claude", "claude"}, {"codex", "codex"}, {"gemini", "gemini"}, {"gh", "github"}, {"npm", "npm"},
		{"pip", "pypi"}, {"pip3", "pypi"}, {"uv", "pypi"}, {"go", "go"}, {"cargo", "crates"},
	}
}

// Look looks.
func Look(c Config) *Found {
	f := &Found{}
	for _, cl := range clients() {
		if _, err := c.LookPath(cl.Program); err != nil {
			continue
		}
		if !slices.ContainsFunc(f.Clients, func(o Client) bool { return o.Preset == cl.Preset }) {
			f.Clients = append(f.Clients, cl)
		}
	}
	f.lookForOrigin(c.Dir)
	f.lookForCredentials(c)
	f.lookForRegistries(c.Home)
	return f
}

// Has reports whether a program was found that needs the preset.
func (f *Found) Has(preset string) bool {
	return slices.ContainsFunc(f.Clients, func(c Client) bool { return c.Preset == preset })
}

// lookForCredentials offers the places where clients and people keep API keys. The user's own file for postern comes first.
func (f *Found) lookForCredentials(c Config) {
	offer := func(name, source, where, file string) {
		if !f.uses(name) || slices.ContainsFunc(f.Credentials, func(o Candidate) bool { return o.Name == name }) {
			return
		}
		f.Credentials = append(f.Credentials, Candidate{name, source, where, file != "" && loose(file)})
	}
	for _, name := range []string{"claude", "openai", "gemini", "github"} {
		rel := ".config/postern/" + name
		if path := filepath.Join(c.Home, rel); regular(path) {
			offer(name, "{file: ~/"+rel+"}", "the file ~/"+rel, path)
		}
	}
	if path := filepath.Join(c.Home, ".claude.json"); holdsString(path, "primaryApiKey") {
		offer("claude", "{file: ~/.claude.json, json: primaryApiKey}", "the API key in ~/.claude.json", path)
	}
	if path := filepath.Join(c.Home, ".codex/auth.json"); holdsString(path, "OPENAI_API_KEY") {
		offer("openai", "{file: ~/.codex/auth.json, json: OPENAI_API_KEY}", "the API key in ~/.codex/auth.json", path)
	}
	if f.Has("github") && regular(filepath.Join(c.Home, ".config/gh/hosts.yml")) {
		offer("github", "{command: [gh, auth, token]}", "gh's login, through the command `gh auth token`", "")
	}
	for _, login := range []struct{ file, what string }{{".claude/.credentials.json", "a Claude subscription login"}, {".gemini/oauth_creds.json", "a Google login"}} {
		if regular(filepath.Join(c.Home, login.file)) {
			f.Notes = append(f.Notes, login.what+" (~/"+login.file+") cannot be used yet: only API keys can")
		}
	}
}

// uses reports whether anything that was found would use a credential of this name.
func (f *Found) uses(name string) bool {
	if name == "github" {
		return f.Has("github") || f.Origin.Host().String() == "github.com"
	}
	return slices.ContainsFunc(f.Clients, func(c Client) bool { return needs(c.Preset) == name })
}

// maxFile bounds every file that is read, in bytes; ~/.claude.json grows with use.
const maxFile = 16 << 20

var errTooLarge = errors.New("too large")

// readRegular reads a regular file of at most limit bytes, without following a link in its last part or waiting for a FIFO.
func readRegular(path string, limit int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > limit {
		return nil, errTooLarge
	}
	buf := make([]byte, st.Size())
	n, err := io.ReadFull(f, buf)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return buf[:n], err
}

func regular(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode().IsRegular()
}

func loose(path string) bool {
	st, err := os.Lstat(path)
	return err != nil || st.Mode().Perm()&0o077 != 0
}

// holdsString reports whether a JSON file has a non-empty string under a key at its top.
func holdsString(path, key string) bool {
	src, err := readRegular(path, maxFile)
	if err != nil {
		return false
	}
	var top map[string]json.RawMessage
	if json.Unmarshal(src, &top) != nil {
		return false
	}
	raw := top[key]
	return len(raw) > 2 && raw[0] == '"'
}

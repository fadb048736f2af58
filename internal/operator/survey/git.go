package survey

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"postern/internal/core/gate"
)

// maxGitConfig bounds git's configuration files in bytes.
const maxGitConfig = 1 << 20

// lookForOrigin finds the working tree that dir lies in and the repository behind its remote "origin". Git itself is not run: its
// configuration could name programs.
func (f *Found) lookForOrigin(dir string) {
	for {
		if path, ok := gitConfig(filepath.Join(dir, ".git")); ok {
			f.Root = dir
			f.readOrigin(path)
			return
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return
		}
		dir = parent
	}
}

// gitConfig is the configuration file of a repository: below a .git directory, or of a worktree's or submodule's .git file.
func gitConfig(dotGit string) (string, bool) {
	st, err := os.Lstat(dotGit)
	switch {
	case err != nil:
		return "", false
	case st.IsDir():
		path := filepath.Join(dotGit, "config")
		return path, regular(path)
	case !st.Mode().IsRegular():
		return "", false
	}
	src, err := readRegular(dotGit, 4096)
	target, ok := strings.CutPrefix(strings.TrimSpace(string(src)), "gitdir: ")
	if err != nil || !ok {
		return "", false
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(dotGit), target)
	}
	if common, err := readRegular(filepath.Join(target, "commondir"), 4096); err == nil {
		c := strings.TrimSpace(string(common))
		if !filepath.IsAbs(c) {
			c = filepath.Join(target, c)
		}
		target = c
	}
	path := filepath.Join(target, "config")
	return path, regular(path)
}

func (f *Found) readOrigin(path string) {
	src, err := readRegular(path, maxGitConfig)
	if err != nil {
		f.OriginHint = "git's configuration cannot be read"
		return
	}
	raw := originURL(string(src))
	if raw == "" {
		f.OriginHint = "the repository has no remote named origin"
		return
	}
	repo, password, ok := ParseRemote(raw)
	if !ok {
		f.OriginHint = "the remote origin is nothing that https reaches"
		return
	}
	f.Origin = repo
	if password {
		f.OriginHint = "the remote origin holds a password in its URL, which a sandbox that sees .git/config sees too: git remote set-url origin https://" + repo.String()
	}
}

// originURL is the url of [remote "origin"] (git-config's syntax, without includes), "" when there is none.
func originURL(config string) string {
	in := false
	for line := range strings.Lines(config) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			head, rest, _ := strings.Cut(line[1:], "]")
			kind, name, _ := strings.Cut(head, " ")
			in = strings.EqualFold(kind, "remote") && strings.TrimSpace(name) == `"origin"`
			line = strings.TrimSpace(rest)
		}
		key, value, ok := strings.Cut(line, "=")
		if in && ok && strings.EqualFold(strings.TrimSpace(key), "url") {
			value = strings.TrimSpace(value)
			if i := strings.IndexAny(value, "#;"); i > 0 && value[0] != '"' {
				value = strings.TrimSpace(value[:i])
			}
			return strings.Trim(value, `"`)
		}
	}
	return ""
}

// ParseRemote turns a remote's URL, in any of the forms that mean a forge, into the repository that its https address names, and
// reports whether the URL holds a password. Ports other than the scheme's own name another server and are not understood.
func ParseRemote(raw string) (repo gate.Repo, password, ok bool) {
	host, path := "", ""
	if strings.Contains(raw, "://") {
		u, err := url.Parse(raw)
		if err != nil || u.Port() != "" && u.Port() != map[string]string{"https": "443", "ssh": "22", "git": "9418"}[u.Scheme] {
			return gate.Repo{}, false, false
		}
		switch u.Scheme {
		case "https", "ssh", "git", "git+ssh":
		default:
			return gate.Repo{}, false, false
		}
		_, password = u.User.Password()
		host, path = u.Hostname(), u.Path
	} else {
		user, after, found := strings.Cut(raw, "@") // scp form: [user@]host:path
		if !found || strings.ContainsAny(user, "/:") {
			after = raw
		}
		host, path, found = strings.Cut(after, ":")
		if !found || strings.Contains(host, "/") {
			return gate.Repo{}, false, false
		}
	}
	h, err := gate.ParseHost(host)
	if err != nil {
		return gate.Repo{}, password, false
	}
	repo, err = gate.NewRepo(h, path)
	return repo, password, err == nil
}

package testkit

import (
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Forge is a git host: bare repositories behind git's own http-backend, served only to requests with the run's token as the
// password of Basic auth (any user name), and a little of a REST API, served to the same token as a bearer.
type Forge struct {
	Token  string
	Public map[string]bool // "owner/name" that are served without a token

	t    T
	root string
}

// NewForge makes a forge without repositories.
func NewForge(t T, token string) *Forge {
	t.Helper()
	return &Forge{Token: token, Public: map[string]bool{}, t: t, root: dir(t, "forge")}
}

// AddRepo makes a repository "owner/name" with one commit on main that holds the files, and returns where it lies.
func (f *Forge) AddRepo(name string, files map[string]string) string {
	f.t.Helper()
	work := dir(f.t, "work")
	for file, text := range files {
		full := filepath.Join(work, filepath.FromSlash(file))
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			f.t.Fatalf("testkit: %v", err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			f.t.Fatalf("testkit: %v", err)
		}
	}
	bare := filepath.Join(f.root, filepath.FromSlash(name)+".git")
	f.Git(work, "init", "-q", "-b", "main", ".")
	f.Git(work, "add", "-A")
	f.Git(work, "commit", "-q", "-m", "first")
	f.Git(work, "clone", "-q", "--bare", work, bare)
	f.Git(bare, "config", "http.receivepack", "true")
	f.Git(bare, "config", "uploadpack.allowFilter", "true")
	return bare
}

// Git runs git on the host in a directory, without anybody's configuration, and returns what it printed.
func (f *Forge) Git(dir string, args ...string) string {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(gitEnv(), "PATH="+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.t.Fatalf("testkit: git %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// Head is the commit that a branch of a repository points to, "" when there is none.
func (f *Forge) Head(name, branch string) string {
	cmd := exec.CommandContext(f.t.Context(), "git", "rev-parse", "--verify", "--quiet", "refs/heads/"+branch)
	cmd.Dir = filepath.Join(f.root, filepath.FromSlash(name)+".git")
	cmd.Env = append(gitEnv(), "PATH="+os.Getenv("PATH"))
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func gitEnv() []string {
	return []string{
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "HOME=/nonexistent", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.com",
		"GIT_AUTHOR_DATE=2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z",
	}
}

func (f *Forge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	repo, rest, ok := f.split(r.URL.Path)
	if !ok {
		f.api(w, r)
		return
	}
	if _, password, _ := r.BasicAuth(); password != f.Token && !f.Public[repo] {
		w.Header().Set("WWW-Authenticate", `Basic realm="forge"`)
		http.Error(w, "Authentication required", http.StatusUnauthorized)
		return
	}
	if _, err := os.Stat(filepath.Join(f.root, filepath.FromSlash(repo)+".git")); err != nil {
		http.Error(w, "Repository not found.", http.StatusNotFound)
		return
	}
	f.backend(w, r, "/"+repo+".git/"+rest)
}

// split finds "owner/name" and what follows it in a path of the smart protocol.
func (f *Forge) split(path string) (repo, rest string, ok bool) {
	for _, tail := range []string{"/info/refs", "/git-upload-pack", "/git-receive-pack"} {
		if repo, ok := strings.CutSuffix(path, tail); ok {
			return strings.TrimSuffix(strings.TrimPrefix(repo, "/"), ".git"), tail[1:], true
		}
	}
	return "", "", false
}

// backend runs git http-backend. CGI cannot take a chunked body, so the body is put in a file first.
func (f *Forge) backend(w http.ResponseWriter, r *http.Request, path string) {
	spool, err := os.CreateTemp(f.root, "body")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer os.Remove(spool.Name())
	defer spool.Close()
	n, err := io.Copy(spool, io.LimitReader(r.Body, 4<<30))
	if err != nil {
		return
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return
	}
	r = r.Clone(r.Context())
	r.Body, r.ContentLength, r.TransferEncoding = spool, n, nil
	r.Header.Set("Content-Length", strconv.FormatInt(n, 10))
	r.URL.Path = path
	libexec, err := exec.CommandContext(r.Context(), "git", "--exec-path").Output()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	(&cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(libexec)), "git-http-backend"), Dir: f.root,
		Env: append(gitEnv(), "GIT_PROJECT_ROOT="+f.root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=ada"), Stderr: io.Discard,
	}).ServeHTTP(w, r)
}

func (f *Forge) api(w http.ResponseWriter, r *http.Request) {
	given := strings.TrimPrefix(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), "token ")
	if given != f.Token {
		writeJSON(w, http.StatusUnauthorized, map[string]any{"message": "Bad credentials"})
		return
	}
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/user":
		writeJSON(w, http.StatusOK, map[string]any{"login": "ada", "id": 1})
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/repos/"):
		writeJSON(w, http.StatusOK, map[string]any{"full_name": strings.TrimPrefix(r.URL.Path, "/repos/"), "private": true, "default_branch": "main"})
	default:
		writeJSON(w, http.StatusNotFound, map[string]any{"message": "Not Found"})
	}
}

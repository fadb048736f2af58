package daemon

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/operator/config"
	"postern/internal/sandbox/native"
	"postern/internal/sandbox/trust"
)

// runDir holds what postern itself gives the sandbox.
const runDir = "/run/postern"

// inherited are the variables of the caller that the sandbox is given: how to find programs and how to talk to the terminal. Everything
// else stays outside, because that is where tokens live.
func inherited() []string {
	return []string{"PATH", "TERM", "COLORTERM", "TERM_PROGRAM", "NO_COLOR", "FORCE_COLOR", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES",
		"LC_NUMERIC", "LC_TIME", "LC_COLLATE", "TZ", "EDITOR", "VISUAL", "PAGER", "COLUMNS", "LINES", "CI", "DEBIAN_FRONTEND", "SHELL"}
}

// environment is the whole environment of the command: later entries win.
func environment(home, user, workdir string, bundle *trust.Bundle, preset map[string]string, flags []string) ([]string, error) {
	env := map[string]string{
		"HOME": home, "USER": user, "LOGNAME": user, "PWD": workdir, "SHELL": "/bin/sh", "PATH": "/usr/local/bin:/usr/bin:/bin",
		"GIT_CONFIG_SYSTEM":   runDir + "/gitconfig",
		"GIT_TERMINAL_PROMPT": "0", // a question for a password would hang an agent
		"POSTERN":             "1",
	}
	for _, name := range inherited() {
		if v, ok := os.LookupEnv(name); ok {
			env[name] = v
		}
	}
	for _, kv := range bundle.Env() {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	maps.Copy(env, preset)
	for _, kv := range flags {
		k, v, ok := strings.Cut(kv, "=")
		if k == "" {
			return nil, fmt.Errorf("--env %q: needs a name\n  hint: --env NAME=VALUE, or --env NAME to pass it through", kv)
		}
		if !ok {
			if v, ok = os.LookupEnv(k); !ok {
				return nil, fmt.Errorf("--env %s: not set here\n  hint: --env %s=VALUE", k, k)
			}
		}
		env[k] = v
	}
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list, nil
}

// gitConfig stands in for the system's git configuration: the directory is safe, ssh remotes become https, who commits is known, and
// no helper, hook or rewriting of the host is there.
func gitConfig(workdir, name, email string, hosts []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[safe]\n\tdirectory = %s\n", quoteGit(workdir))
	fmt.Fprintf(&b, "[safe]\n\tdirectory = %s\n", quoteGit(workdir+"/*"))
	if name != "" || email != "" {
		b.WriteString("[user]\n")
		if name != "" {
			fmt.Fprintf(&b, "\tname = %s\n", quoteGit(name))
		}
		if email != "" {
			fmt.Fprintf(&b, "\temail = %s\n", quoteGit(email))
		}
	}
	for _, h := range hosts {
		fmt.Fprintf(&b, "[url \"https://%s/\"]\n", h)
		for _, form := range []string{"git@%s:", "ssh://git@%s/", "ssh://git@%s:22/", "git://%s/", "git+ssh://git@%s/", "%s:"} {
			fmt.Fprintf(&b, "\tinsteadOf = %s\n", quoteGit(fmt.Sprintf(form, h)))
		}
	}
	return b.String()
}

func quoteGit(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(s) + `"`
}

// gitHosts are the forges whose ssh remotes are rewritten: those of the policy, and the well-known ones, so that a refusal can be read.
func gitHosts(c *config.Compiled) []string {
	hosts := map[string]bool{"github.com": true, "gitlab.com": true, "bitbucket.org": true, "codeberg.org": true}
	for _, r := range c.Rules {
		if !r.Repo.IsZero() {
			hosts[r.Repo.Host().String()] = true
		}
	}
	return slices.Sorted(maps.Keys(hosts))
}

// gitIdentity reads user.name and user.email from the host's global git configuration, without running git and without following includes.
func gitIdentity(home string) (name, email string) {
	paths := []string{filepath.Join(home, ".gitconfig")}
	if d := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(d) {
		paths = append(paths, filepath.Join(d, "git", "config"))
	} else {
		paths = append(paths, filepath.Join(home, ".config", "git", "config"))
	}
	for _, p := range paths {
		n, e := readIdentity(p)
		if name == "" {
			name = n
		}
		if email == "" {
			email = e
		}
	}
	return name, email
}

// readIdentity reads at most 1,000 lines of a git configuration file.
func readIdentity(path string) (name, email string) {
	f, err := os.Open(path)
	if err != nil {
		return "", ""
	}
	defer f.Close()
	user := false
	sc := bufio.NewScanner(f)
	for n := 0; n < 1000 && sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if strings.HasPrefix(line, "[") {
			user = strings.EqualFold(line, "[user]")
			continue
		}
		k, v, ok := strings.Cut(line, "=")
		if !ok || !user {
			continue
		}
		v = strings.Trim(strings.TrimSpace(v), `"`)
		switch strings.ToLower(strings.TrimSpace(k)) {
		case "name":
			name = v
		case "email":
			email = v
		}
	}
	return name, email
}

// loginProfile is what a login shell of the sandbox reads after the system's profile, which has set PATH anew: agents run commands in
// login shells, and would not find what the person has below the home directory.
func loginProfile(env []string) string {
	var path string
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	return "PATH='" + strings.ReplaceAll(path, "'", `'\''`) + "'\nexport PATH\n"
}

// files are what the sandbox finds in place: trust stores, git's configuration, the PATH of login shells, and what the presets put into
// the home directory.
func files(home, workdir string, env []string, c *config.Compiled, bundle *trust.Bundle, rendered []config.RenderedFile) []native.File {
	list := append(bundle.Files(), native.File{Path: filepath.Join(home, ".profile"), Content: []byte(loginProfile(env))})
	name, email := gitIdentity(home)
	list = append(list, native.File{Path: runDir + "/gitconfig", Content: []byte(gitConfig(workdir, name, email, gitHosts(c)))})
	for _, f := range rendered {
		list = append(list, native.File{Path: filepath.Join(home, f.Path), Mode: f.Mode, Content: []byte(f.Text)})
	}
	return list
}

// mounts are the parts of the host that the sandbox sees, besides the system: the profile's, or else the working directory, and the flags'.
func mounts(workdir string, c *config.Compiled, flags []string) ([]native.Mount, error) {
	var list []native.Mount
	for _, m := range c.Mounts {
		list = append(list, native.Mount{Source: m.Path, Target: m.Target, Write: m.Write})
	}
	if c.Mounts == nil || !slices.ContainsFunc(list, func(m native.Mount) bool { return within(workdir, m.Target) }) {
		list = append(list, native.Mount{Source: workdir, Target: workdir, Write: true})
	}
	for _, f := range flags {
		m, err := parseMount(f)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

func within(path, dir string) bool {
	return dir != "" && (path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/"))
}

// parseMount reads SRC[:DST][:rw].
func parseMount(s string) (native.Mount, error) {
	rest, write := strings.CutSuffix(s, ":rw")
	if !write {
		rest = strings.TrimSuffix(rest, ":ro")
	}
	src, dst, _ := strings.Cut(rest, ":")
	if src == "" || strings.Contains(dst, ":") {
		return native.Mount{}, fmt.Errorf("--mount %q: not SRC[:DST][:rw]\n  hint: --mount ~/data:/data, and :rw at the end to write there", s)
	}
	src, err := filepath.Abs(src)
	if err != nil {
		return native.Mount{}, err
	}
	if dst == "" {
		dst = src
	}
	if !filepath.IsAbs(dst) {
		return native.Mount{}, fmt.Errorf("--mount %q: the path in the sandbox is not absolute\n  hint: --mount %s:/%s", s, src, dst)
	}
	return native.Mount{Source: src, Target: filepath.Clean(dst), Write: write}, nil
}

// rootFiles are the files of roots that upstreams are verified with.
func rootFiles(c *config.Compiled) (list []string) {
	for _, u := range c.Upstreams {
		if u.CAFile != "" {
			list = append(list, u.CAFile)
		}
	}
	return list
}

// writable is what of the host the mounts let the sandbox change, free of links.
func writable(list []native.Mount) (paths []string) {
	for _, m := range list {
		if !m.Write {
			continue
		}
		paths = append(paths, m.Source)
		if real, err := filepath.EvalSymlinks(m.Source); err == nil && real != m.Source {
			paths = append(paths, real)
		}
	}
	return paths
}

// tools are read-only directories below the caller's home that hold programs.
func tools(home string, c *config.Compiled) []native.Mount {
	list := native.DefaultTools(home)
	for _, t := range c.Tools {
		p := filepath.Join(home, t)
		if !slices.ContainsFunc(list, func(m native.Mount) bool { return m.Source == p }) {
			list = append(list, native.Mount{Source: p, Target: p})
		}
	}
	return list
}

// unseen is a hint for a command that the sandbox does not have but its caller does, "" when there is nothing to say.
func unseen(home string, failed *native.ExecError) string {
	if failed.Code != 127 {
		return ""
	}
	name, err := exec.LookPath(failed.Name)
	if err != nil {
		return ""
	}
	file, err := filepath.EvalSymlinks(name)
	if err != nil {
		return ""
	}
	dir := filepath.Dir(name) // the directory that holds both, as an installation below a prefix has it
	for dir != "/" && !within(file, dir) {
		dir = filepath.Dir(dir)
	}
	flags := "--mount " + dir
	if dir == home || !within(dir, home) { // the link and what it leads to are far apart
		flags = "--mount " + filepath.Dir(name) + " --mount " + filepath.Dir(file)
	}
	return fmt.Sprintf("  hint: it is %s here, which the sandbox does not see: %s\n", name, flags)
}

// ports are the TCP ports that the policy names, for kernels where only single ports can be captured.
func ports(c *config.Compiled) []gate.Port {
	set := map[gate.Port]bool{80: true, 443: true}
	for _, r := range c.Rules {
		set[r.Port] = true
	}
	delete(set, 0)
	return slices.Sorted(maps.Keys(set))
}

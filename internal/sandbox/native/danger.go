package native

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DangerousMountError refuses a mount that would show the command a credential, a socket that acts with the host's authority, or the
// host's kernel interfaces.
type DangerousMountError struct {
	Source    string // the mount as asked for
	Dangerous string // what it touches
	How       string // "is", "lies below", "contains" or "carries a mount of"
}

func (e *DangerousMountError) Error() string {
	return fmt.Sprintf("sandbox: mount %s: it %s %s, which no sandbox should see\n  hint: mount only the directory that the command works on (cd there first), or relax it by name with --allow-dangerous-mount",
		e.Source, e.How, e.Dangerous)
}

// DangerousBelowHome lists what is never mounted out of a home directory: credentials, agents and key stores. A final * matches any
// ending.
func DangerousBelowHome() []string {
	return []string{
		".ssh", ".aws", ".azure", ".config/gcloud", ".config/gh", ".config/azure", ".config/op", ".config/hub", ".config/git/credentials",
		".config/glab-cli", ".config/containers", ".config/rclone", ".config/sops", ".config/age", ".config/doctl", ".config/fly", ".fly", ".oci",
		".kube", ".gnupg", ".docker", ".netrc", ".npmrc", ".yarnrc.yml", ".pypirc", ".config/pip", ".pip", ".m2/settings*", ".gradle/gradle.properties",
		".gem/credentials", ".cargo/credentials*", ".git-credentials", ".terraform.d", ".terraformrc", ".vault-token", ".password-store",
		".local/share/keyrings", ".mozilla", ".thunderbird", ".config/google-chrome", ".config/chromium", ".config/BraveSoftware",
		".config/microsoft-edge", ".config/1Password", ".config/Bitwarden", ".pgpass", ".my.cnf", ".s3cfg", ".boto", ".databrickscfg", ".snowsql",
		".claude/.credentials.json", ".codex/auth.json", ".gemini/oauth_creds.json", ".qwen/oauth_creds.json", ".local/share/opencode/auth.json",
		".config/github-copilot", ".copilot", ".cursor", ".bash_history", ".zsh_history",
		".config/postern", ".local/state/postern", ".local/share/postern", ".cache/postern",
	}
}

// DangerousPaths lists what is never mounted from the rest of the host.
func DangerousPaths() []string {
	return []string{
		"/proc", "/sys", "/dev", "/boot", "/run/user", "/run/docker.sock", "/var/run/docker.sock", "/run/containerd", "/run/podman", "/run/crio",
		"/run/dbus", "/run/systemd", "/run/postern", "/run/secrets", "/run/credentials", "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers",
		"/var/lib/kubelet", "/var/lib/postern", "/etc/postern", "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/ssh",
		"/etc/ssl/private", "/etc/sudoers", "/etc/sudoers.d", "/etc/docker", "/etc/kubernetes", "/etc/krb5.keytab",
	}
}

// componentsNeverMounted are names that hold credentials under whichever directory they stand: other people's homes, backups.
func componentsNeverMounted() []string {
	return []string{".ssh", ".aws", ".azure", ".gnupg", ".kube", ".password-store", ".git-credentials", ".netrc", ".pypirc"}
}

type inode struct{ dev, ino uint64 }

func identityOf(path string) (inode, bool) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return inode{}, false
	}
	return inode{st.Dev, st.Ino}, true
}

// dangers knows the dangerous paths by name, by what their symbolic links lead to, and by inode: a bind mount has another name but
// the same inode.
type dangers struct {
	names   []string         // as written and resolved
	selves  map[inode]string // the dangerous objects that exist
	parents map[inode]string // every directory above one
	mounts  []string         // the mount points of this namespace
}

func newDangers(homes, extra []string) *dangers {
	d := &dangers{selves: map[inode]string{}, parents: map[inode]string{}}
	for _, p := range append(DangerousPaths(), extra...) {
		d.add(p)
	}
	for _, home := range homes {
		for _, p := range DangerousBelowHome() {
			p = filepath.Join(home, p)
			if !strings.HasSuffix(p, "*") {
				d.add(p)
				continue
			}
			d.add(strings.TrimSuffix(p, "*"))
			found, _ := filepath.Glob(p) // the only error is a bad pattern
			for _, f := range found {
				d.add(f)
			}
		}
	}
	d.mounts = mountPoints()
	return d
}

func (d *dangers) add(p string) {
	d.names = append(d.names, p)
	real, err := filepath.EvalSymlinks(p)
	if err != nil { // what is missing must not be made by a sandbox either
		real = resolveExisting(p)
	}
	if real != p {
		d.names = append(d.names, real)
	}
	if id, ok := identityOf(real); ok {
		d.selves[id] = p
	}
	for dir := real; dir != "/"; {
		dir = filepath.Dir(dir)
		if id, ok := identityOf(dir); ok && d.parents[id] == "" {
			d.parents[id] = p
		}
	}
}

// resolveExisting resolves the links of as much of p as there is.
func resolveExisting(p string) string {
	for dir := p; dir != "/"; {
		dir = filepath.Dir(dir)
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, strings.TrimPrefix(p, dir))
		}
	}
	return p
}

// check refuses source if it, or what it resolves to, is dangerous, lies below something dangerous, or contains it.
func (d *dangers) check(source, real string) error {
	refuse := func(how, what string) error {
		return &DangerousMountError{Source: source, Dangerous: what, How: how}
	}
	for _, p := range []string{source, real} {
		for _, name := range d.names {
			switch {
			case p == name:
				return refuse("is", name)
			case within(p, name):
				return refuse("lies below", name)
			case within(name, p):
				return refuse("contains", name)
			}
		}
		for part := range strings.SplitSeq(p, "/") {
			for _, never := range componentsNeverMounted() {
				if part == never {
					return refuse("lies below", never)
				}
			}
		}
	}
	for p := real; ; p = filepath.Dir(p) {
		if id, ok := identityOf(p); ok && d.selves[id] != "" {
			return refuse("lies below", d.selves[id])
		}
		if p == "/" {
			break
		}
	}
	if id, ok := identityOf(real); ok && d.parents[id] != "" {
		return refuse("contains", d.parents[id])
	}
	for _, m := range d.mounts {
		if m == real || !within(m, real) {
			continue
		}
		id, _ := identityOf(m)
		if what := d.selves[id] + d.parents[id]; what != "" {
			return refuse("carries a mount of", what)
		}
	}
	return nil
}

// mountPoints reads the mount table; 1 MiB of it, which is some ten thousand mounts.
func mountPoints() []string {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	var points []string
	lines := bufio.NewScanner(f)
	for size := 0; lines.Scan() && size < 1<<20; size += len(lines.Bytes()) {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			points = append(points, unescapeMount(fields[4]))
		}
	}
	return points
}

// unescapeMount undoes the kernel's octal escapes of blanks and backslashes in the mount table.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

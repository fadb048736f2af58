package native

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeHome makes a home with one of each dangerous thing in it.
func fakeHome(t *testing.T) string {
	t.Helper()
	home := filepath.Join(t.TempDir(), "home")
	for _, p := range DangerousBelowHome() {
		p = filepath.Join(home, strings.Replace(p, "*", ".toml", 1))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(p); err != nil {
			write(t, filepath.Join(p, "inner", "file"), "x")
		}
	}
	if err := os.MkdirAll(filepath.Join(home, "project", "src"), 0o755); err != nil {
		t.Fatal(err)
	}
	return home
}

func TestDangerousMountsAreRefused(t *testing.T) {
	home := fakeHome(t)
	d := newDangers([]string{home}, []string{filepath.Join(home, "project", "gateway-state")})
	check := func(source string) error {
		real, err := filepath.EvalSymlinks(source)
		if err != nil {
			real = source
		}
		return d.check(source, real)
	}
	wantRefused := func(source string) {
		t.Helper()
		if err := check(source); !errors.As(err, new(*DangerousMountError)) {
			t.Errorf("%s: %v", source, err)
		}
	}
	for _, p := range DangerousBelowHome() {
		p = filepath.Join(home, strings.Replace(p, "*", ".toml", 1))
		wantRefused(p)
		wantRefused(filepath.Join(p, "inner", "file"))
		wantRefused(filepath.Dir(p))
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(p, link); err != nil {
			t.Fatal(err)
		}
		wantRefused(link)
		wantRefused(filepath.Join(link, "inner"))
		parent := filepath.Join(t.TempDir(), "parent")
		if err := os.Symlink(filepath.Dir(p), parent); err != nil {
			t.Fatal(err)
		}
		wantRefused(filepath.Join(parent, filepath.Base(p)))
		wantRefused(parent)
	}
	for _, p := range DangerousPaths() {
		wantRefused(p)
		wantRefused(filepath.Join(p, "below"))
		wantRefused(filepath.Dir(p))
	}
	for _, p := range []string{"/", home, filepath.Dir(home), "/proc/self/root", "/proc/self/cwd", "/somebody/.ssh/keys", "/backup/.aws", filepath.Join(home, "project")} {
		wantRefused(p)
	}
	for _, p := range []string{filepath.Join(home, "project", "src"), t.TempDir(), filepath.Join(home, ".cargo/bin"), "/usr/share", "/srv/work"} {
		if err := check(p); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// A home behind a link, in which nothing dangerous exists yet: a sandbox that had it could make postern's configuration.
func TestDangerousThingsThatAreMissingAreKnownBehindLinks(t *testing.T) {
	real := filepath.Join(t.TempDir(), "data", "user")
	home := filepath.Join(t.TempDir(), "user")
	if err := errors.Join(os.MkdirAll(filepath.Join(real, "project"), 0o755), os.Symlink(real, home)); err != nil {
		t.Fatal(err)
	}
	d := newDangers([]string{home}, nil)
	for _, p := range []string{real, filepath.Dir(real)} {
		if err := d.check(p, p); !errors.As(err, new(*DangerousMountError)) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if p := filepath.Join(real, "project"); d.check(p, p) != nil {
		t.Errorf("a project is refused: %v", d.check(p, p))
	}
}

func TestDangerousThingsAreKnownUnderOtherNames(t *testing.T) {
	home := fakeHome(t)
	netrc := filepath.Join(home, "real", "netrc")
	write(t, netrc, "x")
	if err := errors.Join(os.RemoveAll(filepath.Join(home, ".netrc")), os.Link(netrc, filepath.Join(home, ".netrc"))); err != nil {
		t.Fatal(err)
	}
	d := newDangers([]string{home}, nil)
	if err := d.check(netrc, netrc); !errors.As(err, new(*DangerousMountError)) {
		t.Errorf("a hard link to .netrc: %v", err)
	}
	// Where ~/.ssh is itself a link, what it leads to is as dangerous, and so is what contains that.
	vault := filepath.Join(t.TempDir(), "vault")
	if err := errors.Join(os.MkdirAll(filepath.Join(vault, "keys"), 0o755), os.RemoveAll(filepath.Join(home, ".ssh")), os.Symlink(filepath.Join(vault, "keys"), filepath.Join(home, ".ssh"))); err != nil {
		t.Fatal(err)
	}
	d = newDangers([]string{home}, nil)
	for _, p := range []string{vault, filepath.Join(vault, "keys")} {
		if err := d.check(p, p); !errors.As(err, new(*DangerousMountError)) {
			t.Errorf("%s: %v", p, err)
		}
	}
	// A directory that carries a mount of something dangerous.
	d.mounts = []string{filepath.Join(home, "real", "bound")}
	if err := os.MkdirAll(d.mounts[0], 0o755); err != nil {
		t.Fatal(err)
	}
	id, _ := identityOf(d.mounts[0])
	d.selves[id] = "/dev"
	if err := d.check(filepath.Join(home, "real"), filepath.Join(home, "real")); err == nil || !strings.Contains(err.Error(), "carries a mount of /dev") {
		t.Errorf("a mount below: %v", err)
	}
}

func TestDangerousMountCanBeAllowedByName(t *testing.T) {
	spec := newSpec(t)
	dir := filepath.Join(t.TempDir(), ".aws")
	write(t, filepath.Join(dir, "config"), "x")
	spec.Mounts = append(spec.Mounts, Mount{Source: dir, Target: "/mnt/aws"})
	var refused *DangerousMountError
	if err := startFails(t, spec); !errors.As(err, &refused) || refused.Source != dir || !strings.Contains(err.Error(), "--allow-dangerous-mount") {
		t.Errorf("%v", err)
	}
	spec.AllowDangerousMount = true
	spec.Command = []string{"cat", "/mnt/aws/config"}
	res := run(t, spec)
	if res.out != "x" || len(res.notes) == 0 || !strings.Contains(res.notes[0], "dangerous mount allowed") {
		t.Errorf("%+v", res)
	}
}

func TestHomeIsNeverMounted(t *testing.T) {
	spec := newSpec(t)
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	spec.Mounts = []Mount{{Source: home, Write: true}}
	if err := startFails(t, spec); !errors.As(err, new(*DangerousMountError)) {
		t.Error(err)
	}
}

func TestMountTableEscapesAreUndone(t *testing.T) {
	for in, want := range map[string]string{`/a\040b`: "/a b", `/a\134b`: `/a\b`, `/plain`: "/plain", `/end\04`: `/end\04`, `\`: `\`} {
		if got := unescapeMount(in); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

package native

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestOnlyWhatIsNamedIsVisible(t *testing.T) {
	spec := newSpec(t)
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "the host's")
	if got := shell(t, spec, "cat "+secret+" 2>&1 || true"); strings.Contains(got, "the host's") || !strings.Contains(got, "No such file") {
		t.Errorf("a file that was not mounted: %s", got)
	}
	spec.Mounts = append(spec.Mounts, Mount{Source: filepath.Dir(secret)})
	if got := shell(t, spec, "cat "+secret); got != "the host's" {
		t.Errorf("a file that was mounted: %s", got)
	}
	allowed := map[string]bool{"proc": true, "dev": true, "tmp": true, "var": true, "run": true, "home": true, "mnt": true}
	for _, e := range systemEntries() {
		allowed[strings.Split(e.Path, "/")[1]] = true
	}
	for _, name := range strings.Fields(shell(t, spec, "ls /")) {
		if !allowed[name] {
			t.Errorf("/%s is in the sandbox", name)
		}
	}
}

func TestSystemAndReadOnlyMountsCannotBeWritten(t *testing.T) {
	spec := newSpec(t)
	ro := t.TempDir()
	write(t, filepath.Join(ro, "f"), "old")
	spec.Mounts = append(spec.Mounts, Mount{Source: ro})
	for _, p := range []string{"/x", "/usr/x", "/usr/bin/x", "/etc/x", "/etc/passwd", "/var/lib/x", "/home/x", "/dev/x", "/proc/sys/kernel/core_pattern", ro + "/f", ro + "/new", "/.postern/files/0"} {
		got := shell(t, spec, "(echo new >>"+p+") 2>&1 || true")
		if !strings.Contains(got, "Read-only file system") && !strings.Contains(got, "Permission denied") {
			t.Errorf("writing %s: %q", p, got)
		}
	}
	if got := read(t, filepath.Join(ro, "f")); got != "old" {
		t.Errorf("a read-only file was changed to %q", got)
	}
	spec.Mounts[len(spec.Mounts)-1].Write = true
	shell(t, spec, "echo new >"+ro+"/f")
	if got := read(t, filepath.Join(ro, "f")); got != "new\n" {
		t.Errorf("a writable file was not changed: %q", got)
	}
}

func TestHostSecretsAreMasked(t *testing.T) {
	spec := newSpec(t)
	masked := 0
	for _, e := range append(maskedEntries(), procEntries()...) {
		if _, err := os.Stat(e.Path); err != nil || e.Kind != "masked" {
			continue
		}
		masked++
		got := shell(t, spec, fmt.Sprintf("if [ -d %[1]s ]; then ls %[1]s; else cat %[1]s; fi 2>&1 || true", e.Path))
		if !strings.Contains(got, "Permission denied") {
			t.Errorf("%s: %s", e.Path, got)
		}
	}
	if masked < 5 {
		t.Errorf("only %d masks were tried", masked)
	}
	mine := filepath.Join(spec.Workdir, "secret")
	write(t, mine, "value")
	spec.Mask = []string{mine}
	if got := shell(t, spec, "cat "+mine+" 2>&1 || true"); strings.Contains(got, "value") {
		t.Errorf("a path that the caller masked: %s", got)
	}
	if got := shell(t, spec, "ls -d /sys 2>&1 || true"); !strings.Contains(got, "No such file") {
		t.Errorf("/sys: %s", got)
	}
}

func TestPrivateDirectoriesAreNotTheHosts(t *testing.T) {
	spec := newSpec(t)
	marker := "postern-" + filepath.Base(spec.Workdir) + fmt.Sprint(os.Getpid())
	for _, dir := range []string{"/tmp", "/var/tmp", "/run", "/dev/shm", "$HOME"} {
		shell(t, spec, "test -z \"$(ls -A "+dir+" | grep -v -e ^lock$ -e ^postern -e ^Test -e ^go-build)\" && echo x >"+dir+"/"+marker)
		if _, err := os.Stat(filepath.Join(os.ExpandEnv(dir), marker)); err == nil {
			t.Errorf("%s is the host's", dir)
		}
	}
	if got := shell(t, spec, "stat -c '%a %U' $HOME; cd; pwd"); got != "700 sandbox\n/home/tester" {
		t.Errorf("home is %q", got)
	}
	if got := shell(t, spec, "id -un; hostname; getent hosts localhost | wc -l; stat -c %a /tmp"); got != "sandbox\nsandbox\n1\n1777" {
		t.Errorf("names are %q", got)
	}
}

func TestScratchSpaceIsBounded(t *testing.T) {
	spec := newSpec(t)
	spec.Limits.Scratch = 1 << 20
	if got := shell(t, spec, "head -c 2000000 /dev/zero >/tmp/f 2>/dev/null; cp /etc/services /home/tester/f 2>/dev/null; cat /tmp/f /home/tester/f | wc -c"); number(got) > 1<<20 || number(got) < 1<<19 {
		t.Errorf("of 2 MB %s bytes were written", got)
	}
}

func TestFilesAreGenerated(t *testing.T) {
	spec := newSpec(t)
	etc := t.TempDir()
	write(t, filepath.Join(etc, "hosts"), "the host's")
	for link, to := range map[string]string{"dangling": "/run/a/b/stub.conf", "relative": "hosts", "chain": "dangling2", "dangling2": "../../../../../run/chain"} {
		if err := os.Symlink(to, filepath.Join(etc, link)); err != nil {
			t.Fatal(err)
		}
	}
	spec.Mounts = append(spec.Mounts, Mount{Source: etc, Target: "/mnt/etc"})
	spec.Files = []File{
		{Path: "/home/tester/.config/tool.json", Content: []byte("{}"), Mode: 0o600},
		{Path: "/mnt/etc/dangling", Content: []byte("resolver"), Overlay: true},
		{Path: "/mnt/etc/chain", Content: []byte("chained"), Overlay: true},
		{Path: "/mnt/etc/relative", Content: []byte("generated"), Overlay: true},
		{Path: "/mnt/etc/absent", Content: []byte("never"), Overlay: true},
		{Path: "/etc/hosts", Content: []byte("127.0.0.1 here\n")},
	}
	out := shell(t, spec, "cat /home/tester/.config/tool.json; stat -c %a /home/tester/.config/tool.json; echo >>/home/tester/.config/tool.json && cat /mnt/etc/dangling /run/a/b/stub.conf /mnt/etc/chain /mnt/etc/hosts /etc/hosts; ls /mnt/etc/absent 2>&1 || true")
	if want := "{}600\nresolverresolverchainedgenerated127.0.0.1 here\n"; !strings.HasPrefix(out, want) || !strings.Contains(out, "No such file") {
		t.Errorf("files are %q", out)
	}
	if got := read(t, filepath.Join(etc, "hosts")); got != "the host's" {
		t.Errorf("the host's own file is now %q", got)
	}
}

// startFails wants Start to refuse spec.
func startFails(t *testing.T, spec Spec) error {
	t.Helper()
	spec.Command = []string{"true"}
	p, err := Start(t.Context(), spec)
	if err == nil {
		p.Kill()
		p.Wait()
		t.Fatal("the sandbox started")
	}
	return err
}

func TestNothingIsCreatedInTheHostsDirectories(t *testing.T) {
	spec := newSpec(t)
	spec.Files = []File{{Path: filepath.Join(spec.Workdir, "new"), Content: []byte("x")}}
	if err := startFails(t, spec); !errors.Is(err, errHostTarget) && !strings.Contains(err.Error(), errHostTarget.Error()) {
		t.Error(err)
	}
	spec.Files = nil
	spec.Mounts = append(spec.Mounts, Mount{Source: t.TempDir(), Target: filepath.Join(spec.Workdir, "sub")})
	if err := startFails(t, spec); !strings.Contains(err.Error(), errHostTarget.Error()) {
		t.Error(err)
	}
	if left, _ := os.ReadDir(spec.Workdir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestMountTargetsDoNotFollowLinks(t *testing.T) {
	spec := newSpec(t)
	if err := os.Symlink("/etc", filepath.Join(spec.Workdir, "data")); err != nil {
		t.Fatal(err)
	}
	spec.Mounts = append(spec.Mounts, Mount{Source: t.TempDir(), Target: filepath.Join(spec.Workdir, "data")})
	startFails(t, spec)
	for _, target := range []string{"/", "/etc", "/etc/ssl", "/proc/self", "/dev/shm/x", "/usr/share/x", "/lib64", "/.postern/x"} {
		spec.Mounts[len(spec.Mounts)-1].Target = target
		startFails(t, spec)
	}
}

func TestProtectedPathsStayAsTheyAre(t *testing.T) {
	spec := newSpec(t)
	repo := filepath.Join(spec.Workdir, ".git")
	write(t, filepath.Join(repo, "config"), "[core]")
	write(t, filepath.Join(repo, "HEAD"), "ref")
	write(t, filepath.Join(repo, "hooks", "pre-commit.sample"), "#!")
	attacks := []string{
		"echo x >>.git/config", "rm .git/config", "mv .git/config .git/c", "echo x >c; mv c .git/config", "echo x >.git/hooks/pre-commit", "mv .git/hooks .git/h",
		"rm -r .git/hooks", "mv .git elsewhere", "mkdir d; mv -T d .git", "ln .git/config copy && echo x >>copy",
	}
	spec.Protect = []string{filepath.Join(repo, "config"), filepath.Join(repo, "hooks"), filepath.Join(spec.Workdir, "postern.yaml")}
	for _, attack := range attacks {
		if got := shell(t, spec, "("+attack+") 2>&1 && echo DONE || true"); strings.Contains(got, "DONE") {
			t.Errorf("%s worked: %s", attack, got)
		}
	}
	if got := read(t, filepath.Join(repo, "config")); got != "[core]" {
		t.Errorf("config is now %q", got)
	}
	shell(t, spec, "echo x >.git/HEAD && mkdir -p .git/objects && echo y >.git/objects/z && echo w >file")
	spec.Command = []string{"true"}
	if notes := fmt.Sprint(run(t, spec).notes); !strings.Contains(notes, "postern.yaml is not protected") {
		t.Errorf("a missing path is not told: %s", notes)
	}
	spec.Protect = nil
	for _, attack := range attacks[:2] { // the arm without protection
		shell(t, spec, attack)
	}
}

func TestProtectionIsOfTheFileAndNotOfItsName(t *testing.T) {
	spec := newSpec(t)
	policy := filepath.Join(spec.Workdir, "sub", "postern.yaml")
	write(t, policy, "deny")
	link := filepath.Join(t.TempDir(), "outside")
	if err := os.Symlink(filepath.Dir(policy), link); err != nil {
		t.Fatal(err)
	}
	spec.Mounts = append(spec.Mounts, Mount{Source: spec.Workdir, Target: "/src", Write: true}, Mount{Source: filepath.Dir(policy), Target: "/mnt/sub", Write: true},
		Mount{Source: policy, Target: "/mnt/file", Write: true})
	attacks := []string{"echo x >>/src/sub/postern.yaml", "mv /src/sub /src/s", "rm /mnt/sub/postern.yaml", "echo x >/mnt/file", "echo x >/mnt/sub/n; mv /mnt/sub/n /mnt/sub/postern.yaml"}
	for _, name := range []string{policy, filepath.Join(link, "postern.yaml")} {
		spec.Protect = []string{name}
		for _, attack := range attacks {
			if got := shell(t, spec, "("+attack+") 2>&1 && echo DONE || true"); strings.Contains(got, "DONE") {
				t.Errorf("protected as %s: %s worked: %s", name, attack, got)
			}
		}
	}
	if err := os.Symlink("sub", filepath.Join(spec.Workdir, "inside")); err != nil {
		t.Fatal(err)
	}
	spec.Protect = []string{filepath.Join(spec.Workdir, "inside", "postern.yaml")} // the link itself could be replaced
	startFails(t, spec)
	spec.Protect = []string{policy}
	if err := os.Link(policy, filepath.Join(spec.Workdir, "second")); err != nil {
		t.Fatal(err)
	}
	startFails(t, spec)
	spec.Protect = nil
	shell(t, spec, attacks[0]) // the arm without protection
	if got := read(t, policy); got != "denyx\n" {
		t.Errorf("the policy is now %q", got)
	}
}

func TestUnixSocketsOfTheHostAreMasked(t *testing.T) {
	spec := newSpec(t)
	deep := filepath.Join(spec.Workdir, "a", "b")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(deep) // the name in the kernel's list is relative: only the walk finds this one
	l, err := net.Listen("unix", "agent.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod("agent.sock", 0o777); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(deep, "agent.sock")
	wantHeld(t, spec, "EACCES", "connect", name)
	if got := shell(t, spec, "(mv a c && "+probePath+" probe connect c/b/agent.sock; ln c/b/agent.sock x && "+probePath+" probe connect x) 2>&1 || true"); strings.Contains(got, "ok") {
		t.Errorf("the socket under another name: %s", got)
	}
}

func TestSocketsBeyondTheSearchAreFoundInTheKernelsList(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	const header = "Num       RefCount Protocol Flags    Type St Inode Path\n"
	list := header + "0: 00000002 00000000 00010000 0001 01 77 " + dir + "/a/b/s\n0: 00000002 00000000 00010000 0001 01 78 @abstract\n0: 00000002 00000000 00010000 0001 01 79 /elsewhere/s\n"
	mounts := []planMount{{Source: dir, Target: "/inside", Dir: true}}
	f, err := searchSockets(mounts, 0, strings.NewReader(list), time.Time{}) // a deadline that is over
	if err != nil {
		t.Fatal(err)
	}
	if len(f.sockets) != 1 || f.sockets[0] != "/inside/a/b/s" || len(f.notes) != 1 {
		t.Errorf("found %+v", f)
	}
	f, err = searchSockets(mounts, 0, strings.NewReader(header), time.Now().Add(time.Minute))
	if err != nil || len(f.sockets)+len(f.notes) != 0 {
		t.Errorf("found %+v, %v", f, err)
	}
}

func TestCommandOwnsWhatTheOwnerOwns(t *testing.T) {
	if !isRoot() {
		spec := newSpec(t)
		shell(t, spec, "touch f && test -O f")
		checkOwner(t, filepath.Join(spec.Workdir, "f"), uint32(os.Getuid()))
		return
	}
	for _, owner := range []uint32{0, 1234, nobody} {
		spec := newSpec(t)
		old := filepath.Join(spec.Workdir, "old")
		write(t, old, "x")
		other := filepath.Join(spec.Workdir, "other")
		write(t, other, "y")
		if err := errors.Join(os.Chown(spec.Workdir, int(owner), int(owner)), os.Chown(old, int(owner), int(owner)), os.Chown(other, 777, 777), os.Chmod(other, 0o600), os.Chmod(spec.Workdir, 0o700)); err != nil {
			t.Fatal(err)
		}
		spec.Identity = Identity{4321, 4321}
		if got := shell(t, spec, "stat -c %u . old; echo more >>old; mkdir d; echo z >d/new; cat other 2>&1; (rm -f other && echo gone)"); !strings.HasPrefix(got, "4321\n4321\ncat: other: Permission denied") || !strings.HasSuffix(got, "gone") {
			t.Errorf("owner %d: %q", owner, got)
		}
		for _, name := range []string{"old", "d", "d/new"} {
			checkOwner(t, filepath.Join(spec.Workdir, name), owner)
		}
	}
}

func checkOwner(t *testing.T, name string, want uint32) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		t.Fatal(err)
	}
	if st.Uid != want || st.Gid != want {
		t.Errorf("%s belongs to %d:%d on the host, want %d", name, st.Uid, st.Gid, want)
	}
}

func TestDirectoryThatOnlyRootMayEnterCanBeMounted(t *testing.T) {
	spec := newSpec(t)
	dir := filepath.Join(t.TempDir(), "private", "work")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(filepath.Dir(dir), 0o700)); err != nil {
		t.Fatal(err)
	}
	spec.Mounts = append(spec.Mounts, Mount{Source: dir, Write: true})
	spec.Workdir = dir
	shell(t, spec, "echo x >f")
	if got := read(t, filepath.Join(dir, "f")); got != "x\n" {
		t.Error(got)
	}
}

func TestReplacedSourceIsRefused(t *testing.T) {
	dir := t.TempDir()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	_, err := (&planMount{Source: dir, Dev: st.Dev, Ino: st.Ino + 1}).clone(attrRead)
	if err == nil || !strings.Contains(err.Error(), "was replaced") {
		t.Error(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, err := (&planMount{Source: link, Dev: st.Dev, Ino: st.Ino}).clone(attrRead); !errors.Is(err, syscall.ELOOP) {
		t.Error(err)
	}
}

func TestSwapExchangesTwoIDsAndKeepsTheRest(t *testing.T) {
	for _, c := range [][2]uint32{{0, 65534}, {65534, 0}, {1000, 1001}, {5, 5}, {0, 1}, {0, 1<<32 - 2}} {
		apply := func(id uint32) (uint32, bool) {
			for _, m := range swap(c[0], c[1]) {
				if uint64(id) >= uint64(m.ContainerID) && uint64(id) < uint64(m.ContainerID)+uint64(m.Size) {
					return uint32(uint64(m.HostID) + uint64(id) - uint64(m.ContainerID)), true
				}
			}
			return 0, false
		}
		for _, id := range []uint32{0, 1, 2, 4, 5, 6, 999, 1000, 1001, 1002, 65533, 65534, 65535, 1<<32 - 3, 1<<32 - 2} {
			want := id
			switch id {
			case c[0]:
				want = c[1]
			case c[1]:
				want = c[0]
			}
			if got, ok := apply(id); !ok || got != want {
				t.Errorf("swap(%d, %d) maps %d to %d, want %d", c[0], c[1], id, got, want)
			}
		}
	}
}

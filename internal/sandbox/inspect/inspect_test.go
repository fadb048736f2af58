package inspect

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is also the inspector, as the gateway's is.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == Name {
		os.Exit(Main(os.Args, os.Stdin, os.Stdout))
	}
	goleak.VerifyTestMain(m)
}

func TestStatusIsNotHeldUntilSeen(t *testing.T) {
	var s Status
	if s != NotHeld || (Result{}).Status != NotHeld || (Finding{}).Status != NotHeld {
		t.Error("the zero value says that a protection holds")
	}
	for _, s := range []Status{NotHeld, Held, Unavailable} {
		text, err := s.MarshalText()
		back := Status(99)
		if err != nil || back.UnmarshalText(text) != nil || back != s {
			t.Errorf("%d is written as %q and read as %d", s, text, back)
		}
	}
	if err := s.UnmarshalText([]byte("fine")); err == nil {
		t.Error("a status that does not exist was read")
	}
}

func TestChecksAreDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		group, name, ok := strings.Cut(c.ID, ".")
		if !ok || group == "" || name == "" || c.ID != strings.ToLower(c.ID) {
			t.Errorf("%q is not group.name in lower case", c.ID)
		}
		if seen[c.ID] {
			t.Errorf("%s stands twice", c.ID)
		}
		seen[c.ID] = true
		if c.Title == "" || c.Means == "" || c.Remedy == "" || c.run == nil {
			t.Errorf("%s lacks a title, a meaning, a remedy or a way to find out", c.ID)
		}
	}
}

// bare runs the inspector as a process of the host, in a network namespace that has nothing so that nothing is sent anywhere.
func bare(t *testing.T, p *Plan, uid int) map[string]Finding {
	t.Helper()
	dir, err := os.MkdirTemp("", "postern-inspect-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self := filepath.Join(dir, Name)
	if err := errors.Join(os.Chmod(dir, 0o755), copyFile("/proc/self/exe", self)); err != nil {
		t.Fatal(err)
	}
	plan, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Dir = "/"
	cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "GITHUB_TOKEN=" + strings.Repeat("x", 40)}
	cmd.Stdin = bytes.NewReader(plan)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	} else {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the inspector failed: %v", err)
	}
	found := map[string]Finding{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var f Finding
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		if _, twice := found[f.ID]; twice {
			t.Errorf("%s was reported twice", f.ID)
		}
		found[f.ID] = f
	}
	return found
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func users() []int {
	if os.Getuid() != 0 {
		return []int{os.Getuid()}
	}
	return []int{0, 54321}
}

// The host is open. An inspector that runs on it and finds a wall is one that cannot be believed when it finds one in a sandbox.
func TestBareHostIsNotTakenForASandbox(t *testing.T) {
	own := map[string]string{}
	for _, k := range namespaceKinds() {
		link, err := os.Readlink("/proc/self/ns/" + k[0])
		if err != nil {
			t.Fatal(err)
		}
		own[k[0]] = link
	}
	witness, err := ReadWitness("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	marker := filepath.Join(t.TempDir(), "marker")
	if err := os.WriteFile(marker, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	p := &Plan{
		Namespaces: own, Witness: witness, Nonce: "nonce", Host: "nowhere.invalid", Public4: "203.0.113.7", Public6: "3fff::7", Metadata: []string{"169.254.169.254:80"},
		Synthetic: []string{"198.18.0.0/15"}, Homes: []string{"/"}, Absent: []string{"/etc/passwd"}, ReadOnly: []string{"/dev/null"},
	}
	// What an ordinary user's host keeps closed by itself, or what was made for this test.
	always := map[string]string{
		"namespaces.net": "the test's own", "namespaces.user": "the test's own, for an ordinary user", "network.links": "the namespace has only lo",
		"network.routes": "and no routes", "network.icmp": "an ordinary user may have no socket for it", "files.sockets": "the host may have no daemons",
		"files.propagation": "the host may share no mount", "process.descriptors": "the test passed none on", "process.core": "the caller's limit", "process.rlimits": "the caller's limit",
	}
	ordinary := map[string]string{
		"privileges.capabilities": "an ordinary user has none, but for the bounding set", "privileges.uid": "is not root", "privileges.init": "belongs to root",
		"privileges.mapping": "one id in the test's own user namespace", "files.system_secrets": "belong to root",
	}
	for _, uid := range users() {
		found := bare(t, p, uid)
		for _, c := range Checks() {
			f, ok := found[c.ID]
			if !ok {
				t.Errorf("uid %d: %s was not reported", uid, c.ID)
				continue
			}
			_, excused := always[c.ID]
			if _, more := ordinary[c.ID]; more && uid != 0 {
				excused = true
			}
			if f.Status == Held && !excused {
				t.Errorf("uid %d: %s holds on the bare host: %s", uid, c.ID, f.Evidence)
			}
		}
		if _, ok := found[KnockID]; !ok || len(found) != len(Checks())+1 {
			t.Errorf("uid %d: %d findings for %d checks and the knock", uid, len(found), len(Checks()))
		}
		if strings.Contains(found["process.credentials"].Evidence, "xxxx") {
			t.Error("the evidence quotes a variable's value")
		}
	}
}

func TestInspectorWithoutAPlanSaysNothing(t *testing.T) {
	for _, in := range []string{"", "{", `{"unknown": 1}`, "[]"} {
		var out bytes.Buffer
		if code := Main([]string{Name}, strings.NewReader(in), &out); code != 2 || out.Len() > 0 {
			t.Errorf("plan %q: exit %d, %d bytes", in, code, out.Len())
		}
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestInspectorStopsWhenNobodyListens(t *testing.T) {
	if code := Main([]string{Name}, strings.NewReader("{}"), brokenPipe{}); code != 1 {
		t.Errorf("exit %d", code)
	}
}

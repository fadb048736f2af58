package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"postern/internal/sandbox/inspect"
)

// Examinations run in a process of their own: a gateway hardens itself for good.
const doctorRole = "act-as-doctor"

func actDoctor(args []string) int {
	o := DoctorOptions{}
	for _, a := range args {
		if a == "without-namespaces" { // in a user namespace of the test's own
			if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 3
			}
			continue
		}
		o.Config = a
	}
	r, err := Doctor(context.Background(), o)
	if err == nil {
		err = errors.Join(json.NewEncoder(os.Stdout).Encode(r), goleak.Find())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	return 0
}

// patient is a user with a home, in which credentials lie about, and a policy.
type patient struct {
	uid                              int
	top, home, work, tmp, config, in string
	namespaces                       bool // false: a user namespace in which no further one is allowed
}

func newPatient(t *testing.T, uid int) *patient {
	t.Helper()
	top, err := os.MkdirTemp("", "postern-daemon-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	p := &patient{uid: uid, top: top, home: filepath.Join(top, "home"), tmp: filepath.Join(top, "tmp"), namespaces: true}
	p.work, p.config = filepath.Join(p.home, "work"), filepath.Join(p.home, ".config/postern/postern.yaml")
	p.in = p.work
	for _, dir := range []string{p.work, p.tmp, filepath.Join(top, "audit")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".ssh/id_ed25519", ".aws/credentials", ".config/gh/hosts.yml", ".netrc", ".claude/.credentials.json", ".config/postern/key"} {
		p.write(t, filepath.Join(p.home, name), "", 0o600)
	}
	p.policy(t, "")
	return p
}

func (p *patient) write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// policy writes postern.yaml with further lines of the profile.
func (p *patient) policy(t *testing.T, profile string) {
	t.Helper()
	p.write(t, p.config, fmt.Sprintf(`version: 1
credentials:
  stripe: {kind: api-key, source: {file: %s}}
audit: {dir: %s}
profiles:
  default:
    allow:
      - host: api.stripe.com
        inject: {credential: stripe, header: Authorization, format: "Bearer {}"}
%s`, filepath.Join(p.home, ".config/postern/key"), filepath.Join(p.top, "audit"), profile), 0o600)
}

// examine runs doctor as the patient, from a copy of this binary that everybody can reach.
func (p *patient) examine(t *testing.T) (*Report, map[string]Entry) {
	t.Helper()
	self := filepath.Join(p.top, "postern")
	if _, err := os.Stat(self); err != nil {
		if err := copyProgram(self); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(self, doctorRole, p.config)
	cmd.Dir = p.in
	cmd.Env = []string{"HOME=" + p.home, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + p.tmp, "GITHUB_TOKEN=" + nonce(), "SSH_AUTH_SOCK=/nowhere", "GORACE=atexit_sleep_ms=0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		chownAll(t, p.top, p.uid)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(p.uid), Gid: uint32(p.uid)}
	}
	if !p.namespaces {
		cmd.Args = append(cmd.Args, "without-namespaces")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
	}
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		t.Fatalf("doctor: %v\n%s", err, complaint.String())
	}
	r := &Report{}
	if err := json.Unmarshal(out.Bytes(), r); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	byID := map[string]Entry{}
	for _, e := range r.Checks {
		byID[e.ID] = e
	}
	return r, byID
}

func copyProgram(to string) error {
	in, err := os.Open("/proc/self/exe")
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

func chownAll(t *testing.T, top string, uid int) {
	t.Helper()
	err := filepath.WalkDir(top, func(name string, _ os.DirEntry, err error) error {
		if err == nil && name != filepath.Join(top, "postern") {
			err = os.Lchown(name, uid, uid)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// users are root and an ordinary user, as far as the caller can be both; the ordinary one is last.
func users() []int {
	if os.Getuid() != 0 {
		return []int{os.Getuid()}
	}
	return []int{0, 54321}
}

func ordinary() int { return users()[len(users())-1] }

func TestDoctorSeesEveryWallHold(t *testing.T) {
	for _, uid := range users() {
		p := newPatient(t, uid)
		start := time.Now()
		r, _ := p.examine(t)
		t.Logf("uid %d: %d checks in %s", uid, len(r.Checks), time.Since(start).Round(time.Millisecond))
		for _, e := range r.Checks {
			missing := e.ID == "limits.cgroup" || e.ID == "machine.idmap" || strings.HasPrefix(e.ID, "privileges.landlock")
			if e.Status != inspect.Held && !(missing && e.Status == inspect.Unavailable) {
				t.Errorf("uid %d: %s: %s: %s", uid, e.ID, e.Status, e.Evidence)
			}
			if e.Status == inspect.Held && (e.Means != "" || e.Remedy != "" || e.Evidence == "") {
				t.Errorf("%s: held, and says %q, %q, %q", e.ID, e.Evidence, e.Means, e.Remedy)
			}
		}
		if !r.OK || r.Held+r.NotHeld+r.NotAvailable != len(r.Checks) || len(r.Checks) != len(DoctorChecks()) || r.Policy != p.config || r.UID != p.uid {
			t.Errorf("the report does not add up: %+v", r)
		}
		left, err := os.ReadDir(p.tmp)
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	}
}

// A sandbox that is given too much is told from one that is not, each wall alone.
func TestDoctorNamesWhatDoesNotHold(t *testing.T) {
	cases := map[string]struct {
		spoil    func(t *testing.T, p *patient)
		id       string
		evidence string
		fatal    bool // the sandbox is not to be used
	}{
		"a credential in the environment": {func(t *testing.T, p *patient) {
			p.policy(t, "    env: {DEPLOY_PASSWORD: open-sesame}\n")
		}, "process.credentials", "DEPLOY_PASSWORD", true},
		"a credential that others can read": {func(t *testing.T, p *patient) {
			if err := os.Chmod(filepath.Join(p.home, ".config/postern/key"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "policy.credentials", "mode 0644", false},
		"a credential that is not there": {func(t *testing.T, p *patient) {
			if err := os.Remove(filepath.Join(p.home, ".config/postern/key")); err != nil {
				t.Fatal(err)
			}
		}, "policy.credentials", "does not exist", false},
		"a policy with a mistake": {func(t *testing.T, p *patient) { p.write(t, p.config, "version: 2\n", 0o600) }, "policy.file", "version", true},
		"an audit directory open to others": {func(t *testing.T, p *patient) {
			if err := os.Chmod(filepath.Join(p.top, "audit"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, "gateway.audit", "audit", true},
		"a log that was edited": {func(t *testing.T, p *patient) {
			if r, _ := p.examine(t); !r.OK {
				t.Fatal("the first examination found something")
			}
			logs, err := filepath.Glob(filepath.Join(p.top, "audit", "*-*.jsonl"))
			if err != nil || len(logs) == 0 {
				t.Fatal("no log was written")
			}
			text, err := os.ReadFile(logs[0])
			if err != nil {
				t.Fatal(err)
			}
			p.write(t, logs[0], strings.Replace(string(text), "doctor", "nobody", 1), 0o600)
		}, "gateway.audit_chain", "line 1", true},
		"a home directory as working directory": {func(_ *testing.T, p *patient) { p.in = p.home }, "sandbox.directory", ".config/postern", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t, ordinary())
			c.spoil(t, p)
			r, found := p.examine(t)
			e := found[c.id]
			if e.Status != inspect.NotHeld || !strings.Contains(e.Evidence, c.evidence) || e.Means == "" || e.Remedy == "" {
				t.Errorf("%s: %s: %q, means %q, remedy %q", c.id, e.Status, e.Evidence, e.Means, e.Remedy)
			}
			if r.OK == c.fatal {
				t.Errorf("OK is %t", r.OK)
			}
			for _, e := range r.Checks {
				if e.Status == inspect.NotHeld && e.ID != c.id {
					t.Errorf("also %s: %s", e.ID, e.Evidence)
				}
			}
		})
	}
}

func TestDoctorExplainsWhyNoSandboxStarts(t *testing.T) {
	p := newPatient(t, os.Getuid())
	p.namespaces = false
	r, found := p.examine(t)
	if r.OK || found["sandbox.start"].Status != inspect.NotHeld || found["machine.user_namespaces"].Status != inspect.NotHeld {
		t.Errorf("OK is %t; start: %+v; namespaces: %+v", r.OK, found["sandbox.start"], found["machine.user_namespaces"])
	}
	for _, id := range []string{"sandbox.start", "machine.user_namespaces"} {
		if !strings.Contains(found[id].Remedy, "max_user_namespaces") {
			t.Errorf("%s: the remedy is %q", id, found[id].Remedy)
		}
	}
	for _, c := range inspect.Checks() {
		if e := found[c.ID]; e.Status != inspect.Unavailable || e.Made() || e.Remedy != "" {
			t.Errorf("%s was not made, and says %s, %q", c.ID, e.Status, e.Evidence)
		}
	}
}

func TestRelaxationsAreListedByLine(t *testing.T) {
	p := newPatient(t, ordinary())
	p.policy(t, "      - {host: tunnel.example.com, tls: tunnel}\n")
	r, _ := p.examine(t)
	if !slices.ContainsFunc(r.Relaxations, func(s string) bool { return strings.Contains(s, "tunnel") }) {
		t.Errorf("relaxations: %q", r.Relaxations)
	}
}

func TestFindingsAreBounded(t *testing.T) {
	line := func(id, status string) string {
		return fmt.Sprintf(`{"id":%q,"status":%q,"evidence":"e"}`+"\n", id, status)
	}
	good := line("files.home", "held")
	for name, c := range map[string]struct {
		in   string
		want int
	}{
		"none": {"", 0}, "one": {good, 1}, "cut short": {good[:20], 0}, "not JSON": {"hello\n" + good, 1}, "no id": {line("", "held"), 0},
		"a status that does not exist": {line("files.home", "fine"), 0}, "a line that is too long": {strings.Repeat("x", inspect.MaxFinding+1) + "\n" + good, 0},
		"too many": {strings.Repeat(line("x.y", "held"), len(inspect.Checks())+1) + good, 1},
	} {
		if got := readFindings(strings.NewReader(c.in)); len(got) != c.want {
			t.Errorf("%s: %d findings, want %d", name, len(got), c.want)
		}
	}
}

func FuzzFindings(f *testing.F) {
	f.Add([]byte(`{"id":"files.home","status":"held","evidence":"4 entries"}` + "\n"))
	f.Add([]byte(`{"id":"a"}` + "\n" + `{"id":"a","status":"not_held"}`))
	f.Add([]byte("\x00\n{}\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		for id, finding := range readFindings(bytes.NewReader(in)) {
			if id == "" || id != finding.ID || len(finding.Evidence) > inspect.MaxFinding {
				t.Errorf("%q: %+v", id, finding)
			}
			if finding.Status == inspect.Held && !bytes.Contains(in, []byte("held")) && !bytes.Contains(in, []byte(`\u`)) {
				t.Error("something holds that nobody said holds")
			}
		}
	})
}

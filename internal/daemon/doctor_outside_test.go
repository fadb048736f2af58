package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
	"postern/internal/operator/config"
	"postern/internal/sandbox/inspect"
	"postern/internal/sandbox/native"
)

// What is judged from outside, on machines that are not like this one. What is not here is seen to fail in the tests of whole
// examinations.
func TestEveryOutsideCheckCanSayNotHeld(t *testing.T) {
	limits := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(limits, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("user/postern-1/memory.max", "1000\n")
	write("user/postern-1/pids.max", "max\n")
	list := map[string]outcome{
		"machine.kernel":          machine{release: "5.13.19-generic"}.kernel(),
		"machine.user_namespaces": machine{maxUserNamespaces: "0"}.userNamespaces(false),
		"machine.apparmor":        machine{euid: 1000, apparmorUserns: "1", program: "/usr/bin/postern"}.apparmor(false),
		"machine.idmap":           machine{}.idmap(false, &native.Error{Op: "idmap", Err: unix.EINVAL}, nil),
		"limits.cgroup":           examineCgroup("0::/user/postern-1\n", nil, limits),
		"gateway.dumpable":        examineDumpable(1, nil),
		"gateway.core":            examineCore(unix.Rlimit{Max: math.MaxUint64}, nil),
		"gateway.identity":        examineIdentity(errors.New("the process has ended"), 1, 2),
		"sandbox.start":           diagnose(&native.Error{Op: "root", Err: unix.EACCES}, machine{maxUserNamespaces: "1"}),
	}
	whole := []string{"policy.file", "policy.credentials", "sandbox.directory", "gateway.audit", "gateway.audit_chain", "network.host_tcp", "network.host_udp", "network.host_unix"}
	for _, c := range outsideChecks() {
		o, ok := list[c.ID]
		if ok && o.Status != inspect.NotHeld {
			t.Errorf("%s: %s: %s", c.ID, o.Status, o.Evidence)
		}
		if !ok && !strings.Contains(strings.Join(whole, " "), c.ID) {
			t.Errorf("%s: nothing shows that it can fail", c.ID)
		}
	}
}

func TestMachinesAreToldApart(t *testing.T) {
	write := func(dir, name, text string) string {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	v1 := write(write(t.TempDir(), "memory/a/postern-1/memory.limit_in_bytes", "1000\n"), "pids/postern-1/pids.max", "10\n")
	v2 := write(write(t.TempDir(), "u/postern-1/memory.max", "1000\n"), "u/postern-1/pids.max", "10\n")
	for name, c := range map[string]struct {
		got  outcome
		want inspect.Status
	}{
		"5.14":                         {machine{release: "5.14.0"}.kernel(), inspect.Held},
		"6.1":                          {machine{release: "6.1-rc3"}.kernel(), inspect.Held},
		"4.19":                         {machine{release: "4.19.0"}.kernel(), inspect.NotHeld},
		"no release":                   {machine{}.kernel(), inspect.NotHeld},
		"Debian's switch, user":        {machine{euid: 1000, maxUserNamespaces: "9", unprivilegedClone: "0"}.userNamespaces(false), inspect.NotHeld},
		"Debian's switch, root":        {machine{maxUserNamespaces: "9", unprivilegedClone: "0"}.userNamespaces(false), inspect.Held},
		"no user namespaces":           {machine{}.userNamespaces(false), inspect.NotHeld},
		"AppArmor with a profile":      {machine{euid: 1000, apparmorUserns: "1"}.apparmor(true), inspect.Held},
		"AppArmor, another failure":    {machine{euid: 1000, apparmorUserns: "1", profile: "postern (unconfined)"}.apparmor(false), inspect.Held},
		"AppArmor, root":               {machine{apparmorUserns: "1"}.apparmor(false), inspect.Held},
		"AppArmor off":                 {machine{euid: 1000, apparmorUserns: "0"}.apparmor(false), inspect.Held},
		"idmap, user":                  {machine{euid: 1000}.idmap(true, nil, nil), inspect.Unavailable},
		"idmap, note":                  {machine{}.idmap(true, nil, []string{"/x is mounted with its owner's ids: its file system has no idmapped mounts"}), inspect.Unavailable},
		"idmap":                        {machine{}.idmap(true, nil, nil), inspect.Held},
		"cgroup 1":                     {examineCgroup("5:memory:/a/postern-1\n4:x,pids:/postern-1\n", nil, v1), inspect.Held},
		"cgroup 1, memory alone":       {examineCgroup("5:memory:/a/postern-1\n4:pids:/\n", nil, v1), inspect.NotHeld},
		"cgroup 2":                     {examineCgroup("0::/u/postern-1\n", nil, v2), inspect.Held},
		"the caller's cgroup":          {examineCgroup("0::/u\n", nil, v2), inspect.Unavailable},
		"a cgroup that cannot be read": {examineCgroup("", unix.EACCES, v2), inspect.NotHeld},
		"no credentials":               {examineCredentials(nil, 0), inspect.Unavailable},
	} {
		if c.got.Status != c.want {
			t.Errorf("%s: %s: %s", name, c.got.Status, c.got.Evidence)
		}
	}
}

func TestCredentialSourcesAreLookedAtAndNotRead(t *testing.T) {
	dir := t.TempDir()
	name, err := gate.ParseCredentialName("key")
	if err != nil {
		t.Fatal(err)
	}
	value := nonce()
	file := func(n string, mode os.FileMode) string {
		n = filepath.Join(dir, n)
		if err := os.WriteFile(n, []byte(value), mode); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for what, c := range map[string]struct {
		source config.Source
		euid   int
		want   inspect.Status
	}{
		"private":           {config.Source{File: file("a", 0o600)}, os.Geteuid(), inspect.Held},
		"readable":          {config.Source{File: file("b", 0o640)}, os.Geteuid(), inspect.NotHeld},
		"a directory":       {config.Source{File: dir}, os.Geteuid(), inspect.NotHeld},
		"missing":           {config.Source{File: filepath.Join(dir, "none")}, os.Geteuid(), inspect.NotHeld},
		"a command":         {config.Source{Command: []string{"sh", "-c", "exit 1"}}, os.Geteuid(), inspect.Held},
		"a missing command": {config.Source{Command: []string{"no-such-command"}}, os.Geteuid(), inspect.NotHeld},
		"no source":         {config.Source{}, os.Geteuid(), inspect.NotHeld},
	} {
		o := examineCredentials(map[gate.CredentialName]config.Credential{name: {Name: name, Source: c.source}}, c.euid)
		if o.Status != c.want || strings.Contains(o.Evidence+o.remedy, value) || o.Status == inspect.NotHeld && o.remedy == "" {
			t.Errorf("%s: %s: %s → %s", what, o.Status, o.Evidence, o.remedy)
		}
	}
}

// The restriction protects the machine from every other program, so the remedy is never to lift it.
func TestAppArmorRemedyPermitsPosternAlone(t *testing.T) {
	o := diagnose(&native.Error{Op: "mount", Err: errors.New("permission denied")}, machine{euid: 1000, maxUserNamespaces: "9", apparmorUserns: "1", program: `/opt/a "b"/postern`})
	for _, want := range []string{`profile postern "/opt/a \"b\"/postern" flags=(unconfined) {`, "userns,", "/etc/apparmor.d/postern", "apparmor_parser -r"} {
		if !strings.Contains(o.remedy, want) {
			t.Errorf("the remedy lacks %q:\n%s", want, o.remedy)
		}
	}
	if strings.Contains(o.remedy, "sysctl") {
		t.Errorf("the remedy lifts the restriction:\n%s", o.remedy)
	}
}

func TestDiagnosisNamesTheReasonAndNotTheErrno(t *testing.T) {
	refused := &native.Error{Op: "namespaces", Err: unix.EPERM, Hint: "run `postern doctor`"}
	for name, c := range map[string]struct {
		err    error
		m      machine
		remedy string
	}{
		"a setting":               {refused, machine{maxUserNamespaces: "0"}, "max_user_namespaces"},
		"a container's filter":    {refused, machine{maxUserNamespaces: "9", filtered: true}, "container"},
		"what the sandbox says":   {&native.Error{Op: "mount", Path: "/proc", Err: unix.EPERM, Hint: "masked here"}, machine{maxUserNamespaces: "9"}, "masked here"},
		"nothing that is known":   {errors.New("out of luck"), machine{maxUserNamespaces: "9"}, ""},
		"never doctor for doctor": {refused, machine{maxUserNamespaces: "9"}, ""},
	} {
		o := diagnose(c.err, c.m)
		if o.Status != inspect.NotHeld || !strings.Contains(o.remedy, c.remedy) || c.remedy == "" && o.remedy != "" {
			t.Errorf("%s: %s → %q", name, o.Evidence, o.remedy)
		}
	}
}

func TestSinksHearWhatReachesThem(t *testing.T) {
	s, err := openSinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	inspect.Knock(context.Background(), s.targets, nonce()) // a stranger
	s.settle(context.Background())
	for _, network := range []string{"tcp", "udp", "unix"} {
		if o := s.verdict(network, true); o.Status != inspect.Held {
			t.Errorf("%s before anybody knocked: %s: %s", network, o.Status, o.Evidence)
		}
		if o := s.verdict(network, false); o.Status != inspect.NotHeld {
			t.Errorf("%s without an attempt: %s: %s", network, o.Status, o.Evidence)
		}
	}
	s.mu.Lock()
	clear(s.heard) // the next control is to be waited for
	s.mu.Unlock()
	inspect.Knock(context.Background(), s.targets, s.attempt) // as a sandbox would whose walls are gone
	s.settle(context.Background())
	for _, network := range []string{"tcp", "udp", "unix"} {
		o := s.verdict(network, true)
		if o.Status != inspect.NotHeld {
			t.Errorf("%s was reached, and says %s: %s", network, o.Status, o.Evidence)
		}
		for i, target := range s.targets {
			if target.Network == network && s.has(s.control, i) && !strings.Contains(o.Evidence, target.Address) {
				t.Errorf("target %d, %s %s, heard nothing", i, network, target.Address)
			}
		}
	}
}

func TestDeafSinksProveNothing(t *testing.T) {
	s, err := openSinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.settle(ctx)
	if o := s.verdict("tcp", true); o.Status != inspect.Unavailable {
		t.Errorf("%s: %s", o.Status, o.Evidence)
	}
}

func TestVariablesOfTheHostAreNotDeclared(t *testing.T) {
	t.Setenv("POSTERN_TEST_SECRET", "x")
	t.Setenv("TERM", "xterm")
	c := &config.Compiled{}
	for name, want := range map[string]bool{"POSTERN_TEST_SECRET=x": true, "POSTERN_TEST_SECRET=placeholder": false, "TERM=xterm": false, "NOWHERE=x": false} {
		k, v, _ := strings.Cut(name, "=")
		if fromHost(k, v, c) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}

func TestAgentSocketsAreFoundInTheEnvironment(t *testing.T) {
	env := map[string]string{"SSH_AUTH_SOCK": "/tmp/ssh-1/agent.1", "DOCKER_HOST": "unix:///run/me/docker.sock", "CONTAINER_HOST": "tcp://127.0.0.1:2375",
		"DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus,guid=1"}
	got := strings.Join(agentSockets(func(name string) string { return env[name] }), " ")
	if want := "/tmp/ssh-1/agent.1 /run/me/docker.sock /run/user/1000/bus"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The JSON is read by programs: a key that changes its name or meaning changes the version.
func TestReportHasOneForm(t *testing.T) {
	r := sampleReport()
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(b); got != sampleJSON {
		t.Errorf("the report is now written as\n%s", got)
	}
}

func sampleReport() *Report {
	r := &Report{Version: reportVersion, Kernel: "6.12.0", UID: 1000, Policy: "/home/me/widgets/postern.yaml", Profile: "default", OK: true,
		Relaxations: []string{"postern.yaml:14: tls: tunnel"}, Warnings: []string{}, Notes: []string{}}
	r.add(Entry{ID: "network.links", Title: "lo is the only interface", Essential: true, Status: inspect.Held, Evidence: "1 interface"})
	r.add(Entry{ID: "policy.credentials", Title: "the sources of the profile's credentials are there and private", Status: inspect.NotHeld, Evidence: "stripe: /home/me/key has mode 0644, so others can read or change it",
		Means: "requests that need the credential are refused", Remedy: "chmod 600 /home/me/key"})
	return r
}

const sampleJSON = `{
  "version": 1,
  "kernel": "6.12.0",
  "uid": 1000,
  "policy": "/home/me/widgets/postern.yaml",
  "profile": "default",
  "ok": true,
  "held": 1,
  "not_held": 1,
  "not_available": 0,
  "checks": [
    {
      "id": "network.links",
      "title": "lo is the only interface",
      "essential": true,
      "status": "held",
      "evidence": "1 interface"
    },
    {
      "id": "policy.credentials",
      "title": "the sources of the profile's credentials are there and private",
      "essential": false,
      "status": "not_held",
      "evidence": "stripe: /home/me/key has mode 0644, so others can read or change it",
      "means": "requests that need the credential are refused",
      "remedy": "chmod 600 /home/me/key"
    }
  ],
  "relaxations": [
    "postern.yaml:14: tls: tunnel"
  ],
  "warnings": [],
  "notes": []
}`

func TestOnlyEssentialChecksDecide(t *testing.T) {
	r := &Report{OK: true}
	r.add(Entry{Status: inspect.NotHeld})
	r.add(Entry{Status: inspect.Unavailable, Essential: true})
	if !r.OK {
		t.Error("not OK, though no essential protection fails")
	}
	r.add(Entry{Essential: true})
	r.add(Entry{Status: inspect.Held, Essential: true})
	if r.OK || r.Held != 1 || r.NotHeld != 2 || r.NotAvailable != 1 {
		t.Errorf("%+v", r)
	}
}

var update = flag.Bool("update", false, "write docs/reference/doctor.md anew")

const doctorPage = "../../docs/reference/doctor.md"

// TestDoctorPageListsEveryCheck keeps docs/reference/doctor.md as what DoctorChecks says.
func TestDoctorPageListsEveryCheck(t *testing.T) {
	want := []byte(doctorPageText())
	if *update {
		if err := os.WriteFile(doctorPage, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(doctorPage)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the page is out of date; run: go test ./internal/daemon -run DoctorPage -update")
	}
}

func doctorPageText() string {
	var b strings.Builder
	b.WriteString(`# postern doctor

<!-- Written by go test ./internal/daemon -run DoctorPage -update; do not edit. -->

§postern doctor§ makes a sandbox as §postern run§ would in the same directory, with the same policy, and tries its walls.

An inspector, which is the postern binary itself, runs inside as the command and tries to get out. Meanwhile the host serves TCP and
UDP on every address and on loopback alone, and Unix sockets with and without a place in the file system. None may hear the sandbox.
Afterwards the host knocks in the same way: a server that does not hear that proves nothing, and the report says so.

System calls are made with arguments that the kernel itself rejects, for another reason than permission, so that §EPERM§ is the filter's
word, and a call that nothing refuses does nothing. The addresses that are tried belong to nobody. Nothing is sent to the world, no
credential is read, and nothing is left behind but the session's records in the audit log: refusals that the inspector caused are in it.

Each check is **held**, **not held**, or **not available** where this machine has nothing to hold. A sandbox that does not start is a
finding, with the reason and the remedy. The exit status is 0 when every essential check is held or not available, else 1.

| option | meaning |
| --- | --- |
| §--config FILE§ | the policy file; naming it is trusting it |
| §--profile NAME§ | the profile whose sandbox is tried; §default§ |
| §--json§ | one JSON object instead of text |

Colour is used on a terminal only, and not when §NO_COLOR§ is set.

## AppArmor

Where §kernel.apparmor_restrict_unprivileged_userns§ is 1 (Ubuntu 23.10 and later), a program needs a profile to set up a user namespace.
The restriction is worth keeping: permit postern alone. With the path of your binary, this is what doctor prints:

§§§text
`)
	b.WriteString(apparmorRemedy("/usr/local/bin/postern"))
	b.WriteString("\n§§§\n\n## Checks\n\nIds are stable: they are added, never renamed.\n")
	group := ""
	for _, c := range DoctorChecks() {
		if g := (Entry{ID: c.ID}).Group(); g != group {
			group = g
			fmt.Fprintf(&b, "\n### %s\n\n| check | holds when | essential | otherwise | remedy |\n| --- | --- | --- | --- | --- |\n", group)
		}
		essential := ""
		if c.Essential {
			essential = "yes"
		}
		fmt.Fprintf(&b, "| §%s§ | %s | %s | %s | %s |\n", c.ID, c.Title, essential, c.Means, c.Remedy)
	}
	b.WriteString(`
## JSON: version 1

Keys are added within a version; a key that changes its name or meaning changes §version§.

| key | meaning |
| --- | --- |
| §version§ | of this form: 1 |
| §kernel§, §uid§ | where and as whom doctor ran |
| §policy§, §profile§ | the policy file, empty without one, and the profile |
| §ok§ | no essential check is not held; decides the exit status |
| §held§, §not_held§, §not_available§ | how many checks |
| §checks§ | all checks of the list above, in its order |
| §checks[].id§, §.title§, §.essential§ | as above |
| §checks[].status§ | §held§, §not_held§ or §not_available§ |
| §checks[].evidence§ | what was seen; for people, without a promise about its form |
| §checks[].means§, §.remedy§ | only when it does not hold and there is something to mend |
| §relaxations§ | what the profile gives up, by line of the policy |
| §warnings§ | what the policy probably does not mean |
| §notes§ | what the sandbox could not have on this machine |

§§§json
`)
	b.WriteString(sampleJSON + "\n§§§\n")
	return strings.ReplaceAll(b.String(), "§", "`")
}

package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// ordinary is the uid and gid as which root runs the whole suite a second time.
const ordinary = 54321

// The test binary plays every part: the sandbox's first process, the probe inside, a gateway that is killed, and the tests, which root
// runs twice, the second time as an ordinary user.
func TestMain(m *testing.M) {
	if os.Args[0] == InitName {
		Init(testSetup)
	}
	os.Setenv("GORACE", norace) // children inherit it
	if len(os.Args) > 1 {
		if role, ok := roles()[os.Args[1]]; ok {
			os.Exit(role(os.Args[2:]))
		}
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)
			code = 1
		}
	}
	if code == 0 && os.Geteuid() == 0 {
		if err := runAs(ordinary); err != nil {
			fmt.Fprintln(os.Stderr, "as an ordinary user:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// runAs runs this binary's tests once more under another uid, from a copy that it can reach.
func runAs(uid uint32) error {
	dir, err := os.MkdirTemp("", "postern-native-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	self, tmp := filepath.Join(dir, "native.test"), filepath.Join(dir, "tmp")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(tmp, 0o700), os.Chown(tmp, int(uid), int(uid)), copyFile("/proc/self/exe", self)); err != nil {
		return err
	}
	cmd := exec.Command(self)
	for _, a := range os.Args[1:] {
		if !strings.Contains(a, "profile") && !strings.Contains(a, "gocoverdir") && !strings.Contains(a, "testlogfile") && !strings.Contains(a, "fuzz") {
			cmd.Args = append(cmd.Args, a)
		}
	}
	cmd.Dir = tmp
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + tmp, "TMPDIR=" + tmp, "GORACE=" + norace}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd.Run()
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

func roles() map[string]func([]string) int {
	return map[string]func([]string) int{"probe": probe, "gateway": gateway}
}

// testSetup is what the sandbox's first process opens: what its configuration says.
func testSetup(config []byte) ([]*os.File, error) {
	switch string(config) {
	case "listen":
		if err := loopbackUp(); err != nil {
			return nil, err
		}
		l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80})
		if err != nil {
			return nil, err
		}
		f, err := l.File()
		return []*os.File{f}, err
	case "fail":
		return nil, errors.New("the setup said no")
	case "hang":
		select {}
	}
	return nil, nil
}

// gateway runs a sandbox as postern does, on its own standard descriptors, and ends as the command does.
func gateway(args []string) int {
	var spec Spec
	if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
		return 125
	}
	spec.Stdin, spec.Stdout, spec.Stderr = os.Stdin, os.Stdout, os.Stderr
	p, err := Start(context.Background(), spec)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	p.ForwardSignals(context.Background())
	if err := Harden(); err != nil {
		return 125
	}
	if err := p.Exec(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	st, err := p.Wait()
	if err != nil {
		return 125
	}
	return st.Code
}

// norace spares each process under the race detector its second of waiting at exit.
const norace = "atexit_sleep_ms=0"

const probePath = "/mnt/probe"

// newSpec is the least that a test needs: a home, a writable directory, the probe.
func newSpec(t testing.TB) Spec {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	return Spec{
		Env:     []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/home/tester", "TERM=dumb", "GORACE=" + norace},
		Home:    "/home/tester",
		Workdir: work,
		Mounts:  []Mount{{Source: work, Write: true}, {Source: self, Target: probePath}},
	}
}

// result is what became of a command.
type result struct {
	out    string
	status ExitStatus
	notes  []string
	err    error // of Exec
}

// run runs spec to its end and collects both outputs.
func run(t testing.TB, spec Spec) result {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	spec.Stdout, spec.Stderr = w, w
	p, err := Start(t.Context(), spec)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	res := result{notes: p.Notes(), err: p.Exec()}
	var b bytes.Buffer
	if _, err := io.Copy(&b, r); err != nil {
		t.Fatal(err)
	}
	res.out = b.String()
	if res.status, err = p.Wait(); err != nil && res.err == nil {
		t.Fatal(err)
	}
	return res
}

// shell runs a script inside and wants it to succeed.
func shell(t testing.TB, spec Spec, script string) string {
	t.Helper()
	spec.Command = []string{"sh", "-c", script}
	res := run(t, spec)
	if res.status.Code != 0 {
		t.Fatalf("%s: status %d: %s", script, res.status.Code, res.out)
	}
	return strings.TrimSpace(res.out)
}

// inside runs a probe in the sandbox, outside runs the same on the host: every protection is tested with the arm that lacks it.
func inside(t testing.TB, spec Spec, args ...string) string {
	t.Helper()
	spec.Command = append([]string{probePath, "probe"}, args...)
	return strings.TrimSpace(run(t, spec).out)
}

func outside(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("/proc/self/exe", append([]string{"probe"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("probe %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func isRoot() bool { return os.Geteuid() == 0 }

func write(t testing.TB, name, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

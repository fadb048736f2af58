package native

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// ordinary is the uid and gid as which root runs the whole suite a second time.
const ordinary = 54321

// The test binary plays every part: the sandbox's first process, the probe inside, a gateway that is killed, and the tests, which root
// runs twice, the second time as an ordinary user.
func TestMain(m *testing.M) {
	if os.Args[0] == InitName {
		Init(testSetup)
	}
	if len(os.Args) > 1 {
		if role, ok := roles()[os.Args[1]]; ok {
			os.Exit(role(os.Args[2:]))
		}
	}
	code := run(m)
	if code == 0 && os.Geteuid() == 0 {
		code = again_as(ordinary)
	}
	os.Exit(code)
}

func run(m *testing.M) int {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)
			return 1
		}
	}
	return code
}

// again_as runs this binary's tests once more under another uid, from a copy that it can reach.
func again_as(uid uint32) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "as an ordinary user:", err)
		return 1
	}
	dir, err := os.MkdirTemp("", "postern-native-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return fail(err)
	}
	tmp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return fail(err)
	}
	if err := os.Chown(tmp, int(uid), int(uid)); err != nil {
		return fail(err)
	}
	self := filepath.Join(dir, "native.test")
	if err := copyFile("/proc/self/exe", self); err != nil {
		return fail(err)
	}
	var args []string
	for _, a := range os.Args[1:] {
		if !strings.Contains(a, "profile") && !strings.Contains(a, "gocoverdir") && !strings.Contains(a, "testlogfile") && !strings.Contains(a, "-test.bench") {
			args = append(args, a)
		}
	}
	cmd := exec.Command(self, args...)
	cmd.Dir = tmp
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + tmp, "TMPDIR=" + tmp, "POSTERN_PAGES=" + pages()}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := cmd.Run(); err != nil {
		return fail(err)
	}
	return 0
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
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

func pages() string { return "" }

func roles() map[string]func([]string) int { return map[string]func([]string) int{} }

func testSetup(config []byte) ([]*os.File, error) { return nil, nil }

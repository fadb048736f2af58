package attest_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
	"postern/internal/hostile/attest"
)

// The test binary also plays a process in a network namespace of its own, which sends out one socket that it made there.
const roleVariable = "POSTERN_ATTEST_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "elsewhere" {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Sendmsg(3, []byte{0}, unix.UnixRights(fd), nil, 0)
		}
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// sleeper starts a process that lives until it is told to end, and returns its pidfd.
func sleeper(t *testing.T) (pidfd *os.File, end func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var fd int
	cmd := exec.Command("/bin/cat")
	cmd.Stdin, cmd.SysProcAttr = r, &syscall.SysProcAttr{PidFD: &fd}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	var once sync.Once
	end = func() {
		once.Do(func() {
			w.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(end)
	return os.NewFile(uintptr(fd), "pidfd"), end
}

// connection is one end of a TCP connection on this machine's loopback.
func connection(t testing.TB) *net.TCPConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

func wantIdentity(t *testing.T, what string, err error) {
	t.Helper()
	var f *gate.Failure
	if !errors.As(err, &f) || f.Reason != gate.ReasonIdentity {
		t.Errorf("%s: %v, want a failure with %s", what, err, gate.ReasonIdentity)
	}
}

func TestEvidenceHoldsWhileTheProcessRuns(t *testing.T) {
	pidfd, end := sleeper(t)
	c := connection(t)
	cookie, err := attest.Cookie(c)
	if err != nil {
		t.Fatal(err)
	}
	e, err := attest.New(attest.Config{Cookie: cookie, Process: pidfd})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for range 3 {
		if err := errors.Join(e.Check(), e.Match(c)); err != nil {
			t.Errorf("while it runs: %v", err)
		}
	}
	end()
	wantIdentity(t, "Check after the end", e.Check())
	wantIdentity(t, "Match after the end", e.Match(c))
}

func TestSocketOfAnotherNamespaceDoesNotMatch(t *testing.T) {
	pidfd, _ := sleeper(t)
	c := connection(t)
	cookie, err := attest.Cookie(c)
	if err != nil {
		t.Fatal(err)
	}
	e, err := attest.New(attest.Config{Cookie: cookie, Process: pidfd})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	wantIdentity(t, "a socket made elsewhere", e.Match(elsewhere(t)))
	if err := e.Match(c); err != nil {
		t.Error(err)
	}
	closed := connection(t)
	closed.Close()
	wantIdentity(t, "a closed socket", e.Match(closed))
}

// elsewhere is a socket made in a network namespace of its own.
func elsewhere(t *testing.T) syscall.Conn {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "theirs")
	defer theirs.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.ExtraFiles = []string{roleVariable + "=elsewhere", "GORACE=atexit_sleep_ms=0"}, []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("a process in a namespace of its own: %v %s", err, out)
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "elsewhere")
	t.Cleanup(func() { f.Close() })
	return f
}

func TestNothingBoundIsNoEvidence(t *testing.T) {
	var zero attest.Evidence
	wantIdentity(t, "the zero Evidence", zero.Check())
	wantIdentity(t, "the zero Evidence", zero.Match(connection(t)))
	var none *attest.Evidence
	wantIdentity(t, "no Evidence", none.Check())
}

func TestNewRefusesWhatIsNoEvidence(t *testing.T) {
	running, _ := sleeper(t)
	ended, end := sleeper(t)
	end()
	notPidfd, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]attest.Config{
		"nothing":              {},
		"no namespace":         {Process: running},
		"no process":           {Cookie: 1},
		"a process that ended": {Cookie: 1, Process: ended},
		"another file":         {Cookie: 1, Process: notPidfd},
	} {
		t.Run(name, func(t *testing.T) {
			if e, err := attest.New(c); err == nil || e != nil {
				t.Errorf("accepted: %v", e)
			}
			if c.Process != nil && c.Process.Close() == nil {
				t.Error("the file was not taken over")
			}
		})
	}
}

func TestCheckDuringCloseFailsQuietly(t *testing.T) {
	pidfd, _ := sleeper(t)
	e, err := attest.New(attest.Config{Cookie: 1, Process: pidfd})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for e.Check() == nil {
				runtime.Gosched()
			}
		})
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	wantIdentity(t, "after Close", e.Check())
}

func BenchmarkCheck(b *testing.B) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		b.Fatal(err)
	}
	e, err := attest.New(attest.Config{Cookie: 1, Process: os.NewFile(uintptr(fd), "pidfd")})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Check(); err != nil {
			b.Fatal(err)
		}
	}
}

package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestExitCodesAreTheCommandsOwn(t *testing.T) {
	spec := newSpec(t)
	write(t, filepath.Join(spec.Workdir, "plain"), "not a program")
	write(t, filepath.Join(spec.Workdir, "garbage"), "\x00\x01")
	if err := os.Chmod(filepath.Join(spec.Workdir, "garbage"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command []string
		code    int
		signal  syscall.Signal
	}{
		{[]string{"true"}, 0, 0},
		{[]string{"sh", "-c", "exit 3"}, 3, 0},
		{[]string{"sh", "-c", "exit 255"}, 255, 0},
		{[]string{"sh", "-c", "kill -TERM $$"}, 143, syscall.SIGTERM},
		{[]string{"sh", "-c", "kill -KILL $$"}, 137, syscall.SIGKILL},
		{[]string{"sh", "-c", "kill -SEGV $$"}, 139, syscall.SIGSEGV},
	} {
		spec.Command = c.command
		if res := run(t, spec); res.err != nil || res.status.Code != c.code || res.status.Signal != c.signal {
			t.Errorf("%q: %+v", c.command, res)
		}
	}
	for name, code := range map[string]int{"no-such-command": 127, "/no/such/file": 127, "./plain": 126, "./garbage": 126, "/etc": 126} {
		spec.Command = []string{name}
		var e *ExecError
		if res := run(t, spec); !errors.As(res.err, &e) || e.Code != code || e.Name != name {
			t.Errorf("%s: %v, want code %d", name, res.err, code)
		}
	}
	spec.Workdir, spec.Command = "/no/such/dir", []string{"true"}
	if res := run(t, spec); res.err == nil || !strings.Contains(res.err.Error(), "/no/such/dir") {
		t.Errorf("missing working directory: %v", res.err)
	}
}

func TestPathIsSearchedInsideTheSandbox(t *testing.T) {
	spec := newSpec(t)
	bin := filepath.Join(spec.Workdir, "bin")
	write(t, filepath.Join(bin, "tool"), "#!/bin/sh\necho found \"$@\"\n")
	if err := os.Chmod(filepath.Join(bin, "tool"), 0o755); err != nil {
		t.Fatal(err)
	}
	spec.Env = append(spec.Env, "PATH=/nowhere:"+bin+":/usr/bin:/bin")
	spec.Command = []string{"tool", "a", "b c"}
	if res := run(t, spec); res.out != "found a b c\n" {
		t.Errorf("%+v", res)
	}
}

func TestEnvironmentIsOnlyWhatTheSpecSays(t *testing.T) {
	spec := newSpec(t)
	t.Setenv("POSTERN_TEST_SECRET", "x")
	spec.Env = []string{"A=1", "B=two words"}
	spec.Command = []string{"/usr/bin/env"}
	if res := run(t, spec); res.out != "A=1\nB=two words\n" {
		t.Errorf("%q", res.out)
	}
	spec.Env = nil
	if res := run(t, spec); res.out != "" {
		t.Errorf("%q", res.out)
	}
}

func TestOnlyThreeDescriptorsAreInherited(t *testing.T) {
	spec := newSpec(t)
	fd, err := unix.FcntlInt(0, unix.F_DUPFD, 20) // without CLOEXEC, as a careless parent leaves one
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if got := outside(t, "fds"); !strings.Contains(got, fmt.Sprint(fd)) {
		t.Fatalf("outside: %s: the descriptor is not inherited, the test shows nothing", got)
	}
	if got := inside(t, spec, "fds"); got != "0 1 2\nok" {
		t.Errorf("inside: %s", got)
	}
}

func TestDescriptorsThatLeadOutAreRefused(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	inet, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	lone, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	path, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range append(append(pair[:], stream[:]...), inet, lone, dir, path) {
		defer unix.Close(fd)
	}
	for what, c := range map[string]struct {
		fd   int
		want error
	}{"directory": {dir, errDirectory}, "path": {path, errDirectory}, "internet socket": {inet, errSocket}, "datagram pair": {pair[0], errSocket}, "lone socket": {lone, errSocket}, "stream pair": {stream[0], nil}} {
		if err := checkDescriptor(c.fd); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	spec := newSpec(t)
	spec.Stdin, err = os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer spec.Stdin.Close()
	if err := startFails(t, spec); !errors.Is(err, errDirectory) {
		t.Error(err)
	}
}

func TestInputAndOutputPassThrough(t *testing.T) {
	spec := newSpec(t)
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	spec.Stdin = in
	spec.Command = []string{"sh", "-c", "wc -c; head -c 20000000 /dev/zero | tr '\\0' x"}
	go func() {
		io.Copy(out, io.LimitReader(zeros{}, 5_000_000))
		out.Close()
	}()
	res := run(t, spec)
	in.Close()
	if !strings.HasPrefix(res.out, "5000000\n") || len(res.out) != 20_000_008 {
		t.Errorf("%d bytes came out: %.40q", len(res.out), res.out)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func TestBackgroundProcessesEndWithTheCommand(t *testing.T) {
	spec := newSpec(t)
	spec.Command = []string{"sh", "-c", "setsid sleep 1000 & (trap '' TERM HUP INT; sleep 1000) & echo started"}
	if res := run(t, spec); res.out != "started\n" { // run returns at the end of the pipe that all of them hold
		t.Errorf("%+v", res)
	}
}

func TestOrphansAreReaped(t *testing.T) {
	spec := newSpec(t)
	got := shell(t, spec, "for i in 1 2 3 4 5; do (sh -c 'true &' ); done; until ! grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null; do :; done; echo none")
	if !strings.HasSuffix(got, "none") {
		t.Error(got)
	}
}

func TestProcessOneCannotBeKilledFromInside(t *testing.T) {
	spec := newSpec(t)
	if got := shell(t, spec, "for s in TERM INT HUP QUIT USR1 STOP KILL ABRT SEGV TSTP; do kill -$s 1; done; echo alive"); got != "alive" {
		t.Errorf("%q", got)
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	spec := newSpec(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	spec.Stdout = w
	spec.Command = []string{"sh", "-c", "trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.01; done"}
	p, err := Start(t.Context(), spec)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Exec(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	if n, err := r.Read(buf); err != nil || string(buf[:n]) != "ready\n" {
		t.Fatal(string(buf[:n]), err)
	}
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if st, err := p.Wait(); err != nil || st.Code != 7 {
		t.Errorf("%+v %v", st, err)
	}
}

func TestKillEndsEverything(t *testing.T) {
	spec := newSpec(t)
	spec.Command = []string{"sh", "-c", "sleep 1000 & sleep 1000"}
	p, err := Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Exec(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.FcntlInt(p.PIDFD().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if st, err := p.Wait(); err != nil || st.Signal != syscall.SIGKILL || st.Code != 137 {
		t.Errorf("%+v %v", st, err)
	}
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 0); n != 1 || err != nil {
		t.Errorf("the pidfd does not say that it is over: %d %v", n, err)
	}
	if err := p.Kill(); err != nil {
		t.Errorf("a second kill: %v", err)
	}
}

func TestSocketsComeOutOfTheSandbox(t *testing.T) {
	spec := newSpec(t)
	spec.Setup = []byte("listen")
	spec.Command = []string{probePath, "probe", "dial", "127.0.0.1:80"}
	p, err := Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Wait()
	if len(p.Sockets()) != 1 {
		t.Fatalf("%d sockets", len(p.Sockets()))
	}
	l, err := net.FileListener(p.Sockets()[0])
	if err != nil {
		t.Fatal(err)
	}
	p.Sockets()[0].Close()
	defer l.Close()
	if err := p.Exec(); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 64)
	if n, _ := io.ReadFull(c, b[:17]); string(b[:n]) != "hello from inside" {
		t.Errorf("%q", b[:n])
	}
}

func TestCommandDoesNotRunBeforeExec(t *testing.T) {
	spec := newSpec(t)
	spec.Command = []string{"touch", "ran"}
	p, err := Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	// The same sandbox is asked to end instead: what it would have done by itself by then it would have done.
	if err := p.send(order{Signal: int(syscall.SIGCONT)}); err != nil {
		t.Fatal(err)
	}
	<-p.done
	p.Wait()
	if _, err := os.Stat(filepath.Join(spec.Workdir, "ran")); err == nil {
		t.Error("the command ran")
	}
	if err := p.Exec(); err == nil {
		t.Error("a dead sandbox starts commands")
	}
}

func TestSetupFailureIsTold(t *testing.T) {
	spec := newSpec(t)
	spec.Setup = []byte("fail")
	if err := startFails(t, spec); !strings.Contains(err.Error(), "setup: the setup said no") {
		t.Error(err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	spec := newSpec(t)
	spec.Setup, spec.Command = []byte("hang"), []string{"true"}
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	if _, err := Start(ctx, spec); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, spec); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestMalformedSpecsAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Spec){
		"zero":             func(s *Spec) { *s = Spec{} },
		"no command":       func(s *Spec) { s.Command = []string{""} },
		"no home":          func(s *Spec) { s.Home = "" },
		"home is a system": func(s *Spec) { s.Home = "/etc/home" },
		"relative home":    func(s *Spec) { s.Home = "home" },
		"relative workdir": func(s *Spec) { s.Workdir = "work" },
		"unclean mount":    func(s *Spec) { s.Mounts = append(s.Mounts, Mount{Source: "/tmp/../etc"}) },
		"empty mount":      func(s *Spec) { s.Mounts = append(s.Mounts, Mount{}) },
		"relative target":  func(s *Spec) { s.Mounts = append(s.Mounts, Mount{Source: "/srv", Target: "x"}) },
		"absent mount":     func(s *Spec) { s.Mounts = append(s.Mounts, Mount{Source: "/no/such/thing"}) },
		"device mount":     func(s *Spec) { s.Mounts = append(s.Mounts, Mount{Source: "/dev/null"}) },
		"env without =":    func(s *Spec) { s.Env = []string{"NAME"} },
		"env without name": func(s *Spec) { s.Env = []string{"=x"} },
		"relative file":    func(s *Spec) { s.Files = []File{{Path: "x"}} },
		"negative limit":   func(s *Spec) { s.Limits.Memory = -1 },
		"user name":        func(s *Spec) { s.User = "a:b" },
		"host name":        func(s *Spec) { s.Hostname = "a\nb" },
		"root identity":    func(s *Spec) { s.Identity = Identity{0, 5} },
		"foreign identity": func(s *Spec) { s.Identity = Identity{5, 0} },
	} {
		spec := newSpec(t)
		spec.Command = []string{"true"}
		change(&spec)
		if p, err := Start(t.Context(), spec); err == nil {
			t.Errorf("%s: the sandbox started", name)
			p.Kill()
			p.Wait()
		}
	}
}

func TestIdentityRule(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		spec       Spec
		euid, egid int
		sudo       string
		want       Identity
		fails      bool
	}{
		{spec: Spec{}, euid: 1000, egid: 100, want: Identity{1000, 100}},
		{spec: Spec{}, euid: 1000, egid: 100, sudo: "7", want: Identity{1000, 100}},
		{spec: Spec{Identity: Identity{5, 5}}, euid: 1000, egid: 100, fails: true},
		{spec: Spec{Identity: Identity{5, 6}}, want: Identity{5, 6}},
		{spec: Spec{Identity: Identity{0, 6}}, fails: true},
		{spec: Spec{}, sudo: "7", want: Identity{7, 7}},
		{spec: Spec{}, sudo: "0", want: Identity{nobody, nobody}},
		{spec: Spec{}, sudo: "-1", want: Identity{nobody, nobody}},
		{spec: Spec{Workdir: "/"}, want: Identity{nobody, nobody}},
		{spec: Spec{Workdir: "/no/such"}, want: Identity{nobody, nobody}},
	} {
		got, err := c.spec.identify(c.euid, c.egid, c.sudo, c.sudo)
		if (err != nil) != c.fails || got != c.want {
			t.Errorf("%+v: %v %v", c, got, err)
		}
	}
	if isRoot() {
		if err := os.Chown(dir, 4711, 4712); err != nil {
			t.Fatal(err)
		}
		spec := Spec{Workdir: dir}
		if got, err := spec.identify(0, 0, "", ""); err != nil || got != (Identity{4711, 4712}) {
			t.Errorf("owner of the working directory: %v %v", got, err)
		}
	}
}

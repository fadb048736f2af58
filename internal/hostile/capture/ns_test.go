package capture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
)

// The test binary plays three parts: the tests (the gateway's side), "inside" (a process in a namespace of its own, which runs
// Setup and then probes on request), and "hop", which becomes an ordinary user before it starts an inside.
const roleVariable = "POSTERN_CAPTURE_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "inside":
		os.Exit(inside())
	case "hop":
		os.Exit(hop())
	}
	goleak.VerifyTestMain(m)
}

// deadline bounds every wait of a test for something that takes microseconds.
const deadline = 10 * time.Second

// eachPlacement runs a test in a namespace made by root, where tests are root, and in one made by an ordinary user.
func eachPlacement(t *testing.T, c Config, test func(t *testing.T, n *namespace)) {
	t.Helper()
	for _, placement := range placements() {
		t.Run(placement, func(t *testing.T) { test(t, newNamespace(t, placement, c)) })
	}
}

func placements() []string {
	if os.Getuid() == 0 {
		return []string{"root", "user"}
	}
	return []string{"user"}
}

// namespace is a sandbox's network namespace with a process in it, seen from the gateway.
type namespace struct {
	t     *testing.T
	conn  *net.UnixConn
	files []*os.File
	setup time.Duration

	mu      sync.Mutex
	refused []gate.Reason
}

type insideReport struct {
	Error string
	Files int
	Took  time.Duration
}

func newNamespace(t *testing.T, placement string, c Config, prepare ...string) *namespace {
	t.Helper()
	n, report := startNamespace(t, placement, c, prepare...)
	if report.Error != "" {
		t.Fatalf("Setup: %s", report.Error)
	}
	return n
}

func startNamespace(t *testing.T, placement string, c Config, prepare ...string) (*namespace, insideReport) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "gateway"), os.NewFile(uintptr(pair[1]), "inside")
	defer ours.Close()
	defer theirs.Close()

	cmd := exec.Command("/proc/self/exe")
	if placement == "user" && os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Env = []string{roleVariable + "=hop", "GORACE=atexit_sleep_ms=0", "PATH=/usr/bin:/bin"}
	} else {
		cmd.SysProcAttr = isolated(placement == "user")
		cmd.Env = []string{roleVariable + "=inside", "GORACE=atexit_sleep_ms=0", "PATH=/usr/bin:/bin"}
	}
	cmd.Dir, cmd.ExtraFiles = "/", []*os.File{theirs}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("start a process in a new network namespace: %v", err)
	}
	theirs.Close()
	fc, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	n := &namespace{t: t, conn: fc.(*net.UnixConn)}
	t.Cleanup(func() {
		n.conn.Close() // the process inside ends when its socket does
		if err := cmd.Wait(); err != nil {
			t.Errorf("the process inside: %v\n%s", err, stderr.String())
		}
	})
	request, err := json.Marshal(setupRequest{Ports: c.Ports, WithoutRuleset: c.WithoutRuleset, Prepare: prepare})
	if err != nil {
		t.Fatal(err)
	}
	n.send(request)
	return n, n.receiveFiles()
}

// isolated are the attributes of a process with network and mount namespaces of its own, as an ordinary user with a user namespace around it.
func isolated(user bool) *syscall.SysProcAttr {
	if !user {
		return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	}
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
}

func (n *namespace) send(b []byte) {
	n.t.Helper()
	if err := n.conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.conn.Write(b); err != nil {
		n.t.Fatal(err)
	}
}

func (n *namespace) receiveFiles() insideReport {
	n.t.Helper()
	buf, oob := make([]byte, 64<<10), make([]byte, 4<<10)
	size, oobn, _, _, err := n.conn.ReadMsgUnix(buf, oob)
	if err != nil {
		n.t.Fatalf("read the report from inside: %v", err)
	}
	var r insideReport
	if err := json.Unmarshal(buf[:size], &r); err != nil {
		n.t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		n.t.Fatal(err)
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			n.files = append(n.files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	if len(n.files) != r.Files {
		n.t.Fatalf("%d files arrived, %d were sent", len(n.files), r.Files)
	}
	n.setup = r.Took
	n.t.Cleanup(func() {
		for _, f := range n.files {
			f.Close()
		}
	})
	return r
}

// receive takes the gateway's half up. The set is closed with the test.
func (n *namespace) receive() *Set {
	n.t.Helper()
	set, err := Receive(Config{Refused: func(r gate.Reason, _ netip.AddrPort) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.refused = append(n.refused, r)
	}}, n.files)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { set.Close() })
	return set
}

func (n *namespace) refusals() []gate.Reason {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]gate.Reason(nil), n.refused...)
}

type probeRequest struct {
	Probe string
	Args  []string
}

type probeReply struct {
	Out   string
	Error string
	Took  time.Duration
}

// probe runs a probe inside and returns what it says and how long it took. A probe's failure is part of what it says: "ECONNREFUSED".
func (n *namespace) probe(name string, args ...string) (string, time.Duration) {
	n.t.Helper()
	b, err := json.Marshal(probeRequest{name, args})
	if err != nil {
		n.t.Fatal(err)
	}
	n.send(b)
	buf := make([]byte, 64<<10)
	size, err := n.conn.Read(buf)
	if err != nil {
		n.t.Fatalf("probe %s: %v", name, err)
	}
	var r probeReply
	if err := json.Unmarshal(buf[:size], &r); err != nil {
		n.t.Fatal(err)
	}
	if r.Error != "" {
		n.t.Fatalf("probe %s %q: %s", name, args, r.Error)
	}
	return r.Out, r.Took
}

// expect runs a probe and compares what it says.
func (n *namespace) expect(want, name string, args ...string) {
	n.t.Helper()
	if got, _ := n.probe(name, args...); got != want {
		n.t.Errorf("%s %q: got %q, want %q", name, args, got, want)
	}
}

type setupRequest struct {
	Ports          []gate.Port
	WithoutRuleset bool
	Prepare        []string // probes to run before Setup
}

// hop runs as an ordinary user and starts inside from there.
func hop() int {
	cmd := exec.Command("/proc/self/exe")
	cmd.SysProcAttr = isolated(true)
	cmd.Env = []string{roleVariable + "=inside", "GORACE=atexit_sleep_ms=0", "PATH=/usr/bin:/bin"}
	cmd.Dir, cmd.ExtraFiles, cmd.Stderr = "/", []*os.File{os.NewFile(3, "inside")}, os.Stderr
	runtime.LockOSThread() // Pdeathsig is tied to the thread
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "hop:", err)
		return 1
	}
	return 0
}

// inside is the process in the namespace.
func inside() int {
	if err := serveInside(); err != nil {
		fmt.Fprintln(os.Stderr, "inside:", err)
		return 1
	}
	return 0
}

func serveInside() error {
	fc, err := net.FileConn(os.NewFile(3, "gateway"))
	if err != nil {
		return err
	}
	conn := fc.(*net.UnixConn)
	buf := make([]byte, 64<<10)
	size, err := conn.Read(buf)
	if err != nil {
		return err
	}
	var s setupRequest
	if err := json.Unmarshal(buf[:size], &s); err != nil {
		return err
	}
	for _, p := range s.Prepare {
		if _, err := probes()[p](nil); err != nil {
			return fmt.Errorf("prepare %s: %w", p, err)
		}
	}
	if err := reportSetup(conn, s); err != nil {
		return err
	}
	for {
		size, err := conn.Read(buf)
		if err != nil || size == 0 {
			return nil // the test is over
		}
		var r probeRequest
		if err := json.Unmarshal(buf[:size], &r); err != nil {
			return err
		}
		b, err := json.Marshal(runProbe(r))
		if err != nil {
			return err
		}
		if _, err := conn.Write(b); err != nil {
			return err
		}
	}
}

func reportSetup(conn *net.UnixConn, s setupRequest) error {
	start := time.Now()
	files, err := Setup(Config{Ports: s.Ports, WithoutRuleset: s.WithoutRuleset})
	report := insideReport{Took: time.Since(start), Files: len(files)}
	if err != nil {
		report.Error = err.Error()
	}
	b, err := json.Marshal(report)
	if err != nil {
		return err
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := conn.WriteMsgUnix(b, oob, nil); err != nil {
		return err
	}
	for _, f := range files {
		f.Close()
	}
	return nil
}

// runProbe runs one probe on a thread that has no capabilities unless the probe's name begins with "admin-".
func runProbe(r probeRequest) probeReply {
	probe, ok := probes()[r.Probe]
	if !ok {
		return probeReply{Error: "no such probe"}
	}
	reply := make(chan probeReply)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if len(r.Probe) < 6 || r.Probe[:6] != "admin-" {
			if err := dropCapabilities(); err != nil {
				reply <- probeReply{Error: err.Error()}
				return
			}
		}
		start := time.Now()
		out, err := probe(r.Args)
		p := probeReply{Out: out, Took: time.Since(start)}
		if err != nil {
			p.Out = classify(err)
		}
		reply <- p
	}()
	return <-reply
}

func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&header, &none[0])
}

// classify names an error as errno(3) does.
func classify(err error) string {
	var errno syscall.Errno
	var timeout net.Error
	switch {
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	}
	return err.Error()
}

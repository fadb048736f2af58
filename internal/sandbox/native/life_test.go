package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLimitsHold(t *testing.T) {
	spec := newSpec(t)
	spec.Limits = Limits{Processes: 30, OpenFiles: 50, FileSize: 1 << 20}
	if got := shell(t, spec, "bash -c 'ulimit -u; ulimit -n; ulimit -f'"); got != "30\n50\n1024" {
		t.Errorf("%q", got)
	}
	if got := shell(t, spec, "(for i in $(seq 50); do sleep 100 & done) 2>&1 || true"); !strings.Contains(strings.ToLower(got), "fork") {
		t.Errorf("50 processes: %q", got)
	}
	if got := shell(t, spec, "(head -c 3000000 /dev/zero >f) 2>/dev/null; stat -c %s f"); !strings.HasSuffix(got, "\n1048576") {
		t.Errorf("3 MB file: %q", got)
	}
}

func TestMemoryLimitEndsTheSandboxAndNotTheGateway(t *testing.T) {
	spec := newSpec(t)
	spec.Limits.Memory = 64 << 20
	spec.Command = []string{probePath, "probe", "eat", "300"}
	res := run(t, spec)
	if !isRoot() {
		// No delegated cgroup is promised to an ordinary user: then it must be said.
		if res.status.Signal != syscall.SIGKILL && !strings.Contains(fmt.Sprint(res.notes), "cgroup") {
			t.Errorf("%+v", res)
		}
		return
	}
	if res.status.Signal != syscall.SIGKILL {
		t.Errorf("%+v", res)
	}
	spec.Limits.Memory = 600 << 20
	if res := run(t, spec); res.out != "ok\n" {
		t.Errorf("with enough memory: %+v", res)
	}
}

func TestControlGroupsAreMadeWhereTheyCanBe(t *testing.T) {
	base := t.TempDir()
	own := map[string]string{"": "/user.slice/app.slice/own.scope"}
	app := filepath.Join(base, "user.slice", "app.slice")
	write(t, filepath.Join(base, "cgroup.controllers"), "memory pids\n")
	write(t, filepath.Join(app, "own.scope", "memory.max"), "max\n")
	write(t, filepath.Join(app, "own.scope", "pids.max"), "100\n")
	h := hierarchies(base, own, 1000, 4096)
	if len(h) != 1 || strings.Join(h[0].parents, " ") != strings.Join([]string{app, filepath.Join(app, "own.scope"), base}, " ") {
		t.Fatalf("%+v", h)
	}
	if h[0].limits["memory.max"] != "1000" || h[0].limits["pids.max"] != "100" {
		t.Errorf("%+v", h[0].limits)
	}
	// Without a controller the group has no such file, and it is not left behind.
	if dir, err := h[0].create("postern-x"); err == nil {
		t.Errorf("made %s", dir)
	}
	if left, _ := filepath.Glob(app + "/postern-*"); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if h := hierarchies(base, map[string]string{"": "/"}, 1, 1); strings.Join(h[0].parents, " ") != base {
		t.Errorf("at the top: %+v", h)
	}
}

func TestOpenFilesAreTheCallersUnlessLimited(t *testing.T) {
	out, err := exec.Command("sh", "-c", "ulimit -n; ulimit -Hn").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, newSpec(t), "ulimit -n; ulimit -Hn"); got != strings.TrimSpace(string(out)) {
		t.Errorf("inside %q, outside %q", got, out)
	}
}

// startGateway runs the gateway role in a process of its own, which holds the pipe as all of its sandbox does.
func startGateway(t *testing.T, spec Spec) (*exec.Cmd, *os.File) {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "gateway", string(text))
	cmd.Stdout = w
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return cmd, r
}

func TestNothingSurvivesTheGateway(t *testing.T) {
	spec := newSpec(t)
	spec.Command = []string{"sh", "-c", "setsid sleep 1000 & trap '' TERM HUP INT; echo up; while :; do sleep 1000; done"}
	mounts := len(mountPoints())
	for i := range 40 {
		cmd, r := startGateway(t, spec)
		if i%4 == 0 { // at run
			if _, err := io.ReadFull(r, make([]byte, 3)); err != nil {
				t.Fatal(err)
			}
		} else { // at any moment of the start, which takes some tens of milliseconds
			timer := time.NewTimer(time.Duration(rand.IntN(40_000)) * time.Microsecond)
			<-timer.C
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		// Every process of the sandbox holds the other end: the pipe ends when the last of them is gone.
		if err := r.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Fatalf("round %d: something survived: %v", i, err)
		}
		r.Close()
	}
	if n := len(mountPoints()); n != mounts {
		t.Errorf("%d mounts became %d", mounts, n)
	}
	spec.Command = []string{"true"} // the next start sweeps what a dead gateway left of its control groups
	run(t, spec)
	for _, g := range leftGroups(t) {
		t.Errorf("cgroup %s is left", g)
	}
}

// leftGroups lists control groups of gateways that are dead.
func leftGroups(t *testing.T) []string {
	t.Helper()
	own, err := ownGroups()
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, h := range hierarchies(cgroupRoot, own, 1, 1) {
		for _, parent := range h.parents {
			dirs, _ := filepath.Glob(filepath.Join(parent, cgroupPrefix+"*"))
			for _, d := range dirs {
				part := strings.Split(filepath.Base(d), "-")
				if len(part) == 4 && startTime(number(part[1])) != part[2] {
					left = append(left, d)
				}
			}
		}
	}
	return left
}

func TestGatewayBecomesUndumpable(t *testing.T) {
	spec := newSpec(t)
	spec.Command = []string{"sh", "-c", "echo up; exec sleep 1000"}
	cmd, r := startGateway(t, spec)
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if _, err := io.ReadFull(r, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	r.Close()
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/mem", cmd.Process.Pid), &st); err != nil || st.Uid != 0 {
		t.Errorf("memory of the gateway belongs to uid %d: %v", st.Uid, err)
	}
	if !isRoot() {
		if _, err := os.Open(fmt.Sprintf("/proc/%d/environ", cmd.Process.Pid)); !errors.Is(err, os.ErrPermission) {
			t.Errorf("environment of the gateway: %v", err)
		}
	}
}

func TestPlanIsParsedOrRefused(t *testing.T) {
	p := &plan{Command: []string{"a"}}
	blobs := p.addFiles([]File{{Path: "/a", Content: []byte("one")}, {Path: "/b", Content: []byte("two"), Mode: 0o4700}, {Path: "/c", Content: []byte("one")}}, nil)
	if len(blobs) != 2 || p.Files[0].Blob != p.Files[2].Blob || p.Files[1].Mode != 0o700 {
		t.Errorf("%+v %q", p.Files, blobs)
	}
	f, err := p.seal(blobs)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("a sealed plan was changed")
	}
	got, content, err := readPlan(int(f.Fd()))
	if err != nil || got.Command[0] != "a" || string(content[1]) != "two" {
		t.Errorf("%+v %q %v", got, content, err)
	}
}

func FuzzParsePlan(f *testing.F) {
	p := &plan{Command: []string{"a"}, Blobs: []int{3}, Files: []planFile{{Path: "/a"}}}
	sealed, err := p.seal([][]byte{[]byte("abc")})
	if err != nil {
		f.Fatal(err)
	}
	whole := make([]byte, 4096)
	n, _ := sealed.ReadAt(whole, 0)
	sealed.Close()
	f.Add(whole[:n])
	f.Add(whole[:n-1])
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff{}"))
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x0e{\"Blobs\":[-1]}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, blobs, err := parsePlan(b)
		if err != nil {
			return
		}
		for _, file := range p.Files {
			if file.Blob < 0 || file.Blob >= len(blobs) {
				t.Fatalf("blob %d of %d", file.Blob, len(blobs))
			}
		}
	})
}

// BenchmarkSandbox is the life of a sandbox that does nothing: all that a start adds to a command.
func BenchmarkSandbox(b *testing.B) {
	spec := newSpec(b)
	spec.Command = []string{"true"}
	for b.Loop() {
		p, err := Start(b.Context(), spec)
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Exec(); err != nil {
			b.Fatal(err)
		}
		if st, err := p.Wait(); err != nil || st.Code != 0 {
			b.Fatal(st, err)
		}
	}
}

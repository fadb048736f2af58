package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"postern/internal/testkit"
)

// TestKilledAtAnyMomentNothingArrives kills postern without warning after ever longer times, from before the sandbox exists to the
// middle of its work. Nothing may arrive but through the gateway, and nothing may outlive it.
func TestKilledAtAnyMomentNothingArrives(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		sink := testkit.NewSink(t)
		sink.Reach(t, "control")
		marker := "marker" + w.echoKey.Random[:12]
		for _, ms := range []int{0, 2, 5, 8, 12, 16, 20, 25, 30, 40, 60, 100, 200} {
			args := append([]string{"run", "--quiet", "--config", w.Config, "--mount", probeDir(t) + ":/mnt/probe", "--", probePath(t), "loop", "20", marker}, sink.Targets(t)...)
			cmd := w.Command(within(t, time.Minute), args...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Duration(ms) * time.Millisecond)
			if err := syscall.Kill(cmd.Process.Pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			waitFor(t, func() bool { return len(processesWith(t, marker)) == 0 })
		}
		if n := sink.Holding(marker); n != 0 {
			t.Errorf("%d packets arrived: %+v", n, sink.Arrivals())
		}
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), filepath.Dir(w.Home)) {
			t.Errorf("a mount was left behind (%v)", err)
		}
		ok(t, w.Run(t, "curl", "-fsS", "https://open.test/after"))
	})
}

// processesWith lists the processes in whose command line a word stands, but for this test and the programs that it starts.
func processesWith(t *testing.T, word string) []string {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b), word) {
			found = append(found, name+" "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

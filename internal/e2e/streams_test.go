package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"postern/internal/testkit"
)

func TestEventsArriveWithinMilliseconds(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	for _, host := range []string{"open.test", "echo.test"} { // the second is scrubbed
		for _, version := range []string{"1", "2"} {
			f := w.probe(t, []string{"sse", "-v", version, "https://" + host + "/events?n=200&gap=5ms"})[0]
			if !f.OK || f.Data["events"] != 200.0 {
				t.Fatalf("%s", describe(f))
			}
			p50, _ := f.Data["p50_us"].(float64)
			t.Logf("%s over HTTP/%s: p50 %v µs, p99 %v µs, max %v µs", host, version, p50, f.Data["p99_us"], f.Data["max_us"])
			if p50 > 5000 {
				t.Errorf("%s over HTTP/%s: half of the events took longer than %v µs", host, version, p50)
			}
		}
	}
}

func TestWebSocketStaysOpen(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	found := w.probe(t, []string{"ws", "-n", "50", "-size", "70000", "-hold", "3s", "wss://open.test/ws"}, []string{"ws", "wss://readonly.test/public/ws"})
	if !found[0].OK {
		t.Errorf("%s", describe(found[0]))
	}
	if found[1].OK || len(w.Log.To("readonly.test")) != 0 {
		t.Errorf("an upgrade that no rule allows: %s", describe(found[1]))
	}
}

func TestGRPCBidirectionalStreamWithTrailers(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		if f := w.probe(t, []string{"grpc", "open.test:443", "100"})[0]; !f.OK {
			t.Errorf("%s", describe(f))
		}
	})
}

func TestAThousandRequestsAtSixteenStreams(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		for _, f := range w.probe(t, []string{"load", "-n", "1000", "-c", "16", "-v", "1", "https://echo.test/"}, []string{"load", "-n", "1000", "-c", "16", "-v", "2", "https://echo.test/"}) {
			if !f.OK {
				t.Errorf("%s", describe(f))
			}
		}
		if n := len(w.Log.To("echo.test")); n != 2000 {
			t.Errorf("%d requests arrived, want 2000", n)
		}
	})
}

// TestBulkLeavesMemoryFlat sends a body of each size both ways and watches the gateway's peak of resident memory.
func TestBulkLeavesMemoryFlat(t *testing.T) {
	w := newWorld(t, testkit.Ordinary())
	var peaks []int
	for _, size := range []int64{64 << 10, 64 << 20, 1 << 30} {
		n := strconv.FormatInt(size, 10)
		cmd := w.Command(within(t, 2*time.Minute), "run", "--quiet", "--config", w.Config, "--mount", probeDir(t)+":/mnt/probe", "--",
			"sh", "-c", probePath(t)+" get 'https://open.test/bulk?n="+n+"' -- put https://open.test/bulk "+n+"; echo finished; read x")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		text := readUntil(t, out, "finished")
		peaks = append(peaks, peakOf(t, cmd.Process.Pid))
		_ = in.Close()
		_ = cmd.Wait()
		if !strings.Contains(text, `"bytes":`+n) || !strings.Contains(text, fmt.Sprintf(`"reply":"%s `, n)) {
			t.Fatalf("%s bytes did not go both ways: %s", n, text)
		}
	}
	t.Logf("peak resident memory in KiB for 64 KiB, 64 MiB and 1 GiB: %v", peaks)
	if grew := peaks[2] - peaks[0]; grew > 32<<10 {
		t.Errorf("the gateway grew by %d KiB between a body of 64 KiB and one of 1 GiB", grew)
	}
}

func peakOf(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kib int
			if _, err := fmt.Sscan(value, &kib); err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The disk under the audit log fills in the middle of a run: nothing may happen without a record, and the person is told once.
func TestAFullDiskUnderTheAuditLogRefusesEverything(t *testing.T) {
	everyUser(t, func(t *testing.T, w *world) {
		dir := filepath.Join(w.State, "audit")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=160k,mode=0700,uid=%d,gid=%d", w.User.UID, w.User.GID)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		const script = `echo ready; read x; i=0; while [ $i -lt 60 ]; do curl -sS https://open.test/full-$i-; i=$((i+1)); done`
		cmd := w.Command(within(t, time.Minute), "run", "--config", w.Config, "--", "sh", "-c", script)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		if s, err := lines.ReadString('\n'); err != nil || s != "ready\n" {
			t.Fatalf("%q %v\n%s", s, err, &stderr)
		}
		if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 200<<10), 0o600); err == nil {
			t.Fatal("the disk is not full")
		}
		if _, err := io.WriteString(in, "go\n"); err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(lines)
		_ = cmd.Wait()
		if !strings.Contains(string(text), "audit.unavailable") {
			t.Errorf("no refusal names the audit log:\n%s", text)
		}
		if n := strings.Count(stderr.String(), "the audit log cannot be written"); n != 1 {
			t.Errorf("told %d times:\n%s", n, &stderr)
		}
		arrived := len(w.Log.Holding("/full-"))
		refused := strings.Count(string(text), "audit.unavailable")
		if arrived+refused != 60 || len(w.Log.Holding("/full-59-")) > 0 {
			t.Errorf("%d arrived and %d were refused, of 60", arrived, refused)
		}
	})
}

package audit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"postern/internal/operator/journal"
)

// commitUntilKilled is the child of TestAKilledSessionLosesNothing: it says each number once the record is durable.
func commitUntilKilled() {
	l, err := Open(Config{Dir: os.Getenv("AUDIT_DIR"), Session: newSession(), Rotate: 8192})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var mu sync.Mutex
	for range 4 {
		go func() {
			for i := 0; ; i++ {
				r := allowed("a.example")
				if err := l.Append(allowed("b.example")); err != nil {
					os.Exit(1)
				}
				if err := l.Commit(context.Background(), r); err != nil {
					os.Exit(1)
				}
				mu.Lock()
				fmt.Println(r.Event)
				mu.Unlock()
			}
		}()
	}
	select {}
}

func child(t *testing.T, role string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), append(env, "POSTERN_AUDIT_TEST="+role)...)
	cmd.Stderr = os.Stderr
	return cmd
}

func TestAKilledSessionLosesNothingThatWasCommitted(t *testing.T) {
	dir := auditDir(t)
	var said []string
	for range 50 {
		cmd := child(t, "commit-until-killed", "AUDIT_DIR="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, enough := bufio.NewReader(out), 1+rand.IntN(60)
		for i := 0; ; i++ {
			if i == enough {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			line, err := lines.ReadString('\n')
			if err == io.EOF {
				break
			}
			said = append(said, strings.TrimSpace(line))
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the child was not killed: %v", err)
		}
	}
	r := wantIntact(t, dir)
	unclosed := 0
	for _, f := range r.Files {
		if f.State == journal.Unclosed && !strings.HasPrefix(f.Problem, "empty") {
			unclosed++
		}
		if f.State == journal.Running {
			t.Errorf("%s: a killed session counts as running", f.Name)
		}
	}
	if r.Sessions != 50 || unclosed != 50 {
		t.Errorf("%d sessions, %d without a close", r.Sessions, unclosed)
	}
	have := map[string]bool{}
	err := journal.Read(dir, journal.Query{}, func(e journal.Entry) error {
		have[e.Event.String()] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range said {
		if !have[id] {
			t.Fatalf("%s was committed and is lost", id)
		}
	}
}

// fillTheDisk is the child of TestAFullDiskRefusesAndRecovers, alone in a mount namespace with a tiny file system.
func fillTheDisk() {
	if err := fillTheDiskIn(os.Getenv("AUDIT_DIR")); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held")
	os.Exit(0)
}

func fillTheDiskIn(mnt string) error {
	if err := unix.Mount("tmpfs", mnt, "tmpfs", 0, "size=512k,mode=0700"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	ballast, dir := filepath.Join(mnt, "ballast"), filepath.Join(mnt, "audit")
	if err := os.WriteFile(ballast, make([]byte, 128<<10), 0o600); err != nil {
		return err
	}
	l, err := Open(Config{Dir: dir, Session: newSession(), Rotate: 64 << 10})
	if err != nil {
		return err
	}
	ctx, committed := context.Background(), 0
	for {
		err := l.Commit(ctx, allowed("a.example"))
		if errors.Is(err, ErrBroken) && errors.Is(err, unix.ENOSPC) {
			break
		}
		if err != nil || committed > 10000 {
			return fmt.Errorf("after %d commits: %w", committed, err)
		}
		committed++
	}
	<-l.Broken()
	if err := l.Commit(ctx, allowed("a.example")); !errors.Is(err, ErrBroken) {
		return fmt.Errorf("a full disk accepts: %w", err)
	}
	if r, err := journal.Verify(dir); err != nil || !r.Intact() || int(r.Records) < committed+1 {
		return fmt.Errorf("on the full disk: %w %+v", err, r)
	}
	if err := os.Remove(ballast); err != nil {
		return err
	}
	deadline := time.After(10 * time.Second)
	for tick := time.Tick(20 * time.Millisecond); ; {
		if l.Commit(ctx, allowed("a.example")) == nil {
			break
		}
		select {
		case <-tick:
		case <-deadline:
			return errors.New("no recovery within ten seconds of free space")
		}
	}
	if err := l.Close(); err != nil {
		return err
	}
	r, err := journal.Verify(dir)
	if f, bad := r.First(); err != nil || bad {
		return fmt.Errorf("after recovery: %w %+v", err, f)
	}
	if want := committed + 4; int(r.Records) < want { // start, end, notice, the last commit
		return errors.New(strconv.Itoa(int(r.Records)) + " records, want " + strconv.Itoa(want))
	}
	return nil
}

func TestAFullDiskRefusesAndRecovers(t *testing.T) {
	cmd := child(t, "fill-the-disk", "AUDIT_DIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.Output()
	if err != nil || string(out) != "held\n" {
		t.Fatalf("%v: %s", err, out)
	}
}

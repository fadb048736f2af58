package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/record"
)

// countSyncs counts what reaches the disk.
type countSyncs struct{ n atomic.Int64 }

func (c *countSyncs) wrap(f file) file { return countedFile{f, c} }

type countedFile struct {
	file
	c *countSyncs
}

func (f countedFile) Sync() error {
	f.c.n.Add(1)
	return f.file.Sync()
}

// faults breaks the files it wraps, on demand.
type faults struct {
	mu    sync.Mutex
	write error         // returned by WriteAt
	after int           // bytes that a failing write still writes
	sync  error         // returned by Sync
	cut   error         // returned by Truncate
	hang  chan struct{} // Sync waits until it is closed
	hung  chan struct{} // closed when a Sync has begun to wait
}

func (x *faults) wrap(f file) file { return &faultyFile{f, x} }

func (x *faults) set(change func(*faults)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	change(x)
}

func (x *faults) heal() {
	x.set(func(x *faults) { x.write, x.sync, x.cut, x.after = nil, nil, nil, 0 })
}

type faultyFile struct {
	file
	x *faults
}

func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	f.x.mu.Lock()
	err, n := f.x.write, f.x.after
	f.x.mu.Unlock()
	if err == nil {
		return f.file.WriteAt(p, off)
	}
	n, _ = f.file.WriteAt(p[:min(n, len(p))], off)
	return n, err
}

func (f *faultyFile) Sync() error {
	f.x.mu.Lock()
	err, hang, hung := f.x.sync, f.x.hang, f.x.hung
	f.x.hang = nil
	f.x.mu.Unlock()
	if hang != nil {
		close(hung)
		<-hang
	}
	if err != nil {
		return err
	}
	return f.file.Sync()
}

func (f *faultyFile) Truncate(n int64) error {
	f.x.mu.Lock()
	err := f.x.cut
	f.x.mu.Unlock()
	if err != nil {
		return err
	}
	return f.file.Truncate(n)
}

func TestAFailedWriteRefusesEverythingUntilTheDiskIsBack(t *testing.T) {
	for name, breaks := range map[string]func(*faults){
		"disk full":                 func(x *faults) { x.write = syscall.ENOSPC },
		"disk full after half":      func(x *faults) { x.write, x.after = syscall.ENOSPC, 100 },
		"io error":                  func(x *faults) { x.write = syscall.EIO },
		"closed descriptor":         func(x *faults) { x.write = syscall.EBADF },
		"sync fails":                func(x *faults) { x.sync = syscall.EIO },
		"torn and not cut":          func(x *faults) { x.write, x.after, x.cut = syscall.EIO, 100, syscall.EIO },
		"whole lines and not cut":   func(x *faults) { x.sync, x.cut = syscall.EIO, syscall.EIO },
		"sync fails, full, not cut": func(x *faults) { x.sync, x.write, x.cut = syscall.EIO, syscall.ENOSPC, syscall.ENOSPC },
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { breakAndMend(t, breaks) }) })
	}
}

func breakAndMend(t *testing.T, breaks func(*faults)) {
	dir, x := auditDir(t), &faults{}
	l := open(t, Config{Dir: dir, wrap: x.wrap})
	commit(t, l, 3)
	broken := l.Broken()
	x.set(breaks)
	lost := allowed("lost.example")
	if err := l.Append(lost); err != nil {
		t.Fatal(err)
	}
	refused := allowed("refused.example")
	if err := l.Commit(t.Context(), refused); !errors.Is(err, ErrBroken) {
		t.Fatalf("Commit on a broken disk: %v", err)
	}
	select {
	case <-broken:
	default:
		t.Error("Broken is not closed")
	}
	if l.Commit(t.Context(), refused) == nil || l.Append(refused) == nil {
		t.Error("a broken log accepts records")
	}
	<-time.After(3500 * time.Millisecond) // retries while the disk is still broken
	if err := l.Append(refused); !errors.Is(err, ErrBroken) {
		t.Errorf("mended although the disk is not: %v", err)
	}
	x.heal()
	<-time.After(1100 * time.Millisecond)
	select {
	case <-l.Broken():
		t.Fatal("still broken a second after the disk came back")
	default:
	}
	after := allowed("after.example")
	if err := l.Commit(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	wantIntact(t, dir)
	all := stored(t, dir)
	if len(all) != 1+3+1+1+1 {
		t.Fatalf("%d records", len(all))
	}
	if n := all[4]; n.Kind != record.Notice || n.Reason != gate.ReasonAudit || n.Count != 5 {
		t.Errorf("the loss is not told: %+v", n.Record)
	}
	if all[5].Event != after.Event {
		t.Error("the log does not go on after the notice")
	}
}

func TestADiskThatHangsFailsThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := auditDir(t)
		hang, hung := make(chan struct{}), make(chan struct{})
		x := &faults{}
		l := open(t, Config{Dir: dir, wrap: x.wrap, Wait: time.Second})
		commit(t, l, 1)
		x.set(func(x *faults) { x.hang, x.hung = hang, hung })
		start := time.Now()
		errs := make(chan error, 2)
		go func() { errs <- l.Commit(t.Context(), allowed("inflight.example")) }()
		<-hung
		go func() { errs <- l.Commit(t.Context(), allowed("waiting.example")) }()
		for range 2 {
			if err := <-errs; !errors.Is(err, ErrBroken) || !errors.Is(err, errStalled) {
				t.Error(err)
			}
		}
		if took := time.Since(start); took > 1100*time.Millisecond {
			t.Errorf("took %v", took)
		}
		start = time.Now()
		if err := l.Commit(t.Context(), allowed("later.example")); !errors.Is(err, ErrBroken) || time.Since(start) > time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		close(hang)
		<-time.After(2 * time.Second)
		commit(t, l, 1)
		mustClose(t, l)
		wantIntact(t, dir)
		for _, s := range stored(t, dir) {
			if s.Host != "" && s.Host != "a.example" {
				t.Errorf("%s is in the log although its commit failed", s.Host)
			}
		}
	})
}

func TestTheQueueIsBoundedAndNobodyWaitsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, hung := make(chan struct{}), make(chan struct{})
		x := &faults{}
		l := open(t, Config{Dir: auditDir(t), wrap: x.wrap, Wait: time.Second, Queue: 4096})
		x.set(func(x *faults) { x.hang, x.hung = hang, hung })
		if err := l.Append(allowed("a.example")); err != nil {
			t.Fatal(err)
		}
		<-hung
		start, n := time.Now(), 0
		var err error
		for err == nil {
			err = l.Append(allowed("a.example"))
			n++
		}
		if !errors.Is(err, ErrBroken) || n > 20 || time.Since(start) > 1100*time.Millisecond {
			t.Errorf("%v after %d records and %v", err, n, time.Since(start))
		}
		close(hang)
		mustClose(t, l)
	})
}

func TestACancelledContextEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, hung := make(chan struct{}), make(chan struct{})
		x := &faults{}
		l := open(t, Config{Dir: auditDir(t), wrap: x.wrap})
		x.set(func(x *faults) { x.hang, x.hung = hang, hung })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := l.Commit(ctx, allowed("a.example")); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		<-hung
		close(hang)
		mustClose(t, l)
	})
}

func TestCloseDoesNotWaitForADeadDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, hung := make(chan struct{}), make(chan struct{})
		x := &faults{}
		l := open(t, Config{Dir: auditDir(t), wrap: x.wrap, Wait: time.Second})
		x.set(func(x *faults) { x.hang, x.hung = hang, hung })
		start := time.Now()
		if err := l.Close(); !errors.Is(err, ErrBroken) || time.Since(start) > 4*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		close(hang)
		<-l.done
	})
}

func TestARotationThatFailsLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, x := auditDir(t), &faults{}
		l := open(t, Config{Dir: dir, wrap: x.wrap, Rotate: 2048})
		for l.w.offset+600 < 2048 {
			commit(t, l, 1)
		}
		before := len(stored(t, dir))
		x.set(func(x *faults) { x.write = syscall.ENOSPC })
		for range 3 {
			if err := l.Commit(t.Context(), allowed("a.example")); !errors.Is(err, ErrBroken) {
				t.Fatal(err)
			}
		}
		x.heal()
		<-time.After(1100 * time.Millisecond)
		commit(t, l, 10)
		mustClose(t, l)
		wantIntact(t, dir)
		if n := len(stored(t, dir)); n != before+1+10+1 {
			t.Errorf("%d records, want %d", n, before+12)
		}
	})
}

func TestALogThatLostItsFileStaysBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, x := auditDir(t), &faults{}
		l := open(t, Config{Dir: dir, wrap: x.wrap})
		commit(t, l, 3)
		x.set(func(x *faults) { x.sync = syscall.EIO })
		if l.Commit(t.Context(), allowed("a.example")) == nil {
			t.Fatal("committed on a broken disk")
		}
		name := filepath.Join(dir, l.segmentName(1))
		if err := os.Truncate(name, 100); err != nil {
			t.Fatal(err)
		}
		x.heal()
		<-time.After(5 * time.Second)
		if err := l.Commit(t.Context(), allowed("a.example")); !errors.Is(err, ErrBroken) {
			t.Errorf("went on behind a file that had lost committed records: %v", err)
		}
		if err := l.Close(); !errors.Is(err, ErrBroken) {
			t.Error(err)
		}
	})
}

func TestDenialsThatFloodAreCountedExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := auditDir(t)
		l := open(t, Config{Dir: dir})
		const floods, others = 5000, 7
		for i := range floods {
			if err := l.Append(denied("flood.example")); err != nil {
				t.Fatal(err)
			}
			if i%1000 == 0 {
				<-time.After(300 * time.Millisecond)
			}
		}
		for range others {
			if err := l.Append(denied("other.example")); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(2 * time.Second)
		before := len(stored(t, dir))
		mustClose(t, l)
		if n := len(stored(t, dir)); n != before+1 {
			t.Errorf("%d records were written only by Close", n-before-1)
		}
		wantIntact(t, dir)
		counts, lines := map[string]int64{}, 0
		for _, s := range stored(t, dir) {
			if s.Verdict == "deny" {
				counts[s.Host] += max(1, s.Count)
				lines++
			}
		}
		if counts["flood.example"] != floods || counts["other.example"] != others || lines > 400 {
			t.Errorf("%v in %d lines", counts, lines)
		}
	})
}

func TestAFloodOfDifferentHostsIsBoundedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := auditDir(t)
		l := open(t, Config{Dir: dir})
		const floods = 20000
		for i := range floods {
			if err := l.Append(denied(fmt.Sprintf("h%d.example", i))); err != nil {
				t.Fatal(err)
			}
		}
		mustClose(t, l)
		wantIntact(t, dir)
		var count int64
		lines := 0
		for _, s := range stored(t, dir) {
			if s.Verdict == "deny" {
				count += max(1, s.Count)
				lines++
			}
		}
		if count != floods || lines > floodAll+floodKeys+1 {
			t.Errorf("%d denials in %d lines", count, lines)
		}
	})
}

func TestCommittedDenialsAreNeverHeldBack(t *testing.T) {
	dir := auditDir(t)
	l := open(t, Config{Dir: dir})
	for range floodEach + 20 {
		if err := l.Commit(t.Context(), denied("a.example")); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, l)
	if n := len(stored(t, dir)); n != floodEach+22 {
		t.Errorf("%d records", n)
	}
}

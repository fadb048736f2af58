package audit

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/record"
)

var errStalled = errors.New("the disk does not answer")

// writer is the state of the writing goroutine: where the durable log ends.
type writer struct {
	file     file
	next     file // the next segment, made but not yet entered in the ledger
	start    string
	segment  int
	offset   int64 // durable bytes of the segment
	last     int   // length of its last line
	end      head  // durable end of the chain
	retryAt  time.Time
	closeErr error
}

// begin makes the first segment and its first record durable.
func (l *Log) begin() error {
	w := &l.w
	w.start, w.segment = l.cfg.Now().UTC().Format(record.StartLayout), 1
	err := l.dir.withLedger(l.cfg.Wait, func(led *ledger) (err error) {
		if w.file, err = l.dir.create(l.segmentName(1)); err != nil {
			return err
		}
		w.end.hash, err = led.append(l.entry(record.LedgerOpened), l.cfg.Now())
		if err == nil {
			l.dir.prune(led, l.cfg)
		}
		return err
	})
	if err != nil {
		l.closeFiles()
		return err
	}
	l.head = w.end
	l.encode(record.Record{Kind: record.SessionStart, Detail: l.cfg.Detail})
	b := l.take()
	l.inflight = nil
	if err := l.store(b); err != nil {
		l.closeFiles()
		return err
	}
	w.accept(b)
	return nil
}

// run is the writing goroutine.
func (l *Log) run() {
	defer close(l.done)
	timer := time.NewTimer(l.due())
	defer timer.Stop()
	for {
		select {
		case <-l.stop:
			l.finish()
			return
		case <-l.later:
		case <-l.urgent:
			runtime.Gosched() // those whom the last sync released are about to commit again: let them join
			l.work()
		case <-timer.C:
			l.work()
		}
		timer.Reset(l.due())
	}
}

// due is how long the writer may rest.
func (l *Log) due() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := time.Now().Add(time.Hour)
	if l.cause != nil {
		return time.Until(l.w.retryAt)
	}
	if !l.flushBy.IsZero() {
		at = l.flushBy
	}
	if end := l.flood.ends(); !end.IsZero() && end.Before(at) {
		at = end
	}
	return time.Until(at)
}

func (l *Log) work() {
	l.mu.Lock()
	broken := l.cause != nil
	l.mu.Unlock()
	if broken {
		l.mend()
		return
	}
	l.flush()
}

// take is called with mu held.
func (l *Log) take() batch {
	b := l.pending
	l.pending, l.spare = batch{buf: l.spare, group: newGroup()}, nil
	l.inflight, l.flushBy = b.group, time.Time{}
	return b
}

// flush makes everything that waits durable.
func (l *Log) flush() {
	l.mu.Lock()
	l.release(time.Now(), false)
	if len(l.pending.buf) == 0 {
		l.flushBy = time.Time{}
		l.mu.Unlock()
		return
	}
	b := l.take()
	l.mu.Unlock()

	watchdog := time.AfterFunc(l.cfg.Wait, func() { l.stalled(b.group) })
	err := l.store(b)
	watchdog.Stop()
	if !l.settle(b, err) {
		l.cut()
	}
}

// settle tells those who wait for the batch, and reports whether it counts as durable.
func (l *Log) settle(b batch, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.inflight != nil {
		l.inflight = nil
		l.w.accept(b)
		close(b.group.done)
		if cap(b.buf) <= spareBytes {
			l.spare = b.buf[:0]
		}
		return true
	}
	l.lost, l.refused = l.lost+b.appends, l.refused+b.commits
	if l.inflight != nil { // else the watchdog has already told everybody that it failed
		l.fail(err)
	}
	return false
}

// stalled fails everybody who waits for a write that takes too long.
func (l *Log) stalled(g *group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inflight == g {
		l.fail(errStalled)
	}
}

// fail breaks the log. It is called with mu held.
func (l *Log) fail(cause error) {
	l.cause = fmt.Errorf("%w: %w", ErrBroken, cause)
	l.since = time.Now()
	l.lost, l.refused = l.lost+l.pending.appends, l.refused+l.pending.commits
	close(l.broken)
	for _, g := range []*group{l.inflight, l.pending.group} {
		if g != nil {
			g.err = l.cause
			close(g.done)
		}
	}
	l.inflight = nil
	l.pending = batch{group: newGroup()}
	l.flushBy = time.Time{}
}

// store writes a batch behind the durable end and syncs it. Whether it then counts is for accept.
func (l *Log) store(b batch) error {
	w := &l.w
	if w.offset > 0 && w.offset+int64(len(b.buf)) > l.cfg.Rotate {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	if _, err := w.file.WriteAt(b.buf, w.offset); err != nil {
		return err
	}
	return w.file.Sync()
}

// accept moves the durable end behind a batch that was stored.
func (w *writer) accept(b batch) {
	w.offset, w.last, w.end = w.offset+int64(len(b.buf)), b.last, b.end
}

// cut removes what is behind the durable end, and sets when to try again. It is called without mu: the disk may hang.
func (l *Log) cut() {
	w := &l.w
	if w.file != nil {
		_ = w.file.Truncate(w.offset) // when it fails too, mend cuts before it goes on
	}
	w.retryAt = time.Now().Add(retryEvery)
}

// rotate ends the segment in the ledger and goes on in the next. The next file exists before the ledger expects it.
func (l *Log) rotate() error {
	w := &l.w
	err := l.dir.withLedger(l.cfg.Wait/2, func(led *ledger) (err error) {
		if w.next == nil {
			if w.next, err = l.dir.create(l.segmentName(w.segment + 1)); err != nil {
				return err
			}
		}
		_, err = led.append(l.entry(record.LedgerNext), l.cfg.Now())
		if err == nil {
			l.dir.prune(led, l.cfg)
		}
		return err
	})
	if err != nil {
		return err
	}
	_ = w.file.Close() // everything in it is durable
	w.file, w.next, w.segment, w.offset, w.last = w.next, nil, w.segment+1, 0, 0
	return nil
}

// mend tries to go on behind the last durable record, and says there what was lost.
func (l *Log) mend() {
	w := &l.w
	if err := l.reopen(); err != nil {
		l.cut()
		return
	}
	l.mu.Lock()
	lost, refused := l.lost, l.refused
	notice := l.lossNotice(lost, refused)
	l.head = w.end
	l.encode(notice)
	b := l.pending
	l.pending = batch{group: b.group}
	l.mu.Unlock()

	err := l.store(b)
	if err != nil {
		l.cut()
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		return
	}
	w.accept(b)
	l.lost, l.refused = l.lost-lost, l.refused-refused
	l.head, l.cause, l.broken = w.end, nil, make(chan struct{})
	if l.lost+l.refused > 0 { // refused while the notice was being written
		l.encode(l.lossNotice(l.lost, l.refused))
		l.lost, l.refused = 0, 0
		l.flushBy = time.Now()
	}
}

func (l *Log) lossNotice(lost, refused int64) record.Record {
	return record.Record{
		Kind: record.Notice, Reason: gate.ReasonAudit, Count: lost + refused,
		Detail: fmt.Sprintf("the log could not be written for %s: %d queued records lost, %d refused; nothing that was committed (%s)",
			time.Since(l.since).Round(time.Millisecond), lost, refused, l.cause),
	}
}

// reopen opens the segment afresh and checks that it still ends in the last durable record.
func (l *Log) reopen() error {
	w := &l.w
	if w.file != nil {
		_ = w.file.Close()
		w.file = nil
	}
	f, err := l.dir.reopen(l.segmentName(w.segment))
	if err != nil {
		return err
	}
	w.file = f
	if w.offset == 0 {
		return f.Truncate(0)
	}
	line := make([]byte, w.last)
	if _, err := f.ReadAt(line, w.offset-int64(w.last)); err != nil {
		return fmt.Errorf("reading the last durable record: %w", err)
	}
	if s, err := record.Parse(line[:len(line)-1]); err != nil || s.Hash != w.end.hash || record.Sum(line[:len(line)-1]) != w.end.hash {
		return errors.New("the last durable record is not in the file any more")
	}
	return f.Truncate(w.offset)
}

// finish writes the end of the session.
func (l *Log) finish() {
	w := &l.w
	defer l.dir.close()
	defer l.closeFiles()
	l.work()
	l.mu.Lock()
	if err := l.cause; err != nil {
		w.closeErr = err
		l.mu.Unlock()
		return
	}
	l.release(time.Now(), true)
	l.encode(record.Record{Kind: record.SessionEnd})
	g := l.pending.group
	l.mu.Unlock()
	l.flush()
	<-g.done
	if w.closeErr = g.err; g.err != nil {
		return
	}
	w.closeErr = l.dir.withLedger(l.cfg.Wait, func(led *ledger) error {
		_, err := led.append(l.entry(record.LedgerClosed), l.cfg.Now())
		return err
	})
}

// entry says in the ledger how the current segment ends.
func (l *Log) entry(kind record.LedgerKind) record.LedgerEntry {
	w := &l.w
	return record.LedgerEntry{Kind: kind, Session: l.cfg.Session, Start: w.start, Segment: w.segment, Last: w.end.seq, Head: w.end.hash}
}

func (l *Log) segmentName(n int) string {
	return record.Segment{Start: l.w.start, Session: l.cfg.Session, N: n}.Name()
}

func (l *Log) closeFiles() {
	for _, f := range []file{l.w.file, l.w.next} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// Package audit is the event log: JSON Lines in one directory, hash-chained, durable before anything happens.
//
//	<start>-<session>.<n>.jsonl   segment n of a session: one record a line (core/record), mode 0600
//	ledger.jsonl                  one entry a line for all sessions: opened, segment closed with its last hash, session closed
//
// Every line holds the hash of the line before it. The first record of a session follows the ledger entry that opened it, the first of
// a later segment the last of the segment before, so a line that is edited, removed, moved or brought from elsewhere breaks a chain, and a
// file that is removed, cut or replaced contradicts the ledger. The log is not signed: whoever may write the directory can rewrite all of
// it from some point on. The head that Verify reports, kept elsewhere, bounds that.
//
// One goroutine per session writes. Records that arrive while it waits for the disk share its next write and its next fdatasync.
// When a write fails the log is broken: what waits fails, what comes fails at once, the file is cut back to its last durable record, and
// once a second the log tries to go on from there with a record of what was lost, which is never anything that Commit said is durable.
package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/record"
)

// ErrBroken is the answer while the log cannot be written: nothing may happen.
var ErrBroken = errors.New("audit log is broken")

// ErrClosed is the answer after Close.
var ErrClosed = errors.New("audit log is closed")

// Config is how one session's log is kept.
type Config struct {
	Dir     string           // required; made with mode 0700, refused when it is somebody else's or open to others
	Session gate.SessionID   // required
	Detail  string           // what the session.start record says
	Now     func() time.Time // nil: time.Now
	Rotate  int64            // bytes after which a segment ends; 0: 64 MiB
	Keep    int64            // bytes of finished segments kept in Dir, the oldest are removed first; 0: all are kept
	Queue   int              // bytes of records that may wait for the disk; 0: 1 MiB
	Wait    time.Duration    // how long the disk may take before the log counts as broken; 0: 5 s

	wrap func(file) file // tests: faults
}

const (
	defaultRotate = 64 << 20
	defaultQueue  = 1 << 20
	defaultWait   = 5 * time.Second
	linger        = 20 * time.Millisecond // how long an appended record may wait for company
	retryEvery    = time.Second
	spareBytes    = 64 << 10 // a larger write buffer is given back after use
)

// DefaultDir is where logs are kept: /var/lib/postern/audit for root, else below XDG_STATE_HOME or ~/.local/state.
func DefaultDir(getenv func(string) string, euid int) (string, error) {
	if euid == 0 {
		return "/var/lib/postern/audit", nil
	}
	if s := getenv("XDG_STATE_HOME"); filepath.IsAbs(s) {
		return filepath.Join(s, "postern", "audit"), nil
	}
	if h := getenv("HOME"); filepath.IsAbs(h) {
		return filepath.Join(h, ".local", "state", "postern", "audit"), nil
	}
	return "", errors.New("audit directory: neither XDG_STATE_HOME nor HOME is set")
}

// Log is the log of one session. All methods may be called from any goroutine.
type Log struct {
	cfg Config
	dir *directory

	urgent chan struct{} // somebody waits for a commit
	later  chan struct{} // something is due at another time than before
	stop   chan struct{}
	done   chan struct{}

	mu       sync.Mutex
	pending  batch
	inflight *group // waiting for the disk; nil when none is, or when it was told that it failed
	spare    []byte // a buffer for the next batch
	head     head   // after everything in pending
	flood    flood
	flushBy  time.Time     // when appended records must be on their way; zero: none wait
	broken   chan struct{} // closed while the log is broken
	cause    error         // not nil while broken
	since    time.Time     // when it broke
	lost     int64         // appended records that were dropped
	refused  int64         // records that were not accepted, or whose commit failed
	closed   bool

	w writer // of the writing goroutine alone
}

// head is the end of a chain.
type head struct {
	seq  uint64
	hash record.Hash
}

// batch is what one write and one fdatasync make durable.
type batch struct {
	buf     []byte
	last    int // length of the last line
	end     head
	appends int64
	commits int64
	group   *group
}

// group is who waits for a batch. err is set before done is closed.
type group struct {
	done chan struct{}
	err  error
}

func newGroup() *group { return &group{done: make(chan struct{})} }

// Open makes the directory and the session's first segment, enters it in the ledger, and returns when the session.start record is durable.
func Open(cfg Config) (*Log, error) {
	if cfg.Dir == "" || cfg.Session.IsZero() {
		return nil, errors.New("audit: a log needs a directory and a session")
	}
	if cfg.Rotate < 0 || cfg.Keep < 0 || cfg.Queue < 0 || cfg.Wait < 0 {
		return nil, errors.New("audit: a limit below zero")
	}
	cfg.Rotate, cfg.Queue, cfg.Wait = cmp.Or(cfg.Rotate, defaultRotate), cmp.Or(cfg.Queue, defaultQueue), cmp.Or(cfg.Wait, defaultWait)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.wrap == nil {
		cfg.wrap = func(f file) file { return f }
	}
	d, err := openDirectory(cfg.Dir, cfg.wrap)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	l := &Log{
		cfg: cfg, dir: d,
		urgent: make(chan struct{}, 1), later: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		pending: batch{group: newGroup()}, broken: make(chan struct{}),
	}
	if err := l.begin(); err != nil {
		d.close()
		return nil, fmt.Errorf("audit: %w", err)
	}
	go l.run()
	return l, nil
}

// Commit returns nil when the record is on the disk. On an error, what it tells of must not happen: with ErrBroken (a failed write,
// or a disk that takes longer than Config.Wait) the record is not in the log, with the context's error it may yet be.
func (l *Log) Commit(ctx context.Context, r *record.Record) error {
	g, err := l.enqueue(ctx, r, true)
	if err != nil {
		return err
	}
	select {
	case <-g.done:
		return g.err
	case <-ctx.Done():
		return fmt.Errorf("audit commit: %w", context.Cause(ctx))
	}
}

// Append queues the record for the next write, at most 20 ms away. It waits at most Config.Wait for room in the queue.
// An error means that the record is lost, will be counted, and that no new work may start.
// Identical denials beyond 100 a second become one record with their count.
func (l *Log) Append(r *record.Record) error {
	_, err := l.enqueue(context.Background(), r, false)
	return err
}

// Broken is closed while the log cannot be written. After it has recovered, Broken returns another channel.
func (l *Log) Broken() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

// Close writes what is queued and the session.end record, and closes the session in the ledger. An error means that the log ends without
// its close. It takes at most about twice Config.Wait, also when the disk hangs. Closing again answers ErrClosed.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	l.closed = true
	l.mu.Unlock()
	close(l.stop)
	late := time.NewTimer(2*l.cfg.Wait + time.Second)
	defer late.Stop()
	select {
	case <-l.done:
		return l.w.closeErr
	case <-late.C:
		return fmt.Errorf("audit close: %w: %w", ErrBroken, errStalled)
	}
}

func checkKind(k record.Kind) error {
	switch k {
	case record.SessionStart, record.SessionEnd, record.Decision, record.Outcome, record.Notice:
		return nil
	}
	return errors.New("audit: a record without a known kind")
}

// enqueue encodes the record behind those that wait, and says who is told when it is durable.
func (l *Log) enqueue(ctx context.Context, r *record.Record, commit bool) (*group, error) {
	if err := checkKind(r.Kind); err != nil {
		return nil, err
	}
	if !r.Session.IsZero() && r.Session != l.cfg.Session {
		return nil, errors.New("audit: a record of another session")
	}
	var full *time.Timer
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.closed:
			return nil, ErrClosed
		case l.cause != nil:
			l.refused++
			return nil, l.cause
		case len(l.pending.buf) < l.cfg.Queue:
			return l.admit(r, commit), nil
		}
		if full == nil {
			full = time.NewTimer(l.cfg.Wait)
			defer full.Stop()
		}
		var err error
		g := l.pending.group
		l.mu.Unlock()
		select {
		case <-g.done:
		case <-ctx.Done():
			err = fmt.Errorf("audit queue: %w", context.Cause(ctx))
		case <-full.C:
			err = fmt.Errorf("%w: its queue stays full", ErrBroken)
		}
		l.mu.Lock()
		if err != nil {
			l.refused++
			return nil, err
		}
	}
}

// admit is called with mu held and room in the queue.
func (l *Log) admit(r *record.Record, commit bool) *group {
	if !commit && l.holdBack(r) {
		return nil
	}
	first := len(l.pending.buf) == 0
	l.encode(*r)
	if commit {
		l.pending.commits++
		signal(l.urgent)
		return l.pending.group
	}
	l.pending.appends++
	switch {
	case len(l.pending.buf) >= l.cfg.Queue/2:
		signal(l.urgent)
	case first:
		l.flushBy = time.Now().Add(linger)
		signal(l.later)
	}
	return l.pending.group
}

// encode adds a line to the pending batch. It is called with mu held.
func (l *Log) encode(r record.Record) {
	r.Session = l.cfg.Session
	p := &l.pending
	before := len(p.buf)
	m := record.Meta{Seq: l.head.seq + 1, Time: l.cfg.Now(), Prev: l.head.hash}
	p.buf, l.head.hash = record.AppendJSON(p.buf, &r, m)
	p.buf = append(p.buf, '\n')
	l.head.seq = m.Seq
	p.last, p.end = len(p.buf)-before, l.head
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// checkOwner refuses a directory that somebody else could change.
func checkOwner(info os.FileInfo, dir string) error {
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("%s belongs to somebody else than uid %d, who is to write it", dir, os.Geteuid())
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is open to others: chmod 700 it", dir)
	}
	return nil
}

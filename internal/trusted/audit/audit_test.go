package audit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"postern/internal/core/gate"
	"postern/internal/core/record"
	"postern/internal/operator/journal"
)

func TestMain(m *testing.M) {
	switch os.Getenv("POSTERN_AUDIT_TEST") {
	case "commit-until-killed":
		commitUntilKilled()
	case "fill-the-disk":
		fillTheDisk()
	default:
		goleak.VerifyTestMain(m)
	}
}

func newSession() gate.SessionID {
	var b [10]byte
	rand.Read(b[:])
	return gate.NewSessionID(b)
}

func newEvent() gate.EventID {
	var b [10]byte
	rand.Read(b[:])
	return gate.NewEventID(b)
}

func open(t testing.TB, cfg Config) *Log {
	t.Helper()
	if cfg.Session.IsZero() {
		cfg.Session = newSession()
	}
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func auditDir(t testing.TB) string { return filepath.Join(t.TempDir(), "audit") }

func allowed(host string) *record.Record {
	return &record.Record{
		Kind: record.Decision, Event: newEvent(), Verdict: "allow", Reason: gate.ReasonAllowed, Rule: "postern.yaml:3", Action: "request",
		Scheme: "https", Host: host, Port: 443, Method: "GET", Path: "/",
	}
}

func denied(host string) *record.Record {
	return &record.Record{
		Kind: record.Decision, Event: newEvent(), Verdict: "deny", Reason: gate.ReasonHostNotListed, Action: "request",
		Scheme: "https", Host: host, Port: 443, Method: "POST", Path: "/v1", Status: 403,
	}
}

func commit(t testing.TB, l *Log, n int) {
	t.Helper()
	for range n {
		if err := l.Commit(t.Context(), allowed("a.example")); err != nil {
			t.Fatal(err)
		}
	}
}

func mustClose(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func verify(t testing.TB, dir string) journal.Report {
	t.Helper()
	r, err := journal.Verify(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantIntact(t testing.TB, dir string) journal.Report {
	t.Helper()
	r := verify(t, dir)
	if f, bad := r.First(); bad {
		t.Fatalf("%s:%d: %s", f.Name, f.Line, f.Problem)
	}
	return r
}

// stored reads all records of a directory's sessions in file order.
func stored(t testing.TB, dir string) (out []record.Stored) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*-s*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			s, err := record.Parse([]byte(strings.TrimSuffix(line, "\n")))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, s)
		}
	}
	return out
}

func TestACommittedRecordIsInTheFileWhenCommitReturns(t *testing.T) {
	dir := auditDir(t)
	l := open(t, Config{Dir: dir})
	for i := range 20 {
		r := allowed(fmt.Sprintf("h%d.example", i))
		if err := l.Commit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		all := stored(t, dir)
		if last := all[len(all)-1]; last.Event != r.Event || last.Session != l.cfg.Session {
			t.Fatalf("the file ends with %+v", last.Record)
		}
	}
	mustClose(t, l)
	r := wantIntact(t, dir)
	if r.Records != 22 || r.Sessions != 1 || r.Entries != 2 {
		t.Errorf("%+v", r)
	}
	all := stored(t, dir)
	if all[0].Kind != record.SessionStart || all[len(all)-1].Kind != record.SessionEnd {
		t.Error("a session is not framed by its start and end")
	}
}

func TestAppendedRecordsReachTheFileWithoutACommit(t *testing.T) {
	dir := auditDir(t)
	l := open(t, Config{Dir: dir})
	defer l.Close()
	g, err := l.enqueue(t.Context(), denied("a.example"), false) // what Append does
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.done:
	case <-time.After(5 * time.Second):
		t.Fatal("not written within five seconds")
	}
	if got := stored(t, dir); len(got) != 2 || got[1].Verdict != "deny" {
		t.Errorf("%d records", len(got))
	}
}

func TestAppendedRecordsAreWrittenByClose(t *testing.T) {
	dir := auditDir(t)
	l := open(t, Config{Dir: dir})
	for range 50 {
		if err := l.Append(allowed("a.example")); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, l)
	if r := wantIntact(t, dir); r.Records != 52 {
		t.Errorf("%d records", r.Records)
	}
}

func TestManyCommittersShareASync(t *testing.T) {
	dir := auditDir(t)
	var syncs countSyncs
	l := open(t, Config{Dir: dir, wrap: syncs.wrap})
	const each, who = 50, 32
	var wg sync.WaitGroup
	for range who {
		wg.Go(func() {
			for range each {
				if err := l.Commit(context.Background(), allowed("a.example")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	mustClose(t, l)
	if r := wantIntact(t, dir); r.Records != each*who+2 {
		t.Errorf("%d records", r.Records)
	}
	if n := syncs.n.Load(); n > each*who/4 {
		t.Errorf("%d syncs for %d commits: they are serialised", n, each*who)
	}
}

func TestSegmentsRotateAndTheChainGoesOn(t *testing.T) {
	dir := auditDir(t)
	l := open(t, Config{Dir: dir, Rotate: 4096})
	commit(t, l, 60)
	mustClose(t, l)
	r := wantIntact(t, dir)
	if len(r.Files) < 5 || r.Records != 62 {
		t.Errorf("%d files, %d records", len(r.Files), r.Records)
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, n := range names {
		if info, err := os.Stat(n); err != nil || info.Mode().Perm() != 0o600 || info.Size() > 4096+1024 && filepath.Base(n) != record.LedgerName {
			t.Errorf("%s: %v %d bytes %v", n, info.Mode(), info.Size(), err)
		}
	}
}

func TestSessionsShareADirectory(t *testing.T) {
	dir := auditDir(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			l, err := Open(Config{Dir: dir, Session: newSession(), Rotate: 2048})
			if err != nil {
				t.Error(err)
				return
			}
			for range 20 {
				if err := l.Commit(context.Background(), allowed("a.example")); err != nil {
					t.Error(err)
				}
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if r := wantIntact(t, dir); r.Sessions != 8 || r.Records != 8*22 {
		t.Errorf("%d sessions, %d records", r.Sessions, r.Records)
	}
}

func TestADirectoryThatOthersCanEnterIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, Session: newSession()}); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("%v", err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{Dir: dir, Session: newSession()}); err == nil || !strings.Contains(err.Error(), "somebody else") {
			t.Errorf("%v", err)
		}
	}
}

func TestTheZeroConfigAndTheZeroRecordAreRefused(t *testing.T) {
	if _, err := Open(Config{}); err == nil {
		t.Error("a log without directory and session")
	}
	l := open(t, Config{Dir: auditDir(t)})
	defer l.Close()
	for _, r := range []*record.Record{{}, {Kind: "decisions"}, {Kind: record.Decision, Session: newSession()}} {
		if l.Commit(t.Context(), r) == nil || l.Append(r) == nil {
			t.Errorf("%+v was stored", r)
		}
	}
	if err := l.Commit(t.Context(), allowed("a.example")); err != nil {
		t.Errorf("a refused record broke the log: %v", err)
	}
}

func TestASessionCannotBeOpenedOverAnother(t *testing.T) {
	dir, id, now := auditDir(t), newSession(), func() time.Time { return time.Unix(1e9, 0) }
	l := open(t, Config{Dir: dir, Session: id, Now: now})
	defer l.Close()
	if _, err := Open(Config{Dir: dir, Session: id, Now: now}); !errors.Is(err, os.ErrExist) {
		t.Errorf("%v", err)
	}
}

func TestAClosedLogRefuses(t *testing.T) {
	l := open(t, Config{Dir: auditDir(t)})
	mustClose(t, l)
	if err := l.Commit(t.Context(), allowed("a.example")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := l.Append(allowed("a.example")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := l.Close(); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestClockJumpsDoNotDisturbTheOrder(t *testing.T) {
	dir := auditDir(t)
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var mu sync.Mutex
	l := open(t, Config{Dir: dir, Now: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		clock = clock.Add(-time.Hour)
		return clock
	}})
	commit(t, l, 5)
	mustClose(t, l)
	wantIntact(t, dir)
	for i, s := range stored(t, dir) {
		if s.Seq != uint64(i+1) {
			t.Errorf("record %d has number %d", i, s.Seq)
		}
	}
}

func TestOldSegmentsArePrunedOnTheRecord(t *testing.T) {
	dir := auditDir(t)
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 4 {
		l := open(t, Config{Dir: dir, Rotate: 2048, Keep: 8192, Now: func() time.Time { return base.Add(time.Duration(i) * time.Hour) }})
		commit(t, l, 20)
		mustClose(t, l)
	}
	r := wantIntact(t, dir)
	var size int64
	pruned := 0
	names, _ := filepath.Glob(filepath.Join(dir, "*-s*"))
	for _, n := range names {
		if info, err := os.Stat(n); err == nil {
			size += info.Size()
		}
	}
	for _, f := range r.Files {
		if f.State == journal.Pruned {
			pruned++
		}
	}
	if pruned == 0 || size > 8192+22*1024 {
		t.Errorf("%d pruned, %d bytes kept", pruned, size)
	}
}

func TestARunningSessionIsNeverPrunedOrCalledKilled(t *testing.T) {
	dir := auditDir(t)
	first := open(t, Config{Dir: dir, Rotate: 2048, Now: func() time.Time { return time.Unix(1e9, 0) }})
	commit(t, first, 20)
	second := open(t, Config{Dir: dir, Keep: 1})
	commit(t, second, 1)
	for _, f := range wantIntact(t, dir).Files {
		if f.State == journal.Pruned || f.State == journal.Unclosed {
			t.Errorf("%s: %v", f.Name, f.State)
		}
	}
	mustClose(t, first)
	mustClose(t, second)
	wantIntact(t, dir)
}

func TestDefaultDirIsBelowTheStateDirectory(t *testing.T) {
	env := func(kv ...string) func(string) string {
		return func(k string) string {
			for i := 0; i < len(kv); i += 2 {
				if kv[i] == k {
					return kv[i+1]
				}
			}
			return ""
		}
	}
	for want, f := range map[string]func() (string, error){
		"/var/lib/postern/audit":        func() (string, error) { return DefaultDir(env("HOME", "/root"), 0) },
		"/s/postern/audit":              func() (string, error) { return DefaultDir(env("HOME", "/h", "XDG_STATE_HOME", "/s"), 1) },
		"/h/.local/state/postern/audit": func() (string, error) { return DefaultDir(env("HOME", "/h"), 1) },
	} {
		if got, err := f(); got != want || err != nil {
			t.Errorf("%q %v, want %q", got, err, want)
		}
	}
	if _, err := DefaultDir(env("HOME", "relative"), 1); err == nil {
		t.Error("a relative home was accepted")
	}
}

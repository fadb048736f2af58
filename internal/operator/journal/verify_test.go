package journal

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"postern/internal/core/gate"
	"postern/internal/core/record"
	"postern/internal/trusted/audit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newSession() gate.SessionID {
	var b [10]byte
	rand.Read(b[:])
	return gate.NewSessionID(b)
}

func open(t testing.TB, cfg audit.Config) *audit.Log {
	t.Helper()
	if cfg.Session.IsZero() {
		cfg.Session = newSession()
	}
	l, err := audit.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func auditDir(t testing.TB) string { return filepath.Join(t.TempDir(), "audit") }

func allowed() *record.Record {
	return &record.Record{
		Kind: record.Decision, Verdict: "allow", Reason: gate.ReasonAllowed, Rule: "postern.yaml:3", Action: "request",
		Scheme: "https", Host: "a.example", Port: 443, Method: "GET", Path: "/",
	}
}

func commit(t testing.TB, l *audit.Log, n int) {
	t.Helper()
	for range n {
		if err := l.Commit(t.Context(), allowed()); err != nil {
			t.Fatal(err)
		}
	}
}

func mustClose(t testing.TB, l *audit.Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func verify(t testing.TB, dir string) Report {
	t.Helper()
	r, err := Verify(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantIntact(t testing.TB, dir string) Report {
	t.Helper()
	r := verify(t, dir)
	if f, bad := r.First(); bad {
		t.Fatalf("%s:%d: %s", f.Name, f.Line, f.Problem)
	}
	return r
}

// house is a directory with three closed sessions of three segments each.
type house struct {
	t   *testing.T
	dir string
	ids []gate.SessionID
}

func build(t *testing.T) *house {
	t.Helper()
	h := &house{t: t, dir: auditDir(t)}
	for i := range 3 {
		id := newSession()
		h.ids = append(h.ids, id)
		at := time.Date(2026, 1, 1+i, 0, 0, 0, 0, time.UTC)
		l := open(t, audit.Config{Dir: h.dir, Session: id, Rotate: 3000, Now: func() time.Time { at = at.Add(time.Second); return at }})
		for len(h.segments(id)) < 3 {
			commit(t, l, 1)
		}
		commit(t, l, 2)
		mustClose(t, l)
	}
	wantIntact(t, h.dir)
	return h
}

func (h *house) segments(id gate.SessionID) []string {
	names, err := filepath.Glob(filepath.Join(h.dir, "*-"+id.String()+".*.jsonl"))
	if err != nil {
		h.t.Fatal(err)
	}
	return names
}

func (h *house) file(session, n int) string { return h.segments(h.ids[session])[n-1] }

func (h *house) read(name string) [][]byte {
	b, err := os.ReadFile(name)
	if err != nil {
		h.t.Fatal(err)
	}
	return bytes.SplitAfter(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
}

func (h *house) write(name string, lines [][]byte) {
	out := bytes.Join(lines, nil)
	if len(out) > 0 && !bytes.HasSuffix(out, []byte("\n")) {
		out = append(out, '\n')
	}
	if err := os.WriteFile(name, out, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) change(name string, f func([][]byte) [][]byte) { h.write(name, f(h.read(name))) }

// forge writes a line again with another host and a right hash, as somebody who knows the format would.
func (h *house) forge(line []byte) []byte {
	s, err := record.Parse(bytes.TrimSuffix(line, []byte("\n")))
	if err != nil {
		h.t.Fatal(err)
	}
	s.Detail = "forged"
	out, _ := record.AppendJSON(nil, &s.Record, s.Meta)
	return append(out, '\n')
}

func ended(lines [][]byte) [][]byte {
	for i := range lines {
		lines[i] = append(bytes.TrimSuffix(lines[i], []byte("\n")), '\n')
	}
	return lines
}

func TestVerifyNamesEachKindOfTampering(t *testing.T) {
	for name, c := range map[string]struct {
		tamper func(h *house) (file string)
		line   int
		says   string
	}{
		"one byte edited": {func(h *house) string {
			h.change(h.file(1, 2), func(l [][]byte) [][]byte {
				l[2] = bytes.Replace(l[2], []byte("GET"), []byte("PUT"), 1)
				return l
			})
			return h.file(1, 2)
		}, 3, "edited: the line does not have its hash"},
		"a field added": {func(h *house) string {
			h.change(h.file(0, 1), func(l [][]byte) [][]byte {
				l[1] = bytes.Replace(l[1], []byte(`,"prev"`), []byte(`,"x":1,"prev"`), 1)
				return l
			})
			return h.file(0, 1)
		}, 2, "edited: audit line"},
		"a record forged with a right hash": {func(h *house) string {
			h.change(h.file(1, 2), func(l [][]byte) [][]byte { l[1] = h.forge(l[1]); return l })
			return h.file(1, 2)
		}, 3, "spliced: record"},
		"the last record of a segment forged": {func(h *house) string {
			h.change(h.file(1, 1), func(l [][]byte) [][]byte { l[len(l)-1] = h.forge(l[len(l)-1]); return l })
			return h.file(1, 1)
		}, -1, "replaced: its last record is not the one in the ledger"},
		"the last record of a session forged": {func(h *house) string {
			h.change(h.file(2, 3), func(l [][]byte) [][]byte { l[len(l)-1] = h.forge(l[len(l)-1]); return l })
			return h.file(2, 3)
		}, -1, "replaced: its last record"},
		"a record deleted": {func(h *house) string {
			h.change(h.file(1, 2), func(l [][]byte) [][]byte { return slices.Delete(l, 1, 2) })
			return h.file(1, 2)
		}, 2, "deleted: record"},
		"two records deleted": {func(h *house) string {
			h.change(h.file(1, 1), func(l [][]byte) [][]byte { return slices.Delete(l, 1, 3) })
			return h.file(1, 1)
		}, 2, "deleted: records 2 to 3 are missing"},
		"the first record deleted": {func(h *house) string {
			h.change(h.file(1, 1), func(l [][]byte) [][]byte { return l[1:] })
			return h.file(1, 1)
		}, 1, "deleted: record 1 is missing"},
		"two records swapped": {func(h *house) string {
			h.change(h.file(1, 2), func(l [][]byte) [][]byte { l[1], l[2] = l[2], l[1]; return l })
			return h.file(1, 2)
		}, 2, "reordered: record"},
		"a record doubled": {func(h *house) string {
			h.change(h.file(1, 1), func(l [][]byte) [][]byte { return slices.Insert(l, 2, l[1]) })
			return h.file(1, 1)
		}, 3, "duplicated: record 2 stands here again"},
		"an earlier record repeated": {func(h *house) string {
			h.change(h.file(1, 1), func(l [][]byte) [][]byte { return slices.Insert(l, 3, l[1]) })
			return h.file(1, 1)
		}, 4, "reordered: record 2 stands behind record 3"},
		"a record of another session": {func(h *house) string {
			other := h.read(h.file(0, 1))[1]
			h.change(h.file(1, 1), func(l [][]byte) [][]byte { l[1] = other; return l })
			return h.file(1, 1)
		}, 2, "spliced: the record is of session"},
		"a segment cut": {func(h *house) string {
			h.change(h.file(1, 2), func(l [][]byte) [][]byte { return l[:2] })
			return h.file(1, 2)
		}, -1, "truncated: ends at record"},
		"a last segment cut": {func(h *house) string {
			h.change(h.file(2, 3), func(l [][]byte) [][]byte { return l[:len(l)-1] })
			return h.file(2, 3)
		}, -1, "truncated: ends at record"},
		"a segment cut within a record": {func(h *house) string {
			info, _ := os.Stat(h.file(2, 3))
			if err := os.Truncate(h.file(2, 3), info.Size()-5); err != nil {
				h.t.Fatal(err)
			}
			return h.file(2, 3)
		}, -1, "truncated: ends at record"},
		"a file emptied": {func(h *house) string { h.write(h.file(0, 1), nil); return h.file(0, 1) }, -1, "truncated: ends at record 0"},
		"a line added": {func(h *house) string {
			h.change(h.file(1, 3), func(l [][]byte) [][]byte { return append(ended(l), h.following(l[len(l)-1])) })
			return h.file(1, 3)
		}, -1, "added: the ledger says"},
		"garbage added": {func(h *house) string {
			h.change(h.file(1, 3), func(l [][]byte) [][]byte { return append(ended(l), []byte("garbage")) })
			return h.file(1, 3)
		}, -1, "edited: audit line: not an audit record"},
		"a line without end": {func(h *house) string {
			h.change(h.file(1, 3), func(l [][]byte) [][]byte { return append(ended(l), bytes.Repeat([]byte("x"), 1<<20)) })
			return h.file(1, 3)
		}, -1, "edited: longer than a line can be"},
		"a file removed":         {func(h *house) string { n := h.file(1, 2); h.remove(n); return n }, 0, "removed: the ledger says that it exists"},
		"a last segment removed": {func(h *house) string { n := h.file(2, 3); h.remove(n); return n }, 0, "removed: the ledger says that it exists"},
		"a session removed": {func(h *house) string {
			n := h.file(1, 1)
			for _, f := range h.segments(h.ids[1]) {
				h.remove(f)
			}
			return n
		}, 0, "removed: the ledger says that it exists"},
		"two files swapped": {func(h *house) string {
			a, b := h.file(1, 1), h.file(1, 2)
			la, lb := h.read(a), h.read(b)
			h.write(a, lb)
			h.write(b, la)
			return a
		}, 1, "deleted: records 1 to"},
		"a file from elsewhere": {func(h *house) string {
			other := build(h.t)
			name := filepath.Join(h.dir, filepath.Base(other.file(0, 1)))
			h.write(name, other.read(other.file(0, 1)))
			return name
		}, 0, "not in the ledger"},
		"a link in a file's place": {func(h *house) string {
			n := h.file(0, 2)
			if err := os.Rename(n, n+".bak"); err != nil {
				h.t.Fatal(err)
			}
			if err := os.Symlink(filepath.Base(n)+".bak", n); err != nil {
				h.t.Fatal(err)
			}
			return n
		}, 0, "replaced by something"},
		"a link to nowhere in a file's place": {func(h *house) string {
			n := h.file(0, 2)
			h.remove(n)
			if err := os.Symlink("nowhere", n); err != nil {
				h.t.Fatal(err)
			}
			return n
		}, 0, "removed"},
		"the ledger removed": {func(h *house) string { h.remove(h.ledger()); return h.ledger() }, 0, "removed: there are sessions, but no ledger"},
		"the ledger edited": {func(h *house) string {
			h.change(h.ledger(), func(l [][]byte) [][]byte {
				l[1] = bytes.Replace(l[1], []byte(`"segment":1`), []byte(`"segment":2`), 1)
				return l
			})
			return h.ledger()
		}, 2, "edited: the line does not have its hash"},
		"a ledger entry deleted": {func(h *house) string {
			h.change(h.ledger(), func(l [][]byte) [][]byte { return slices.Delete(l, 3, 4) })
			return h.ledger()
		}, 4, "deleted: record 4 is missing"},
		"the ledger cut before a session": {func(h *house) string {
			h.change(h.ledger(), func(l [][]byte) [][]byte { return l[:len(l)-4] })
			return h.file(2, 1)
		}, 0, "not in the ledger"},
		"the ledger of another directory": {func(h *house) string {
			other := build(h.t)
			h.write(h.ledger(), other.read(other.ledger()))
			return other.file(0, 1)
		}, 0, "removed"},
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t)
			file := filepath.Base(c.tamper(h))
			r := verify(t, h.dir)
			got, bad := r.First()
			if !bad {
				t.Fatal("verify calls it intact")
			}
			if got.Name != file || !strings.HasPrefix(got.Problem, c.says) || c.line >= 0 && got.Line != c.line || c.line < 0 && got.Line == 0 && !strings.Contains(got.Problem, "record 0") {
				t.Errorf("%s:%d: %s\nwant %s:%d: %s…", got.Name, got.Line, got.Problem, file, c.line, c.says)
			}
		})
	}
}

func (h *house) ledger() string { return filepath.Join(h.dir, record.LedgerName) }

func (h *house) remove(name string) {
	if err := os.Remove(name); err != nil {
		h.t.Fatal(err)
	}
}

// following forges a record that continues the chain rightly.
func (h *house) following(line []byte) []byte {
	s, err := record.Parse(bytes.TrimSuffix(line, []byte("\n")))
	if err != nil {
		h.t.Fatal(err)
	}
	s.Seq, s.Prev = s.Seq+1, s.Hash
	out, _ := record.AppendJSON(nil, &s.Record, s.Meta)
	return append(out, '\n')
}

// TestAnyChangedByteIsFound flips bytes at random places of random files.
func TestAnyChangedByteIsFound(t *testing.T) {
	h := build(t)
	names, err := filepath.Glob(filepath.Join(h.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		whole, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(whole); at += 37 {
			bent := bytes.Clone(whole)
			bent[at] ^= 1
			if err := os.WriteFile(n, bent, 0o600); err != nil {
				t.Fatal(err)
			}
			if verify(t, h.dir).Intact() && !(filepath.Base(n) == record.LedgerName && at >= bytes.LastIndexByte(whole[:len(whole)-1], '\n')) {
				t.Fatalf("%s: byte %d changed from %q unnoticed", n, at, whole[at])
			}
		}
		if err := os.WriteFile(n, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wantIntact(t, h.dir)
}

func TestAKilledWriterIsNoTampering(t *testing.T) {
	for name, change := range map[string]func(h *house, last string){
		"nothing behind the last record": func(*house, string) {},
		"torn in a record": func(h *house, last string) {
			l := h.read(last)
			h.writeRaw(last, append(bytes.Join(ended(l), nil), l[1][:40]...))
		},
		"an empty next segment": func(h *house, last string) {
			h.writeRaw(strings.Replace(last, ".1.jsonl", ".2.jsonl", 1), nil)
		},
		"an empty session without an entry": func(h *house, last string) {
			h.writeRaw(filepath.Join(h.dir, record.Segment{Start: "20300101T000000Z", Session: newSession(), N: 1}.Name()), nil)
		},
		"a torn ledger entry": func(h *house, last string) {
			b, err := os.ReadFile(h.ledger())
			if err != nil {
				h.t.Fatal(err)
			}
			h.writeRaw(h.ledger(), append(b, b[:50]...))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t)
			killed := newSession()
			l := open(t, audit.Config{Dir: h.dir, Session: killed})
			commit(t, l, 3)
			last := h.segments(killed)[0]
			kept, err := os.ReadFile(last)
			if err != nil {
				t.Fatal(err)
			}
			ledger, err := os.ReadFile(h.ledger())
			if err != nil {
				t.Fatal(err)
			}
			mustClose(t, l) // then put back what a killed process would have left
			h.writeRaw(last, kept)
			h.writeRaw(h.ledger(), ledger)
			change(h, last)
			r := wantIntact(t, h.dir)
			if !slices.ContainsFunc(r.Files, func(f FileReport) bool { return f.State == Unclosed && strings.Contains(f.Problem, "killed") }) {
				t.Errorf("nothing is said of it: %+v", r.Files)
			}
			again := open(t, audit.Config{Dir: h.dir}) // the next session goes on in the same directory
			mustClose(t, again)
			wantIntact(t, h.dir)
		})
	}
}

func (h *house) writeRaw(name string, b []byte) {
	if err := os.WriteFile(name, b, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func TestVerifyWatchesSessionsThatGoOn(t *testing.T) {
	dir := auditDir(t)
	stop, done := make(chan struct{}), make(chan error, 3)
	for range 3 {
		go func() {
			for {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				l, err := audit.Open(audit.Config{Dir: dir, Session: newSession(), Rotate: 2048})
				if err != nil {
					done <- err
					return
				}
				for range 30 {
					if err := l.Commit(t.Context(), allowed()); err != nil {
						done <- err
						return
					}
				}
				if err := l.Close(); err != nil {
					done <- err
					return
				}
			}
		}()
	}
	for verified := 0; verified < 20; {
		r, err := Verify(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if f, bad := r.First(); err != nil || bad {
			t.Errorf("%v %+v", err, f)
			break
		}
		verified++
	}
	close(stop)
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestADamagedLedgerIsNotContinued(t *testing.T) {
	h := build(t)
	h.change(h.ledger(), func(l [][]byte) [][]byte {
		l[len(l)-1] = bytes.Replace(l[len(l)-1], []byte(`"segment":3`), []byte(`"segment":4`), 1)
		return l
	})
	if _, err := audit.Open(audit.Config{Dir: h.dir, Session: newSession()}); err == nil || !strings.Contains(err.Error(), "postern audit verify") {
		t.Error(err)
	}
}

func TestReadMergesSessionsByTimeAndFollowsThem(t *testing.T) {
	dir := auditDir(t)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := func() time.Time { at = at.Add(time.Second); return at }
	first := newSession()
	a := open(t, audit.Config{Dir: dir, Session: first, Now: now, Rotate: 1500})
	b := open(t, audit.Config{Dir: dir, Now: now})
	r, err := NewReader(dir, Query{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got []string
	read := func() {
		if err := r.Next(func(e Entry) error {
			got = append(got, fmt.Sprint(e.Time.Unix(), e.Host, e.Err))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range 6 {
		commit(t, a, 1)
		commit(t, b, 1)
		read()
	}
	mustClose(t, a)
	read()
	mustClose(t, b)
	read()
	read()
	if !slices.IsSorted(got) || len(got) != 12+4 {
		t.Errorf("%d: %s", len(got), strings.Join(got, "\n"))
	}
	var whole []string
	err = Read(dir, Query{}, func(e Entry) error {
		whole = append(whole, fmt.Sprint(e.Time.Unix(), e.Host, e.Err))
		return nil
	})
	if err != nil || !slices.Equal(whole, got) {
		t.Errorf("read at once: %v %d records", err, len(whole))
	}
	n := 0
	err = Read(dir, Query{Session: first.String(), Since: at.Add(-4 * time.Second)}, func(e Entry) error {
		if e.Session != first || e.Time.Before(at.Add(-4*time.Second)) {
			t.Errorf("%v %v", e.Session, e.Time)
		}
		n++
		return nil
	})
	if err != nil || n == 0 || n > 4 {
		t.Errorf("%v %d", err, n)
	}
}

func TestReadShowsALineThatIsNoRecord(t *testing.T) {
	h := build(t)
	h.change(h.file(0, 1), func(l [][]byte) [][]byte { l[1] = []byte("\x1b[2Jgarbage\n"); return l })
	bad := 0
	if err := Read(h.dir, Query{}, func(e Entry) error {
		if e.Err != nil {
			bad++
			if e.Number != 2 || e.File == "" {
				t.Errorf("%s:%d", e.File, e.Number)
			}
		}
		return nil
	}); err != nil || bad != 1 {
		t.Errorf("%v, %d bad lines", err, bad)
	}
}

func BenchmarkVerify(b *testing.B) {
	dir := auditDir(b)
	l := open(b, audit.Config{Dir: dir})
	for range 10000 {
		if err := l.Append(allowed()); err != nil {
			b.Fatal(err)
		}
	}
	mustClose(b, l)
	b.ReportAllocs()
	for b.Loop() {
		if r := verify(b, dir); r.Records != 10002 || !r.Intact() {
			b.Fatal(r)
		}
	}
}

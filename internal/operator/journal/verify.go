package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"postern/internal/core/gate"
	"postern/internal/core/record"
)

// State is what Verify found out about a file. The zero State is damage.
type State uint8

const (
	Damaged  State = iota // not what the log wrote
	Intact                // whole and closed
	Running               // whole so far; a process is writing it
	Unclosed              // whole so far, but without a close: its process was killed
	Pruned                // removed to keep the directory within its size, as the ledger says
)

func (s State) String() string {
	switch s {
	case Intact:
		return "ok"
	case Running:
		return "running"
	case Unclosed:
		return "open"
	case Pruned:
		return "pruned"
	}
	return "DAMAGED"
}

// FileReport is what Verify found in one file.
type FileReport struct {
	Name    string
	State   State
	Session gate.SessionID // zero for the ledger
	Records uint64         // entries, for the ledger
	Line    int            // where the first fault is, from 1; 0 when the file as a whole is meant
	Problem string         // what is wrong or unusual there; holds nothing that a sandbox sent
}

// Report is the result of Verify.
type Report struct {
	Files    []FileReport // the ledger first, then in the order in which sessions began
	Sessions int
	Records  uint64
	Entries  uint64      // of the ledger
	Head     record.Hash // of the ledger's last entry: note it elsewhere to prove later that nothing before it was rewritten
}

// Intact reports whether nothing is damaged.
func (r Report) Intact() bool { _, bad := r.First(); return !bad }

// First is the first damaged file.
func (r Report) First() (FileReport, bool) {
	i := slices.IndexFunc(r.Files, func(f FileReport) bool { return f.State == Damaged })
	if i < 0 {
		return FileReport{}, false
	}
	return r.Files[i], true
}

// Verify reads all files of a directory and checks every chain against the ledger. It holds one line in memory, and a few hundred
// bytes for each session. Sessions may go on writing meanwhile. The error says that the directory could not be read; damage is in the Report.
func Verify(dir string) (Report, error) {
	d, err := openDirectory(dir)
	if err != nil {
		return Report{}, fmt.Errorf("audit verify: %w", err)
	}
	defer d.close()
	v := &verifier{dir: d, ledger: map[gate.SessionID]*ledgerSession{}}
	if err := v.snapshot(); err != nil {
		return Report{}, fmt.Errorf("audit verify: %w", err)
	}
	if err := v.readLedger(); err != nil {
		return Report{}, fmt.Errorf("audit verify: %w", err)
	}
	if err := v.readSessions(); err != nil {
		return Report{}, fmt.Errorf("audit verify: %w", err)
	}
	return v.report, nil
}

type verifier struct {
	dir    *directory
	segs   []record.Segment // what was there at one moment, by session and number
	size   int64            // of the ledger at that moment
	ledger map[gate.SessionID]*ledgerSession
	order  []gate.SessionID
	report Report
}

// ledgerSession is what the ledger says of a session.
type ledgerSession struct {
	start  string
	first  record.Hash // what the first record follows
	ends   map[int]head
	pruned map[int]bool
	last   int // highest segment that must exist
	closed bool
}

// snapshot lists the files and measures the ledger at one moment, between the steps of those who write.
func (v *verifier) snapshot() error {
	f, err := v.dir.open(record.LedgerName)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errReplaced) {
		v.size = -1
		v.segs, err = v.dir.segments()
		return err
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := share(f, 5*time.Second); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	v.size = info.Size()
	v.segs, err = v.dir.segments()
	return err
}

func (v *verifier) add(f FileReport) {
	v.report.Files = append(v.report.Files, f)
	v.report.Records += f.Records
}

// readLedger follows the ledger's own chain. What a damaged ledger says is still used, so that one fault is not reported as many.
func (v *verifier) readLedger() error {
	fr := FileReport{Name: record.LedgerName, State: Intact}
	if v.size < 0 {
		if len(v.segs) > 0 {
			fr.State, fr.Problem = Damaged, "removed: there are sessions, but no ledger"
			v.add(fr)
		}
		return nil
	}
	f, err := v.dir.open(record.LedgerName)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := newLineReader(io.NewSectionReader(f, 0, v.size))
	var at head
	for {
		line, whole, err := lines.next()
		if err == io.EOF {
			break
		}
		if err != nil && err != errLongLine {
			return err
		}
		if err == nil && !whole {
			if fr.State == Intact {
				fr.Problem = "ends in the middle of an entry: its writer was killed"
			}
			break
		}
		var e record.StoredLedger
		fault := "longer than a line can be"
		if err == nil {
			e, fault = checkLedger(line, at)
		}
		if fault == "" {
			fault = v.note(e)
		}
		if fault != "" && fr.State != Damaged {
			fr.State, fr.Line, fr.Problem = Damaged, lines.number, fault
		}
		at = head{e.Seq, e.Hash}
		v.report.Entries++
	}
	v.report.Head, fr.Records = at.hash, v.report.Entries
	v.report.Files = append(v.report.Files, fr)
	return nil
}

func checkLedger(line []byte, at head) (record.StoredLedger, string) {
	e, err := record.ParseLedger(line)
	if err != nil {
		return e, "edited: " + err.Error()
	}
	return e, checkChain(link{e.Seq, e.Prev, e.Hash, record.Sum(line)}, at)
}

// note keeps what an entry says.
func (v *verifier) note(e record.StoredLedger) string {
	s := v.ledger[e.Session]
	if e.Kind == record.LedgerOpened {
		if s != nil {
			return "session " + e.Session.String() + " is opened twice"
		}
		v.ledger[e.Session] = &ledgerSession{start: e.Start, first: e.Hash, ends: map[int]head{}, pruned: map[int]bool{}, last: 1}
		v.order = append(v.order, e.Session)
		return ""
	}
	if s == nil {
		return "session " + e.Session.String() + " was never opened"
	}
	if e.Kind == record.LedgerPruned {
		s.pruned[e.Segment] = true
		return ""
	}
	s.ends[e.Segment] = head{e.Last, e.Head}
	s.last = max(s.last, e.Segment)
	if e.Kind == record.LedgerNext {
		s.last = max(s.last, e.Segment+1)
	}
	s.closed = s.closed || e.Kind == record.LedgerClosed
	return ""
}

func (v *verifier) readSessions() error {
	bySession := map[gate.SessionID]map[int]record.Segment{}
	var unknown []record.Segment
	for _, s := range v.segs {
		if l := v.ledger[s.Session]; l == nil || l.start != s.Start {
			unknown = append(unknown, s)
			continue
		}
		if bySession[s.Session] == nil {
			bySession[s.Session] = map[int]record.Segment{}
		}
		bySession[s.Session][s.N] = s
	}
	for _, id := range v.order {
		v.report.Sessions++
		if err := v.session(id, bySession[id]); err != nil {
			return err
		}
	}
	for _, s := range unknown {
		if err := v.stray(s); err != nil {
			return err
		}
	}
	return nil
}

// stray judges a file that the ledger does not expect: empty when its process was killed before it could enter it, else not ours.
func (v *verifier) stray(s record.Segment) error {
	info, err := v.dir.root.Lstat(s.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	fr := FileReport{Name: s.Name(), State: Damaged, Session: s.Session, Problem: "not in the ledger: it was brought from elsewhere, or the ledger was cut"}
	if info.Mode().IsRegular() && info.Size() == 0 {
		fr.State, fr.Problem = Unclosed, "empty: its process was killed before it wrote"
	}
	v.add(fr)
	return nil
}

// session follows one session through its record.Segments.
func (v *verifier) session(id gate.SessionID, files map[int]record.Segment) error {
	l := v.ledger[id]
	at := head{0, l.first}
	for n := 1; n <= l.last; n++ {
		end, ended := l.ends[n]
		s, there := files[n]
		delete(files, n)
		c := &chain{at: at, session: id, end: end, ended: ended, lastOpen: !l.closed && n == l.last}
		fr := FileReport{Name: record.Segment{Start: l.start, Session: id, N: n}.Name(), Session: id}
		var err error
		switch {
		case there:
			err = v.segment(s, c, &fr)
		case l.pruned[n]:
			fr.State = Pruned
		default:
			fr.Problem = "removed: the ledger says that it exists"
		}
		if err != nil {
			return err
		}
		v.add(fr)
		at = c.at
		if ended {
			at = end
		}
	}
	for _, n := range slices.Sorted(keys(files)) {
		if err := v.stray(files[n]); err != nil {
			return err
		}
	}
	return nil
}

func keys(m map[int]record.Segment) func(func(int) bool) {
	return func(yield func(int) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// prunedSince reports whether the ledger has meanwhile said that the segment was pruned.
func (v *verifier) prunedSince(s record.Segment) (bool, error) {
	f, err := v.dir.open(record.LedgerName)
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := newLineReader(io.NewSectionReader(f, max(0, v.size), 1<<40))
	for {
		line, whole, err := lines.next()
		if err == io.EOF || err == nil && !whole {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if e, err := record.ParseLedger(line); err == nil && e.Kind == record.LedgerPruned && e.Session == s.Session && e.Segment == s.N {
			return true, nil
		}
	}
}

// segment checks one file.
func (v *verifier) segment(s record.Segment, c *chain, fr *FileReport) error {
	f, err := v.dir.open(s.Name())
	if errors.Is(err, fs.ErrNotExist) {
		fr.Problem = "removed while it was being verified"
		ok, err := v.prunedSince(s)
		if ok {
			fr.State = Pruned
		}
		return err
	}
	if errors.Is(err, errReplaced) || errors.Is(err, unix.ELOOP) {
		fr.Problem = "replaced by something that is no regular file"
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	running := held(f)
	fr.State, err = c.read(f, fr)
	if fr.State == Unclosed && running {
		fr.State, fr.Problem = Running, strings.Replace(fr.Problem, "killed", "still running", 1)
	}
	return err
}

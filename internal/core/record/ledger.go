package record

import (
	"strconv"
	"strings"

	"postern/internal/core/gate"
)

// LedgerKind says what an entry of the ledger tells of. The zero kind is refused.
type LedgerKind string

const (
	LedgerOpened LedgerKind = "session.opened" // the first segment exists; its first record follows this entry's hash
	LedgerNext   LedgerKind = "segment.closed" // a segment is complete and the next one exists
	LedgerClosed LedgerKind = "session.closed" // the last segment is complete
	LedgerPruned LedgerKind = "segment.pruned" // a segment was removed to keep the directory within its size
)

// LedgerEntry is one line of a directory's ledger: what files ought to be there and how they end. It holds nothing that a sandbox sent.
type LedgerEntry struct {
	Kind    LedgerKind
	Session gate.SessionID
	Start   string // how the names of the session's files begin
	Segment int    // which segment, from 1
	Last    uint64 // sequence number of the segment's last record, 0 when it holds none
	Head    Hash   // that record's hash
}

// StoredLedger is a ledger entry as the file holds it.
type StoredLedger struct {
	LedgerEntry
	Meta
	Hash Hash
}

// AppendLedger appends one whole ledger line without its newline, and returns its hash. All fields are always present.
func AppendLedger(dst []byte, e *LedgerEntry, m Meta) ([]byte, Hash) {
	start := len(dst)
	b := appendStart(dst, m)
	b = text(b, `,"kind":`, string(e.Kind), MaxWord)
	b = text(b, `,"session":`, e.Session.String(), MaxWord)
	b = text(b, `,"start":`, e.Start, MaxWord)
	b = strconv.AppendInt(append(b, `,"segment":`...), int64(e.Segment), 10)
	b = strconv.AppendUint(append(b, `,"last":`...), e.Last, 10)
	b = append(b, `,"head":"`...)
	b = append(b, e.Head.String()...)
	return seal(append(b, '"'), start, m)
}

// ParseLedger reads exactly what AppendLedger writes.
func ParseLedger(line []byte) (StoredLedger, error) {
	d := decoder{line: line}
	var s StoredLedger
	d.begin(&s.Meta)
	s.Kind = LedgerKind(d.text(`,"kind":`))
	s.Session = id(&d, `,"session":`, gate.ParseSessionID)
	s.Start = d.text(`,"start":`)
	s.Segment = int(d.number(`,"segment":`))
	d.want(`,"last":`, "no last sequence number")
	var err error
	if s.Last, err = strconv.ParseUint(d.digits(), 10, 64); err != nil {
		d.fail("a malformed sequence number")
	}
	d.want(`,"head":`, "no head")
	s.Head = d.hash()
	s.Hash = d.end(&s.Meta)
	switch s.Kind {
	case LedgerOpened, LedgerNext, LedgerClosed, LedgerPruned:
	default:
		d.fail("an unknown kind of entry")
	}
	if s.Segment < 1 || s.Session.IsZero() || s.Start == "" || strings.ContainsAny(s.Start, "/.-") {
		d.fail("an incomplete entry")
	}
	if d.err != nil {
		return StoredLedger{}, d.err
	}
	if again, _ := AppendLedger(make([]byte, 0, len(line)), &s.LedgerEntry, s.Meta); !sameButHash(again, line) {
		return StoredLedger{}, &SyntaxError{0, "not in the one form that the ledger is written in"}
	}
	return s, nil
}

package record

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"postern/internal/core/gate"
)

// LedgerName is the file of a directory that holds its ledger.
const LedgerName = "ledger.jsonl"

// StartLayout is how the name of a session's files spells when it began, in UTC.
const StartLayout = "20060102T150405Z"

const suffix = ".jsonl"

// Segment is one file of a session: "<start>-<session>.<n>.jsonl".
type Segment struct {
	Start   string
	Session gate.SessionID
	N       int // from 1
}

// Name is the file's name.
func (s Segment) Name() string {
	return s.Start + "-" + s.Session.String() + "." + strconv.Itoa(s.N) + suffix
}

// ParseSegment reads exactly what Name spells; false for any other file.
func ParseSegment(name string) (Segment, bool) {
	rest, _ := strings.CutSuffix(name, suffix)
	start, rest, _ := strings.Cut(rest, "-")
	id, num, _ := strings.Cut(rest, ".")
	session, err := gate.ParseSessionID(id)
	n, err2 := strconv.Atoi(num)
	_, err3 := time.Parse(StartLayout, start)
	s := Segment{start, session, n}
	if err != nil || err2 != nil || err3 != nil || n < 1 || s.Name() != name {
		return Segment{}, false
	}
	return s, true
}

// CompareSegments orders by start, session and number.
func CompareSegments(a, b Segment) int {
	return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Session.String(), b.Session.String()), cmp.Compare(a.N, b.N))
}

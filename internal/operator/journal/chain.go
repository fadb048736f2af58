package journal

import (
	"fmt"
	"io"

	"postern/internal/core/gate"
	"postern/internal/core/record"
)

// link is what ties a line to the line before it.
type link struct {
	seq             uint64
	prev, hash, sum record.Hash
}

// checkChain says what is wrong with a line that should follow at, "" when nothing is.
func checkChain(l link, at head) string {
	switch {
	case l.hash != l.sum:
		return "edited: the line does not have its hash"
	case l.seq == at.seq && l.hash == at.hash:
		return fmt.Sprintf("duplicated: record %d stands here again", l.seq)
	case l.seq <= at.seq:
		return fmt.Sprintf("reordered: record %d stands behind record %d", l.seq, at.seq)
	case l.seq > at.seq+1:
		return missing(at.seq+1, l.seq-1)
	case l.prev != at.hash:
		return fmt.Sprintf("spliced: record %d does not follow what stands before it; one of the two was replaced", l.seq)
	}
	return ""
}

func missing(from, to uint64) string {
	if from == to {
		return fmt.Sprintf("deleted: record %d is missing", from)
	}
	return fmt.Sprintf("deleted: records %d to %d are missing", from, to)
}

// chain follows one segment.
type chain struct {
	at       head // what the next line must follow
	session  gate.SessionID
	end      head // where the ledger says that the segment ends
	ended    bool // whether it says so
	lastOpen bool // the session's last segment, not closed
}

// read checks every line and how the file ends.
func (c *chain) read(f io.ReaderAt, fr *FileReport) (State, error) {
	lines := newLineReader(io.NewSectionReader(f, 0, 1<<62))
	last := record.Kind("")
	torn := false
	for {
		line, whole, err := lines.next()
		if err == io.EOF {
			break
		}
		if err != nil && err != errLongLine {
			return Damaged, err
		}
		if err == nil && !whole {
			torn = true
			break
		}
		s, fault := record.Stored{}, "edited: longer than a line can be"
		if err == nil {
			s, fault = c.check(line)
		}
		if fault != "" {
			fr.Line = lines.number
			fr.Problem, err = c.explain(f, s, fault)
			return Damaged, err
		}
		c.at, last = head{s.Seq, s.Hash}, s.Kind
		fr.Records++
	}
	state := Damaged
	state, fr.Problem = c.judgeEnd(torn, last)
	if state == Damaged {
		fr.Line = lines.number
	}
	return state, nil
}

func (c *chain) check(line []byte) (record.Stored, string) {
	s, err := record.Parse(line)
	if err != nil {
		return s, "edited: " + err.Error()
	}
	if s.Session != c.session {
		return s, "spliced: the record is of session " + s.Session.String()
	}
	fault := checkChain(link{s.Seq, s.Prev, s.Hash, record.Sum(line)}, c.at)
	if fault == "" && c.ended && s.Seq > c.end.seq {
		fault = fmt.Sprintf("added: the ledger says that the file ends at record %d", c.end.seq)
	}
	return s, fault
}

// explain tells a record that was moved from one that was deleted: it looks for the missing one in the whole file.
func (c *chain) explain(f io.ReaderAt, s record.Stored, fault string) (string, error) {
	if s.Seq <= c.at.seq+1 || s.Session != c.session {
		return fault, nil
	}
	lines := newLineReader(io.NewSectionReader(f, 0, 1<<62))
	for {
		line, whole, err := lines.next()
		if err == io.EOF || err == nil && !whole {
			return fault, nil
		}
		if err == errLongLine {
			continue
		}
		if err != nil {
			return fault, err
		}
		if o, err := record.Parse(line); err == nil && o.Seq == c.at.seq+1 && o.Session == c.session {
			return fmt.Sprintf("reordered: record %d stands where record %d belongs", s.Seq, o.Seq), nil
		}
	}
}

// judgeEnd compares how the file ends with what the ledger says.
func (c *chain) judgeEnd(torn bool, last record.Kind) (State, string) {
	switch {
	case c.ended && c.at.seq < c.end.seq:
		return Damaged, fmt.Sprintf("truncated: ends at record %d, the ledger says %d", c.at.seq, c.end.seq)
	case c.ended && c.at != c.end:
		return Damaged, "replaced: its last record is not the one in the ledger"
	case c.ended && torn:
		return Damaged, "added: bytes behind the last record"
	case c.ended:
		return Intact, ""
	case !c.lastOpen:
		return Damaged, "the ledger does not say how it ends"
	case torn:
		return Unclosed, "ends without a close, in the middle of a record: killed"
	case last == record.SessionEnd:
		return Unclosed, "ends with session.end, but the ledger does not say so: killed"
	}
	return Unclosed, "ends without a close: killed"
}

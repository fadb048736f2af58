package audit

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"postern/internal/core/record"
)

// prune removes the oldest finished segments until the directory's are within Keep. Each removal stands in the ledger before it happens.
// It is called with the ledger locked; a removal that fails is tried again by the next session.
func (d *directory) prune(led *ledger, cfg Config) {
	if cfg.Keep <= 0 {
		return
	}
	segs, err := d.segments()
	if err != nil {
		return
	}
	var total int64
	sizes := make([]int64, len(segs))
	for i, s := range segs {
		if info, err := d.root.Lstat(s.Name()); err == nil {
			sizes[i] = info.Size()
			total += sizes[i]
		}
	}
	for i, s := range segs {
		if total <= cfg.Keep {
			return
		}
		if s.Session == cfg.Session || d.running(s, segs) {
			continue
		}
		e := record.LedgerEntry{Kind: record.LedgerPruned, Session: s.Session, Start: s.Start, Segment: s.N}
		if _, err := led.append(e, cfg.Now()); err != nil {
			return
		}
		if d.root.Remove(s.Name()) == nil {
			total -= sizes[i]
		}
	}
}

// running reports whether a process still writes the session: it holds the lock of the session's last segment.
func (d *directory) running(s record.Segment, all []record.Segment) bool {
	last := s
	for _, o := range all {
		if o.Session == s.Session && o.N > last.N {
			last = o
		}
	}
	f, err := d.open(last.Name(), os.O_RDONLY)
	if err != nil {
		return true
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// segments lists the segment files by start, session and number.
func (d *directory) segments() ([]record.Segment, error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var out []record.Segment
	for _, n := range names {
		if s, ok := record.ParseSegment(n); ok {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, record.CompareSegments)
	return out, nil
}

package audit

import (
	"cmp"
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
		if info, err := d.root.Lstat(s.name); err == nil {
			sizes[i] = info.Size()
			total += sizes[i]
		}
	}
	for i, s := range segs {
		if total <= cfg.Keep {
			return
		}
		if s.session == cfg.Session || d.running(s, segs) {
			continue
		}
		end, ok := d.lastOf(s.name)
		if !ok {
			continue
		}
		_, err := led.append(record.LedgerEntry{
			Kind: record.LedgerPruned, Session: s.session, Start: s.start, Segment: s.n, Last: end.seq, Head: end.hash,
		}, cfg.Now())
		if err != nil {
			return
		}
		if d.root.Remove(s.name) == nil {
			total -= sizes[i]
		}
	}
}

// running reports whether a process still writes the session: it holds the lock of the session's last segment.
func (d *directory) running(s segment, all []segment) bool {
	last := s
	for _, o := range all {
		if o.session == s.session && o.n > last.n {
			last = o
		}
	}
	f, err := d.open(last.name, os.O_RDONLY)
	if err != nil {
		return true
	}
	defer f.Close()
	return held(f)
}

// held reports whether somebody holds the file's lock.
func held(f *os.File) bool {
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// lastOf reads how a segment ends.
func (d *directory) lastOf(name string) (head, bool) {
	f, err := d.open(name, os.O_RDONLY)
	if err != nil {
		return head{}, false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return head{}, false
	}
	tail := make([]byte, min(info.Size(), 2*record.MaxLine))
	if _, err := f.ReadAt(tail, info.Size()-int64(len(tail))); err != nil {
		return head{}, info.Size() == 0
	}
	line, _ := lastLine(tail)
	if line == nil {
		return head{}, len(tail) < record.MaxLine
	}
	s, err := record.Parse(line)
	return head{s.Seq, s.Hash}, err == nil
}

// segments lists the segment files by start, session and number.
func (d *directory) segments() ([]segment, error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []segment
	for {
		names, err := f.Readdirnames(1024)
		for _, n := range names {
			if s, ok := parseSegment(n); ok {
				out = append(out, s)
			}
		}
		if err != nil || len(names) == 0 {
			break
		}
	}
	slices.SortFunc(out, bySession)
	return out, nil
}

func bySession(a, b segment) int {
	return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.session.String(), b.session.String()), cmp.Compare(a.n, b.n))
}

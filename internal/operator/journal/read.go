package journal

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/record"
)

// Query says which records are wanted.
type Query struct {
	Session string    // how the session's id begins; "": every session
	Since   time.Time // zero: from the beginning
}

// Entry is one line that was read. It is valid until the next.
type Entry struct {
	record.Stored
	Line   []byte // as it stands in the file, without its newline; escaped for terminals
	File   string
	Number int   // of the line in what this Reader read of the file, from 1
	Err    error // the line is no record; Stored is empty then
}

// Reader reads a directory's records, merged by time; within a session their order is kept whatever the clock did.
// It checks no chain: that is Verify's.
type Reader struct {
	dir   *directory
	query Query
	files map[string]*progress
}

// progress is how far a file was read.
type progress struct {
	offset int64
	lines  int
	done   bool // nothing will come any more
}

// NewReader opens a directory for reading.
func NewReader(dir string, q Query) (*Reader, error) {
	d, err := openDirectory(dir)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	return &Reader{d, q, map[string]*progress{}}, nil
}

// Close ends the reading.
func (r *Reader) Close() error { return r.dir.close() }

// Read reads what is in a directory now.
func Read(dir string, q Query, each func(Entry) error) error {
	r, err := NewReader(dir, q)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Next(each)
}

// Next hands over every record that was completed since the last call, in new files too. An error of each ends it.
// Sessions are opened as their time comes, so that only those that overlap are open at once.
func (r *Reader) Next(each func(Entry) error) error {
	segs, err := r.dir.segments()
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	streams := r.streams(segs)
	var open merge
	defer func() {
		for _, s := range open {
			s.close()
		}
	}()
	for len(streams) > 0 || len(open) > 0 {
		for len(streams) > 0 && (len(open) == 0 || !streams[0].begins.After(open[0].entry.Time)) {
			s := streams[0]
			streams = streams[1:]
			if ok, err := s.advance(); err != nil {
				return err
			} else if ok {
				heap.Push(&open, s)
			}
		}
		if len(open) == 0 {
			continue
		}
		s := open[0]
		if s.entry.Err != nil || !s.entry.Time.Before(r.query.Since) {
			if err := each(s.entry); err != nil {
				return err
			}
		}
		ok, err := s.advance()
		if err != nil {
			return err
		}
		if ok {
			heap.Fix(&open, 0)
		} else {
			heap.Pop(&open)
		}
	}
	return nil
}

// streams makes one stream a session of the files that may hold something new.
func (r *Reader) streams(segs []record.Segment) []*stream {
	var out []*stream
	for _, s := range segs {
		if !strings.HasPrefix(s.Session.String(), r.query.Session) {
			continue
		}
		name := s.Name()
		p := r.files[name]
		if p == nil {
			p = &progress{}
			r.files[name] = p
		}
		info, err := r.dir.root.Lstat(name)
		if p.done || err != nil || !info.Mode().IsRegular() || info.Size() <= p.offset || info.ModTime().Before(r.query.Since) {
			continue
		}
		if n := len(out); n == 0 || out[n-1].session != s.Session {
			begins, _ := time.Parse(record.StartLayout, s.Start)
			out = append(out, &stream{reader: r, session: s.Session, begins: begins})
		}
		last := out[len(out)-1]
		last.files = append(last.files, name)
	}
	return out
}

// stream is one session's records, segment after segment.
type stream struct {
	reader  *Reader
	session gate.SessionID
	begins  time.Time
	files   []string
	file    *os.File
	lines   *lineReader
	at      *progress
	from    int64
	entry   Entry
}

// advance reads the next record; false at the end of what is there.
func (s *stream) advance() (bool, error) {
	for {
		if s.file == nil {
			if len(s.files) == 0 {
				return false, nil
			}
			if err := s.openNext(); err != nil {
				return false, err
			}
			continue
		}
		line, whole, err := s.lines.next()
		if err == io.EOF || err == nil && !whole {
			s.close()
			continue
		}
		if err != nil && err != errLongLine {
			return false, fmt.Errorf("audit log: %w", err)
		}
		s.at.offset = s.from + s.lines.offset
		s.at.lines++
		before := s.entry.Time
		s.entry = Entry{Line: line, File: s.file.Name(), Number: s.at.lines, Err: err}
		if err == nil {
			s.entry.Stored, s.entry.Err = record.Parse(line)
		}
		if s.entry.Err != nil {
			s.entry.Stored = record.Stored{}
			s.entry.Time = before // it keeps its place
		}
		if s.entry.Kind == record.SessionEnd {
			s.at.done = true
		}
		return true, nil
	}
}

func (s *stream) openNext() error {
	name := s.files[0]
	s.files = s.files[1:]
	f, err := s.reader.dir.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	s.file, s.at = f, s.reader.files[name]
	s.from = s.at.offset
	s.lines = newLineReader(io.NewSectionReader(f, s.from, 1<<62))
	return nil
}

func (s *stream) close() {
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
}

// merge is a heap of streams by the time of their next record.
type merge []*stream

func (m merge) Len() int           { return len(m) }
func (m merge) Less(i, j int) bool { return m[i].entry.Time.Before(m[j].entry.Time) }
func (m merge) Swap(i, j int)      { m[i], m[j] = m[j], m[i] }
func (m *merge) Push(x any)        { *m = append(*m, x.(*stream)) }
func (m *merge) Pop() any {
	old := *m
	s := old[len(old)-1]
	*m = old[:len(old)-1]
	return s
}

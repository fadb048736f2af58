// Package journal reads audit logs: it proves their chains and merges sessions by time. It writes nothing, and so it stands outside the
// trusted core; package audit describes the files, core/record their lines.
package journal

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"postern/internal/core/record"
)

// directory is a log directory. Every name is resolved below it, whatever becomes of its path.
type directory struct{ root *os.Root }

func openDirectory(dir string) (*directory, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &directory{root}, nil
}

func (d *directory) close() error { return d.root.Close() }

// errReplaced says that something else stands in a file's place.
var errReplaced = errors.New("not a regular file")

// open opens a regular file: no link to one (os.Root follows those that stay inside it), and nothing that could block.
func (d *directory) open(name string) (*os.File, error) {
	f, err := d.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	opened, err := f.Stat()
	if err == nil {
		var named fs.FileInfo
		if named, err = d.root.Lstat(name); err == nil && !(opened.Mode().IsRegular() && os.SameFile(opened, named)) {
			err = &fs.PathError{Op: "open", Path: name, Err: errReplaced}
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
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

// share takes a shared lock, or gives up after wait.
func share(f *os.File, wait time.Duration) error {
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for end := time.Now().Add(wait); ; <-pause.C {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		if time.Now().After(end) {
			return &fs.PathError{Op: "lock", Path: f.Name(), Err: errors.New("held by another process")}
		}
	}
}

// held reports whether somebody holds the file's lock: the process that writes it.
func held(f *os.File) bool { return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil }

// head is the end of a chain.
type head struct {
	seq  uint64
	hash record.Hash
}

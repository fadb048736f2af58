package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"postern/internal/core/record"
)

// file is what the log needs of a file. Offsets are always given, so that a failed write is simply written over.
type file interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	Sync() error // data and size, fdatasync(2)
	Close() error
}

// osFile syncs data without the times.
type osFile struct{ *os.File }

func (f osFile) Sync() error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

// directory is where the files are. Every name is resolved below it, whatever becomes of its path.
type directory struct {
	root *os.Root
	wrap func(file) file
}

func openDirectory(dir string, wrap func(file) file) (*directory, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil {
		err = checkOwner(info, dir)
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return &directory{root, wrap}, nil
}

func (d *directory) close() { _ = d.root.Close() }

// create makes a new file whose name is durable, and locks it for as long as it is open: the lock tells a running session from a killed one.
func (d *directory) create(name string) (file, error) {
	f, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err = lock(f, time.Second); err == nil {
		err = d.sync()
	}
	if err == nil {
		return d.wrap(osFile{f}), nil
	}
	_ = f.Close()
	_ = d.root.Remove(name)
	return nil, err
}

// reopen opens a segment to go on writing it.
func (d *directory) reopen(name string) (file, error) {
	f, err := d.open(name, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if err := lock(f, time.Second); err != nil {
		_ = f.Close()
		return nil, err
	}
	return d.wrap(osFile{f}), nil
}

// errReplaced says that something else stands in a file's place.
var errReplaced = errors.New("not a regular file")

// open opens a file that is there: a regular one, not a link to one (os.Root follows links that stay inside it).
func (d *directory) open(name string, flag int) (*os.File, error) {
	f, err := d.root.OpenFile(name, flag|unix.O_NONBLOCK, 0o600)
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

// sync makes new names durable.
func (d *directory) sync() error {
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}

// lock takes the file's flock(2) lock, or gives up after wait. On a segment only a reader that looks whether the session runs can hold
// it, for a moment.
func lock(f *os.File, wait time.Duration) error {
	end := time.Now().Add(wait)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		if time.Now().After(end) {
			return &fs.PathError{Op: "lock", Path: f.Name(), Err: errors.New("held by another process")}
		}
		time.Sleep(pause)
	}
}

// ledger is the open and locked ledger.
type ledger struct {
	file file
	size int64
	end  head
}

// withLedger runs fn while this process alone may write the ledger, new files and removals.
func (d *directory) withLedger(wait time.Duration, fn func(*ledger) error) error {
	f, err := d.open(record.LedgerName, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	led := &ledger{file: d.wrap(osFile{f})}
	defer led.file.Close()
	if err := lock(f, wait); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := led.findEnd(info.Size()); err != nil {
		return err
	}
	if info.Size() == 0 {
		if err := d.sync(); err != nil {
			return err
		}
	}
	return fn(led)
}

// findEnd reads the last whole line. What stands behind it is a line that a killed process did not finish; it is overwritten.
func (led *ledger) findEnd(size int64) error {
	const most = 4 << 10 // a ledger line has less than 1 KiB
	tail := make([]byte, min(size, most))
	if _, err := led.file.ReadAt(tail, size-int64(len(tail))); err != nil && err != io.EOF {
		return err
	}
	line, torn := lastLine(tail)
	if line == nil {
		if size > most {
			return errors.New("the ledger's end is no ledger: see `postern audit verify`")
		}
		return led.file.Truncate(0)
	}
	s, err := record.ParseLedger(line)
	if err != nil || s.Hash != record.Sum(line) {
		return errors.New("the ledger's last entry is damaged: see `postern audit verify`")
	}
	led.size = size - int64(torn)
	led.end = head{s.Seq, s.Hash}
	if torn > 0 {
		return led.file.Truncate(led.size)
	}
	return nil
}

// lastLine is the last whole line without its newline, nil when there is none, and how many bytes stand behind it.
func lastLine(tail []byte) (line []byte, torn int) {
	end := bytes.LastIndexByte(tail, '\n')
	if end < 0 {
		return nil, len(tail)
	}
	return tail[bytes.LastIndexByte(tail[:end], '\n')+1 : end], len(tail) - end - 1
}

// append makes one entry durable and returns its hash.
func (led *ledger) append(e record.LedgerEntry, now time.Time) (record.Hash, error) {
	line, sum := record.AppendLedger(nil, &e, record.Meta{Seq: led.end.seq + 1, Time: now, Prev: led.end.hash})
	line = append(line, '\n')
	_, err := led.file.WriteAt(line, led.size)
	if err == nil {
		err = led.file.Sync()
	}
	if err != nil {
		_ = led.file.Truncate(led.size)
		return record.Hash{}, fmt.Errorf("ledger: %w", err)
	}
	led.size += int64(len(line))
	led.end = head{led.end.seq + 1, sum}
	return sum, nil
}

package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxSource = 64 << 10               // bytes of a credential's file, or of a command's output
	statGap   = 500 * time.Millisecond // between two looks at a file's state
)

// File is a credential in a file of its own, or one string of a JSON file.
//
// The file must be regular, belong to us or to root, be closed to group and others, and hold at most 64 KiB. Symbolic links on
// the way are followed; what is judged is the file that was opened. It is read again when its inode, size or time changes.
type File struct {
	path string
	keys []string

	stamp  stamp     // of the file when it was last loaded
	looked time.Time // when it was last compared
}

// stamp tells two states of a file apart.
type stamp struct {
	dev, ino uint64
	size     int64
	modified time.Time
	changed  syscall.Timespec // the inode's change time, which no program can set
}

// NewFile describes a file. The path is absolute. keys lead from the top of a JSON file's object to the value, a string; without
// them the value is the whole file, less one newline at its end.
func NewFile(path string, keys ...string) (*File, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("file %q: the path must be absolute", path)
	}
	return &File{path: path, keys: keys}, nil
}

// Load reads the value.
func (f *File) Load(_ context.Context) ([]byte, error) {
	raw, st, err := readPrivate(f.path)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", f.path, err)
	}
	f.stamp = st
	if len(f.keys) == 0 {
		return raw, nil
	}
	defer clear(raw)
	value, err := pick(raw, f.keys)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", f.path, err)
	}
	return value, nil
}

// Changed looks at the file's state, twice a second at most.
func (f *File) Changed(loaded, now time.Time) bool {
	if d := now.Sub(f.looked); d >= 0 && d < statGap && !f.looked.Before(loaded) {
		return false
	}
	f.looked = now
	info, err := os.Stat(f.path)
	return err != nil || stampOf(info) != f.stamp
}

func stampOf(info os.FileInfo) stamp {
	s := stamp{size: info.Size(), modified: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.changed = st.Dev, st.Ino, st.Ctim
	}
	return s
}

// readPrivate reads a file that only its owner can read. Not blocking and not becoming a terminal are for what a path may turn out to be.
func readPrivate(path string) ([]byte, stamp, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, stamp{}, errors.Unwrap(err) // the reason alone: the caller names the path
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, stamp{}, err
	}
	if err := private(path, info); err != nil {
		return nil, stamp{}, err
	}
	raw := make([]byte, info.Size()+1) // one more than it holds, to see its end
	n, err := io.ReadFull(file, raw)
	if err != io.ErrUnexpectedEOF && err != io.EOF {
		clear(raw)
		if err == nil {
			err = errors.New("it grew while it was read")
		}
		return nil, stamp{}, err
	}
	after, err := file.Stat()
	if err != nil || stampOf(after) != stampOf(info) || int64(n) != info.Size() {
		clear(raw)
		return nil, stamp{}, errors.New("it was changed while it was read")
	}
	return raw[:n], stampOf(info), nil
}

// private judges an opened file.
func private(path string, info os.FileInfo) error {
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("its owner is not known")
	}
	if uid := uint32(os.Geteuid()); st.Uid != uid && st.Uid != 0 {
		return errors.New("it belongs to another user")
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("its mode is %04o, so others than its owner can read or change it\n  chmod 600 %s", mode, path)
	}
	if info.Size() > maxSource {
		return fmt.Errorf("it holds more than %d bytes", maxSource)
	}
	return nil
}

// pick takes one string out of nested JSON objects. Its errors quote nothing of the file.
func pick(raw []byte, keys []string) ([]byte, error) {
	for i, k := range keys {
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil {
			return nil, fmt.Errorf("no JSON object at %q", strings.Join(keys[:i], "."))
		}
		var ok bool
		if raw, ok = object[k]; !ok {
			return nil, fmt.Errorf("no key %q", strings.Join(keys[:i+1], "."))
		}
	}
	var value string
	if json.Unmarshal(raw, &value) != nil || value == "" {
		return nil, fmt.Errorf("%q is not a string", strings.Join(keys, "."))
	}
	return []byte(value), nil
}

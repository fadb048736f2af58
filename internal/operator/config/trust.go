package config

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"postern/internal/operator/strictyaml"
)

// Trust is the list of policy files that the user approved, each by its content: a line "SHA-256, two spaces, absolute path", as
// sha256sum writes it. A file that changed is no longer approved. The list lies in the user's state directory, mode 0600.
type Trust struct{ path string }

// DefaultTrust is the user's own list, $XDG_STATE_HOME/postern/trusted.
func DefaultTrust() (*Trust, error) {
	dir, err := StateDir()
	if err != nil {
		return nil, err
	}
	return &Trust{filepath.Join(dir, "trusted")}, nil
}

// CheckTrust reports, as an *Error with a hint, whether the policy file at path may be used without being named: it lies in the
// configuration directory, or the user approved its present content and that of the presets it names by path.
func CheckTrust(path string) error {
	l, err := newLoader()
	if err != nil {
		return err
	}
	if l.trust, err = DefaultTrust(); err != nil {
		return err
	}
	_, err = l.load(path)
	return err
}

// Add approves a file as it was when it was loaded, together with the presets that it names by path.
func (t *Trust) Add(f *File) error {
	if err := os.MkdirAll(filepath.Dir(t.path), 0o700); err != nil {
		return err
	}
	unlock, err := t.lock()
	if err != nil {
		return err
	}
	defer unlock()
	entries, err := t.entries()
	if err != nil {
		return err
	}
	for _, s := range f.Sources {
		if strings.ContainsFunc(s.Path, strictyaml.Unshown) {
			return &Error{File: t.path, Msg: "a path with a control or invisible character cannot be approved", Hint: "rename the directory, or use --config"}
		}
		entries[s.Path] = s.Sum
	}
	return t.write(entries)
}

// ErrNotTrusted is what an untrusted file's error wraps.
var ErrNotTrusted = errors.New("not trusted")

type trustError struct{ at *Error }

func (e *trustError) Error() string   { return e.at.Error() }
func (e *trustError) Unwrap() []error { return []error{ErrNotTrusted, e.at} }

func (t *Trust) check(s SourceFile, shown string) error {
	entries, err := t.entries()
	if err != nil {
		return err
	}
	sum, known := entries[s.Path]
	switch {
	case !known:
		return &trustError{&Error{File: shown, Msg: "not trusted: it lies in a working tree, and could name your credentials and commands", Hint: "read it, then: postern policy trust " + shown}}
	case sum != s.Sum:
		return &trustError{&Error{File: shown, Msg: "changed since you trusted it", Hint: "read it again, then: postern policy trust " + shown}}
	}
	return nil
}

// entries reads the list; a missing one is empty, a damaged one an error, for half a list would be a different decision.
func (t *Trust) entries() (map[string][sha256.Size]byte, error) {
	out := map[string][sha256.Size]byte{}
	src, err := readOwned(t.path, t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	sc := bufio.NewScanner(bytes.NewReader(src))
	for line := 1; sc.Scan(); line++ {
		digest, path, ok := strings.Cut(sc.Text(), "  ")
		sum, err := hex.DecodeString(digest)
		if !ok || err != nil || len(sum) != sha256.Size || !filepath.IsAbs(path) {
			return nil, &Error{File: t.path, Line: line, Col: 1, Msg: "damaged", Hint: "remove the file and trust your policy files again"}
		}
		out[path] = [sha256.Size]byte(sum)
	}
	return out, sc.Err()
}

func (t *Trust) write(entries map[string][sha256.Size]byte) error {
	var b bytes.Buffer
	for _, path := range slices.Sorted(maps.Keys(entries)) {
		sum := entries[path]
		b.WriteString(hex.EncodeToString(sum[:]) + "  " + path + "\n")
	}
	if b.Len() > strictyaml.MaxBytes {
		return &Error{File: t.path, Msg: "the list is full", Hint: "remove lines of files that are gone"}
	}
	return WriteFile(t.path, b.Bytes())
}

// lock keeps two processes from losing each other's approval.
func (t *Trust) lock() (unlock func(), err error) {
	f, err := os.OpenFile(t.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// WriteFile puts data at path, mode 0600, whole or not at all: a new file in the same directory, synced, and renamed.
func WriteFile(path string, data []byte) error { return write(path, data, 0) }

// WriteNewFile is WriteFile that fails with fs.ErrExist when there is something at path.
func WriteNewFile(path string, data []byte) error { return write(path, data, unix.RENAME_NOREPLACE) }

func write(path string, data []byte, flags uint) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".postern-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		if err = unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, path, flags); err == nil {
			return nil
		}
		err = &os.PathError{Op: "write", Path: path, Err: err}
	}
	return errors.Join(err, os.Remove(f.Name()))
}

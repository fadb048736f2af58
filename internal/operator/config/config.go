// Package config reads postern.yaml and gives the compiled policy of a profile, with everything else that a session is made of.
//
// A policy file is one strict YAML document (package strictyaml). It names credentials and where they are kept; a value that looks
// like one is an error. Whatever can be found wrong is found when the file is loaded, in every profile, and said with line, column and
// a hint. A file that a session would find in a working tree is used only after its content was approved (Trust): a repository that
// was cloned must not name the host's credentials or commands.
package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"postern/internal/operator/preset"
	"postern/internal/operator/strictyaml"
)

// Error is one thing wrong with a policy file or preset: file, line, column, message and hint.
type Error = strictyaml.Error

// Errors are all that is wrong with a file.
type Errors = strictyaml.Errors

// Name is what a policy file is called.
const Name = "postern.yaml"

// File is a policy file whose every profile compiles.
type File struct {
	Path    string       // absolute
	Sources []SourceFile // the policy file and the preset files it names by path: what Trust approves, and what a sandbox must not write

	profiles map[string]*Compiled
}

// SourceFile is a file that decides what a sandbox may do, and the SHA-256 of its content when it was read.
type SourceFile struct {
	Path string // absolute
	Sum  [sha256.Size]byte
}

// Load reads the file that the user named. Naming it is trusting it; it must still be a regular file that nobody else can write.
// The error is or wraps an *Error.
func Load(path string) (*File, error) {
	l, err := newLoader()
	if err != nil {
		return nil, err
	}
	return l.load(path)
}

// Parse compiles the text of a policy file that is to stand at path. Presets that it names by path are read.
func Parse(path string, src []byte) (*File, error) {
	l, err := newLoader()
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	return l.parse(path, src)
}

// Open reads the policy of a working directory: the file named explicitly, or when that is "" the one that Find finds, if it is trusted.
func Open(explicit, dir string) (*File, error) {
	if explicit != "" {
		return Load(explicit)
	}
	path, err := Find(dir)
	if err != nil {
		return nil, err
	}
	l, err := newLoader()
	if err != nil {
		return nil, err
	}
	if l.trust, err = DefaultTrust(); err != nil {
		return nil, err
	}
	return l.load(path)
}

// ErrNotFound says that there is no policy file; everything is refused then.
var ErrNotFound = errors.New("no postern.yaml at or above the working directory, nor in the configuration directory\n  hint: postern init writes a first one")

// Find looks for postern.yaml in dir and above it, up to the root or the first other file system, and then in the user's
// configuration directory ($XDG_CONFIG_HOME/postern). The error wraps ErrNotFound when there is none.
func Find(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	device, err := deviceOf(dir)
	if err != nil {
		return "", err
	}
	for {
		path := filepath.Join(dir, Name)
		if _, err := os.Lstat(path); err == nil {
			return path, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			break
		}
		if d, err := deviceOf(parent); err != nil || d != device {
			break
		}
		dir = parent
	}
	conf, err := Dir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(conf, Name)
	if _, err := os.Lstat(path); err != nil {
		return "", ErrNotFound
	}
	return path, nil
}

func deviceOf(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return st.Dev, nil
}

// Dir is the user's configuration directory: $XDG_CONFIG_HOME/postern, else ~/.config/postern.
func Dir() (string, error) { return xdg("XDG_CONFIG_HOME", ".config") }

// StateDir is the user's state directory: $XDG_STATE_HOME/postern, else ~/.local/state/postern.
func StateDir() (string, error) { return xdg("XDG_STATE_HOME", ".local/state") }

// xdg follows the XDG base directory specification: a relative value is ignored.
func xdg(variable, below string) (string, error) {
	if d := os.Getenv(variable); filepath.IsAbs(d) {
		return filepath.Join(d, "postern"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, below, "postern"), nil
}

// Profile is one profile, compiled.
func (f *File) Profile(name string) (*Compiled, error) {
	if c := f.profiles[name]; c != nil {
		return c, nil
	}
	e := &Error{File: f.Path, Msg: "no such profile", Hint: strictyaml.DidYouMean(name, f.Profiles())}
	if e.Hint == "" {
		e.Hint = "profiles: " + strings.Join(f.Profiles(), ", ")
	}
	return nil, e
}

// Profiles lists the profiles in alphabetical order.
func (f *File) Profiles() []string {
	names := make([]string, 0, len(f.profiles))
	for n := range f.profiles {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// AuditDir is where the file wants the audit log of every profile, "" when it does not say.
func (f *File) AuditDir() string {
	for _, c := range f.profiles {
		return c.Audit.Dir // the key stands once, above the profiles
	}
	return ""
}

// loader reads one policy file and what it names. Everything it asks of the process stands here.
type loader struct {
	home, work, config string
	trust              *Trust // nil: the user named the file

	sources  []SourceFile
	presets  map[string]*preset.Preset // by what stands under use:
	embedded map[string]*preset.Preset
}

func newLoader() (*loader, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	work, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("working directory: %w\n  hint: cd into one that exists", err)
	}
	conf, err := Dir()
	if err != nil {
		return nil, err
	}
	return &loader{home: home, work: work, config: conf, presets: map[string]*preset.Preset{}, embedded: map[string]*preset.Preset{}}, nil
}

func (l *loader) load(path string) (*File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	src, err := l.read(path)
	if err != nil {
		return nil, err
	}
	return l.parse(path, src)
}

// parse compiles the text of a policy file that stands, or will stand, at path.
func (l *loader) parse(path string, src []byte) (*File, error) {
	var s source
	label := l.shown(path)
	if err := strictyaml.Decode(label, src, &s); err != nil {
		return nil, err
	}
	c := &compiler{loader: l, src: &s, dir: filepath.Dir(path), label: filepath.Base(path), r: &strictyaml.Report{File: label}}
	profiles := c.compile()
	if err := errors.Join(c.presetErrs...); err != nil {
		return nil, err
	}
	if err := c.r.Err(); err != nil {
		return nil, err
	}
	return &File{Path: path, Sources: l.sources, profiles: profiles}, nil
}

// shown is a path as errors say it: relative when it lies below the working directory.
func (l *loader) shown(path string) string {
	if rel, ok := strings.CutPrefix(path, l.work+"/"); ok {
		return rel
	}
	return path
}

// read reads a file that decides what a sandbox may do, and remembers what it held.
func (l *loader) read(path string) ([]byte, error) {
	src, err := readOwned(path, l.shown(path))
	if err != nil {
		return nil, err
	}
	s := SourceFile{Path: path, Sum: sha256.Sum256(src)}
	if l.trust != nil && !strings.HasPrefix(path, l.config+"/") {
		if err := l.trust.check(s, l.shown(path)); err != nil {
			return nil, err
		}
	}
	l.sources = append(l.sources, s)
	return src, nil
}

// readOwned reads a regular file of at most 1 MiB that belongs to us or to root and that nobody else can write.
func readOwned(path, shown string) ([]byte, error) {
	refuse := func(msg, hint string) ([]byte, error) { return nil, &Error{File: shown, Msg: msg, Hint: hint} }
	// O_NONBLOCK: a FIFO must not hang us. O_NOFOLLOW: what was checked and trusted is what is read.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		return refuse("a symbolic link", "name the file itself with --config")
	case errors.Is(err, unix.ENOENT):
		return nil, &notFoundError{&Error{File: shown, Msg: "no such file"}}
	case err != nil:
		return refuse("cannot be opened: "+err.Error(), "")
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return refuse("cannot be examined: "+err.Error(), "")
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return refuse("not a regular file", "")
	case int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return refuse("belongs to another user", "it decides what may be done with your credentials: copy it, and read the copy")
	case st.Mode&0o022 != 0:
		return refuse("others can write to it", "chmod go-w it: it decides what may be done with your credentials")
	case st.Size > strictyaml.MaxBytes:
		return refuse("larger than 1 MiB", "")
	}
	buf := make([]byte, st.Size+1)
	n, err := io.ReadFull(f, buf)
	if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return refuse("changed while it was read", "")
	}
	return buf[:n], nil
}

type notFoundError struct{ at *Error }

func (e *notFoundError) Error() string        { return e.at.Error() }
func (e *notFoundError) Unwrap() error        { return e.at }
func (e *notFoundError) Is(target error) bool { return target == fs.ErrNotExist }

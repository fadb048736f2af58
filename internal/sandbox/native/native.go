// Package native runs an untrusted command in new user, mount, network, pid, ipc, uts and cgroup namespaces, on this machine, with
// no helper binary and no privilege that the caller does not already have. Linux 5.12 or newer (the new mount API).
//
//	A  postern               Start, Exec, Wait; serves the sockets that come out
//	│    fork, new namespaces, /proc/self/exe as "postern-init"
//	└─ B  first stage         pid 1: opens the listeners, builds the root, drops everything, sends the listeners out (SCM_RIGHTS)
//	   │    exec of itself: a fresh address space that holds no capability and stands behind the command's own filter
//	   B  second stage        pid 1: waits for Exec, starts C, reaps, reports; as powerless as C
//	   └─ C  the command      sees descriptors 0, 1 and 2, in the caller's session and process group
//
// A and B share one SOCK_SEQPACKET pair. When A goes, for whatever reason, the kernel kills B (PDEATHSIG, armed again after every
// change of credentials) and B also leaves when that socket closes; with pid 1 the kernel kills and reaps all of the pid namespace,
// and with the last process go its mounts and its network. Nothing has to be cleaned up by anybody but the cgroup directory, which
// Wait removes and the next Start sweeps.
//
// # Who the command is
//
// An ordinary user's sandbox maps exactly that user to itself: uid 1000 outside is uid 1000 inside, and there is no other uid.
//
// When postern is root, the command is not. It runs as Spec.Identity, else as SUDO_UID, else as the owner of the working directory
// if that is not root, else as 65534; the user namespace maps that one uid to itself and never maps root. Mounts are opened, cloned
// and handed in by A, since B could not reach a directory that only root may enter. A mount that belongs to somebody else is
// idmapped: the uid and gid of its top directory and those of the command change places, so the command owns what that somebody owns
// on disk, and what it creates belongs to that somebody on disk. Where the file system cannot do that, a writable mount is an error
// and a read-only one a note. Because files can then be root's on disk, no set-user-id or set-group-id bit can be set inside.
//
// # What the command sees
//
// The root is a read-only tmpfs with an allowlist of the system's directories bound read-only, private /tmp, /var/tmp, /run, /dev/shm
// and home on one bounded tmpfs, a fresh /proc with its dangerous entries masked, a minimal /dev and no /sys.
// docs/reference/sandbox.md lists all of it with reasons.
package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// InitName is argv[0] of the process that becomes the sandbox. main calls Init before anything else when it sees it.
const InitName = "postern-init"

// Spec says what to run and what it may see. Command and Home are required.
type Spec struct {
	Command []string // looked up in the PATH of Env, inside the sandbox
	Env     []string // all of the command's environment, "NAME=value"
	Workdir string   // absolute; "" is Home
	Home    string   // absolute; a private, empty, writable directory is made there

	User     string   // name of the command's user; "" is "sandbox"
	Identity Identity // zero: the caller, or when that is root the rule of the package comment
	Hostname string   // "" is "sandbox"

	Mounts    []Mount  // what of the host the command may see; each must exist
	Tools     []Mount  // mounted read-only when present, skipped with a note when dangerous
	Files     []File   // generated files
	Protect   []string // paths of the host that stay read-only in whatever writable mount shows them
	Mask      []string // further paths that are hidden
	Dangerous []string // further paths of the host that no mount may touch: the gateway's own configuration, state and sockets

	AllowDangerousMount bool   // mount dangerous paths all the same, each with a note
	Limits              Limits // zero: the defaults of Limits
	Setup               []byte // handed to the setup function of Init as it is; it holds no secret

	Stdin, Stdout, Stderr *os.File // nil is /dev/null
}

// Identity is a uid and gid of the host. The zero Identity names nobody: root is never an identity of a sandbox.
type Identity struct{ UID, GID uint32 }

// Mount shows a file or directory of the host to the command. The zero Mount is refused.
type Mount struct {
	Source string // absolute path on the host; symbolic links are followed once, at Start
	Target string // absolute path in the sandbox; "" is Source as written
	Write  bool
}

// File is generated content at a path of the sandbox. Content that is laid over a file of the system is read-only; a file that is
// created in the private home, /run or /tmp belongs to the command.
type File struct {
	Path    string
	Mode    fs.FileMode // permission bits; 0 is 0644
	Content []byte
	Overlay bool // only over a file that exists (or a dangling symbolic link): without one, nothing is created
}

// Limits bound what the command can use up.
type Limits struct {
	Memory    int64 // bytes of the cgroup; 0 is three quarters of the machine's memory
	Processes int64 // processes and threads; 0 is 4096
	OpenFiles int64 // descriptors of one process; 0 is the caller's own limit
	FileSize  int64 // bytes of one file; 0 is no limit
	Scratch   int64 // bytes of home, /tmp, /var/tmp, /run and /dev/shm together; 0 is half of the machine's memory
}

// Error says which step of starting a sandbox failed.
type Error struct {
	Op   string // "mount", "idmap", …
	Path string // "" when the step has none
	Err  error
	Hint string // how to mend it, "" when unknown
}

func (e *Error) Error() string {
	s := "sandbox: " + e.Op
	if e.Path != "" {
		s += " " + e.Path
	}
	s += ": " + e.Err.Error()
	if e.Hint != "" {
		s += "\n  hint: " + e.Hint
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// ExecError says that the command could not be started inside the sandbox.
type ExecError struct {
	Name   string
	Code   int // 127 when there is no such command, 126 when it cannot be executed
	Reason string
}

func (e *ExecError) Error() string { return fmt.Sprintf("sandbox: %s: %s", e.Name, e.Reason) }

var errNotAbsolute = errors.New("not a clean absolute path")

// check refuses a Spec that could not mean what its author wanted. It touches nothing.
func (s *Spec) check() error {
	if len(s.Command) == 0 || s.Command[0] == "" {
		return &Error{Op: "command", Err: errors.New("none given")}
	}
	if err := clean("home", s.Home); err != nil {
		return err
	}
	if covered(s.Home) {
		return &Error{Op: "home", Path: s.Home, Err: errors.New("is a directory of the system"), Hint: "give the sandbox a home below /home or /root"}
	}
	for _, name := range []string{s.User, s.Hostname} {
		if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" || len(name) > 63 {
			return &Error{Op: "name", Path: name, Err: errors.New("is not a plain name of at most 63 letters, digits, dots, dashes and underscores")}
		}
	}
	if s.Workdir != "" {
		if err := clean("workdir", s.Workdir); err != nil {
			return err
		}
	}
	for _, kv := range s.Env {
		if i := strings.IndexByte(kv, '='); i < 1 || strings.IndexByte(kv, 0) >= 0 {
			return &Error{Op: "env", Err: errors.New("an entry is not NAME=value")}
		}
	}
	for _, list := range [][]Mount{s.Mounts, s.Tools} {
		for _, m := range list {
			if err := m.check(); err != nil {
				return err
			}
		}
	}
	for _, f := range s.Files {
		if err := clean("file", f.Path); err != nil {
			return err
		}
	}
	for _, list := range [][]string{s.Protect, s.Mask, s.Dangerous} {
		for _, p := range list {
			if err := clean("path", p); err != nil {
				return err
			}
		}
	}
	return s.Limits.check()
}

func (m Mount) check() error {
	if err := clean("mount", m.Source); err != nil {
		return err
	}
	if m.Target == "" {
		return nil
	}
	return clean("mount target", m.Target)
}

func (l Limits) check() error {
	for _, v := range []int64{l.Memory, l.Processes, l.OpenFiles, l.FileSize, l.Scratch} {
		if v < 0 {
			return &Error{Op: "limits", Err: errors.New("a limit is negative")}
		}
	}
	return nil
}

func clean(op, p string) error {
	if !filepath.IsAbs(p) || filepath.Clean(p) != p || strings.IndexByte(p, 0) >= 0 {
		return &Error{Op: op, Path: p, Err: errNotAbsolute}
	}
	return nil
}

// within says whether p is dir or lies below it; both are clean absolute paths.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

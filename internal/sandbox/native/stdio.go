package native

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// An open descriptor keeps its powers across namespaces. A directory as standard input would be a way out of the root (fchdir); a
// socket of the host's network namespace could be connected again, to anywhere; a Unix socket that is not connected could be sent to
// any socket of the host.
var (
	errDirectory = errors.New("is a directory of the host: it would be a way out of the sandbox")
	errSocket    = errors.New("is a socket of the host's network: it could be connected again, around the gateway")
)

// checkStdio refuses standard descriptors that lead out of the sandbox.
func checkStdio(files [3]*os.File) error {
	for i, f := range files {
		if err := checkDescriptor(int(f.Fd())); err != nil {
			return &Error{Op: "descriptor", Path: fmt.Sprint(i), Err: err, Hint: "redirect it through a pipe: … | postern run … | cat"}
		}
	}
	return nil
}

func checkDescriptor(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return errDirectory
	case unix.S_IFSOCK:
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil {
			return err
		}
		kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		if err != nil {
			return err
		}
		if domain != unix.AF_UNIX || kind == unix.SOCK_DGRAM {
			return errSocket
		}
		if _, err := unix.Getpeername(fd); err != nil {
			return errSocket
		}
	}
	return nil
}

// terminal returns the terminal that one of the descriptors is.
func terminal(files [3]*os.File) (console, int) {
	for _, f := range files {
		fd := int(f.Fd())
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
			continue
		}
		var st unix.Stat_t
		path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err == nil && unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
			return console{Path: path, Rdev: uint64(st.Rdev)}, fd
		}
	}
	return console{}, -1
}

// stdio is the command's three descriptors, and the terminal among them.
type stdio struct {
	files   [3]*os.File
	console console
	tty     int
	null    *os.File
}

func (s *Spec) stdio() (*stdio, error) {
	io := &stdio{files: [3]*os.File{s.Stdin, s.Stdout, s.Stderr}}
	for i, f := range io.files {
		if f != nil {
			continue
		}
		if io.null == nil {
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				return nil, &Error{Op: "descriptor", Path: os.DevNull, Err: err}
			}
			io.null = null
		}
		io.files[i] = io.null
	}
	if err := checkStdio(io.files); err != nil {
		io.close()
		return nil, err
	}
	io.console, io.tty = terminal(io.files)
	return io, nil
}

func (s *stdio) terminal() foreground { return foregroundOf(s.tty) }

func (s *stdio) close() {
	if s.null != nil {
		s.null.Close()
	}
}

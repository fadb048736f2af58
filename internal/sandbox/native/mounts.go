package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultTools lists the directories in which people install tools below their home, without those that hold credentials. Whatever
// of it exists is mounted read-only.
func DefaultTools(home string) []Mount {
	var tools []Mount
	for _, p := range []string{
		".local/bin", ".local/lib", ".local/share/claude", ".local/share/mise", ".local/share/pipx", ".local/pipx", ".local/share/uv", ".local/share/fnm",
		".local/share/pnpm", ".nvm", ".fnm", ".volta", ".pyenv", ".rbenv", ".asdf", ".sdkman/candidates", ".jenv", ".goenv",
		".cargo/bin", ".rustup", "go/bin", "sdk", ".bun/bin", ".deno/bin", ".npm-global", ".opencode/bin", ".claude/local", ".dotnet", ".nix-profile",
	} {
		tools = append(tools, Mount{Source: filepath.Join(home, p)})
	}
	return tools
}

// covered says whether a path of the sandbox belongs to the system's part of it, where nothing of the caller's is mounted.
func covered(p string) bool {
	for _, dir := range []string{"/proc", "/dev", "/sys", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/.postern"} {
		if within(p, dir) {
			return true
		}
	}
	return slices.Contains([]string{"/", "/var", "/run", "/tmp", "/home", "/opt", "/nix", "/gnu", "/var/tmp", "/var/lib", "/var/cache"}, p)
}

// gathered is what A opened for one start. Its descriptors pin the objects that were checked until B has mounted them.
type gathered struct {
	mounts  []planMount
	protect []string // of the sandbox
	notes   []string
	tools   int        // how many of mounts are tools; they come last
	pins    []*os.File // O_PATH, in the order of mounts
	trees   []*os.File // detached mounts for B, from descriptor firstFD on
}

func (g *gathered) close() {
	for _, f := range append(g.pins, g.trees...) {
		f.Close()
	}
}

func (g *gathered) note(format string, args ...any) {
	g.notes = append(g.notes, fmt.Sprintf(format, args...))
}

// homes are the home directories whose dangerous parts are known by name: the sandbox's, the caller's and that of sudo's caller.
func (s *Spec) homes(sudoUID string) []string {
	list := []string{s.Home}
	if h, err := os.UserHomeDir(); err == nil && filepath.IsAbs(h) {
		list = append(list, filepath.Clean(h))
	}
	for _, uid := range []string{strconv.Itoa(os.Getuid()), sudoUID} {
		if u, err := user.LookupId(uid); err == nil && filepath.IsAbs(u.HomeDir) && filepath.Clean(u.HomeDir) != "/" {
			list = append(list, filepath.Clean(u.HomeDir))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// gather resolves every source once, checks what it led to, and as root clones it into a detached mount for B.
func (s *Spec) gather(id Identity, root bool) (_ *gathered, err error) {
	g := &gathered{}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	d := newDangers(s.homes(os.Getenv("SUDO_UID")), s.Dangerous)
	maps := &idmaps{to: id, open: map[Identity]*os.File{}}
	defer maps.close()
	for _, m := range s.Mounts {
		if err := g.add(m, d, s.AllowDangerousMount); err != nil {
			return nil, err
		}
	}
	for _, m := range s.Tools {
		m.Write = false
		switch err := g.add(m, d, false); {
		case err == nil:
			g.tools++
		case errors.Is(err, fs.ErrNotExist):
		case errors.As(err, new(*DangerousMountError)), errors.Is(err, fs.ErrPermission):
			g.note("tools below %s are not mounted: %v", m.Source, firstLine(err))
		default:
			return nil, err
		}
	}
	if g.protect, err = protected(s.Protect, g.mounts); err != nil {
		return nil, err
	}
	for i := range g.mounts {
		if !root {
			break
		}
		if err := g.clone(i, id, maps); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// protected says where the command could write to files of the host that it must not: under the name that each has in every writable
// mount that shows it, for a mount may have another target than its source, and the way to a file may lead through links.
func protected(paths []string, mounts []planMount) (list []string, err error) {
	for _, p := range paths {
		names := []string{p}
		if real, err := filepath.EvalSymlinks(p); err == nil && real != p {
			names = append(names, real)
		}
		found := len(list)
		for _, name := range names {
			for dir := name; ; dir = filepath.Dir(dir) {
				id, _ := identityOf(dir)
				for _, m := range mounts {
					if m.Write && id == (inode{m.Dev, m.Ino}) {
						list = append(list, filepath.Join(m.Target, strings.TrimPrefix(name, dir)))
					}
				}
				if dir == "/" {
					break
				}
			}
		}
		var st unix.Stat_t
		if len(list) > found && unix.Stat(p, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1 {
			return nil, &Error{Op: "protect", Path: p, Err: errors.New("has a second name (a hard link), by which the command could write to it"), Hint: "put a copy in its place"}
		}
	}
	return list, nil
}

func (g *gathered) add(m Mount, d *dangers, allow bool) error {
	if m.Target == "" {
		m.Target = m.Source
	}
	if covered(m.Target) {
		return &Error{Op: "mount", Path: m.Target, Err: errors.New("the sandbox's own directories cannot be mounted over"), Hint: "choose another target: --mount SRC:DST"}
	}
	fd, err := unix.Open(m.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &Error{Op: "mount", Path: m.Source, Err: err, Hint: "a mount shows a file or directory that exists here"}
	}
	pin := os.NewFile(uintptr(fd), m.Source)
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("is neither a directory nor a file")
	}
	if err != nil {
		pin.Close()
		return &Error{Op: "mount", Path: m.Source, Err: err}
	}
	if err := d.check(m.Source, real); err != nil {
		if !allow {
			pin.Close()
			return err
		}
		g.note("dangerous mount allowed: %v", firstLine(err))
	}
	g.pins = append(g.pins, pin)
	g.mounts = append(g.mounts, planMount{
		Source: real, Target: m.Target, Write: m.Write, Dir: st.Mode&unix.S_IFMT == unix.S_IFDIR, Dev: st.Dev, Ino: st.Ino,
	})
	return nil
}

// clone makes mount i a detached mount in the owner's terms: idmapped when it belongs to somebody else than the command.
func (g *gathered) clone(i int, id Identity, maps *idmaps) error {
	m := &g.mounts[i]
	fd, err := unix.OpenTree(int(g.pins[i].Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		hint := ""
		if errors.Is(err, unix.EPERM) {
			hint = "this root lacks CAP_SYS_ADMIN, as in a container: run postern as an ordinary user there"
		}
		return &Error{Op: "mount", Path: m.Source, Err: err, Hint: hint}
	}
	tree := os.NewFile(uintptr(fd), m.Source)
	g.trees = append(g.trees, tree)
	m.FD = firstFD + len(g.trees) - 1
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &Error{Op: "mount", Path: m.Source, Err: err}
	}
	owner := Identity{st.Uid, st.Gid}
	if owner == id {
		return nil
	}
	ns, err := maps.namespace(owner)
	if err != nil {
		return &Error{Op: "idmap", Path: m.Source, Err: err}
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
	switch {
	case err == nil:
		return nil
	case m.Write:
		return &Error{
			Op: "idmap", Path: m.Source, Err: fmt.Errorf("it belongs to uid %d, the command runs as uid %d, and its file system cannot map one to the other: %w", owner.UID, id.UID, err),
			Hint: fmt.Sprintf("give the directory to uid %d, or run the command as its owner with --uid", id.UID),
		}
	default:
		g.note("%s is mounted with its owner's ids: its file system has no idmapped mounts", m.Source)
		return nil
	}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimPrefix(line, "sandbox: ")
}

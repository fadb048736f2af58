package native

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// collect turns every source into a detached mount, while the host's tree is still whole.
func (t *tree) collect(mounts []planMount) error {
	for i := range mounts {
		m := &mounts[i]
		attrs := uint64(attrRead)
		if m.Write {
			attrs = attrWrite
		}
		var err error
		if m.FD > 0 {
			err = restrict(m.FD, attrs)
		} else {
			m.FD, err = m.clone(attrs)
		}
		if err != nil {
			return &Error{Op: "mount", Path: m.Source, Err: err}
		}
	}
	return nil
}

// clone opens the source without following any link, and wants it to be what A has checked.
func (m *planMount) clone(attrs uint64) (int, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, m.Source, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, err
	}
	if st.Dev != m.Dev || st.Ino != m.Ino {
		return -1, errors.New("it was replaced while the sandbox started")
	}
	return cloneTree(fd, attrs)
}

// mount attaches what was collected, parents before what lies below them.
func (t *tree) mount(mounts []planMount) error {
	order := slices.Clone(mounts)
	slices.SortStableFunc(order, func(a, b planMount) int { return strings.Count(a.Target, "/") - strings.Count(b.Target, "/") })
	for _, m := range order {
		target, err := t.make(m.Target, m.Dir)
		if err == nil {
			err = attach(m.FD, target)
		}
		if err != nil {
			e := &Error{Op: "mount", Path: m.Target, Err: err}
			if errors.Is(err, errHostTarget) || errors.Is(err, unix.ELOOP) {
				e.Hint = "choose a target that exists, or one below the home directory or /mnt"
			}
			return e
		}
	}
	return nil
}

// maxLinks is how many symbolic links a generated file's path may lead through, as in the kernel.
const maxLinks = 40

// place puts the generated files where they belong. Blobs become files on the root tmpfs, so that one content serves many paths.
func (t *tree) place(files []planFile, blobs [][]byte) error {
	for i, b := range blobs {
		if err := t.write(".postern/files/"+strconv.Itoa(i), 0o644, b); err != nil {
			return &Error{Op: "file", Err: err}
		}
	}
	for _, f := range files {
		if err := t.placeAt(f, f.Path, blobs, maxLinks); err != nil {
			return &Error{Op: "file", Path: f.Path, Err: err}
		}
	}
	return nil
}

func (t *tree) write(name string, mode uint32, content []byte) error {
	fd, err := unix.Openat(t.root, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for len(content) > 0 {
		n, err := unix.Write(fd, content)
		if err != nil {
			return err
		}
		content = content[n:]
	}
	return nil
}

func (t *tree) placeAt(f planFile, p string, blobs [][]byte, links int) error {
	fd, err := t.follow(p)
	if err == nil {
		return t.overlay(f, fd)
	}
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	if to, ok := t.dangling(p); ok {
		if links == 0 {
			return unix.ELOOP
		}
		return t.placeAt(f, to, blobs, links-1)
	}
	if f.Overlay && p == f.Path {
		return nil
	}
	at, err := t.make(path.Dir(p), true)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if !t.ours(at) {
		return errHostTarget
	}
	return t.write("."+p, uint32(f.Mode), blobs[f.Blob])
}

// overlay mounts the generated content over an existing file.
func (t *tree) overlay(f planFile, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return errors.New("is not a regular file")
	}
	src, err := unix.Openat(t.root, ".postern/files/"+strconv.Itoa(f.Blob), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	clone, err := cloneTree(src, attrRead|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return err
	}
	return attach(clone, fd)
}

// dangling says where a symbolic link without a target leads. Its directory must exist inside the new root.
func (t *tree) dangling(p string) (string, bool) {
	dir, err := t.follow(path.Dir(p))
	if err != nil {
		return "", false
	}
	defer unix.Close(dir)
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, path.Base(p), buf)
	if err != nil || n == len(buf) {
		return "", false
	}
	to := string(buf[:n])
	if !path.IsAbs(to) {
		to = path.Join(path.Dir(p), to)
	}
	return path.Clean(to), true
}

// protect keeps paths inside writable mounts read-only. Every directory between the mount and the path becomes a mount of its own,
// because a directory that is no mount point could be renamed, and a new one with another content be put in its place.
func (t *tree) protect(paths []string, mounts []planMount) error {
	done := map[string]bool{}
	for _, m := range mounts {
		done[m.Target] = true
	}
	for _, p := range paths {
		m, ok := writableMount(p, mounts)
		if !ok {
			continue
		}
		fd, err := t.open(p)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			t.note("%s is not protected: it is missing", p)
			continue
		}
		if errors.Is(err, unix.ELOOP) {
			return &Error{Op: "protect", Path: p, Err: errors.New("a symbolic link on the way to it could be turned elsewhere by the command"), Hint: "name it without the link"}
		}
		if err != nil {
			return &Error{Op: "protect", Path: p, Err: err}
		}
		unix.Close(fd)
		below := strings.TrimPrefix(p, m.Target)
		for i, c := range below {
			if dir := m.Target + below[:i]; c == '/' && i > 0 && !done[dir] {
				if err := t.rebind(dir, 0); err != nil {
					return &Error{Op: "protect", Path: dir, Err: err}
				}
				done[dir] = true
			}
		}
		if err := t.rebind(p, unix.MOUNT_ATTR_RDONLY); err != nil {
			return &Error{Op: "protect", Path: p, Err: err}
		}
		done[p] = true
	}
	return nil
}

// rebind mounts p over itself.
func (t *tree) rebind(p string, attrs uint64) error {
	fd, err := t.open(p)
	if err != nil {
		return err
	}
	clone, err := cloneTree(fd, attrs)
	if err != nil {
		unix.Close(fd)
		return err
	}
	return attach(clone, fd)
}

// writableMount returns the mount that holds p, if it is writable.
func writableMount(p string, mounts []planMount) (planMount, bool) {
	var best planMount
	for _, m := range mounts {
		if within(p, m.Target) && len(m.Target) > len(best.Target) {
			best = m
		}
	}
	return best, best.Write
}

// maskSockets covers Unix sockets of the host. A socket that is gone by now needs no mask.
func (t *tree) maskSockets(paths []string) error {
	for _, p := range paths {
		fd, err := t.open(p)
		if err != nil {
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
				continue
			}
			return &Error{Op: "mask socket", Path: p, Err: err}
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
			unix.Close(fd)
			continue
		}
		src, err := unix.Openat(t.root, ".postern/nothing", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		clone, err := cloneTree(src, attrRead)
		unix.Close(src)
		if err == nil {
			err = attach(clone, fd)
		}
		if err != nil {
			return &Error{Op: "mask socket", Path: p, Err: err}
		}
	}
	return nil
}

// baseFiles are generated unless the caller brings its own: who the command is, and how names are looked up. All of them replace the
// host's, which would tell the sandbox about accounts, neighbours and daemons that it cannot reach.
func baseFiles(s *Spec, id Identity) []File {
	name, host := s.User, s.Hostname
	if name == "" {
		name = "sandbox"
	}
	if host == "" {
		host = "sandbox"
	}
	shell := "/bin/sh"
	for _, kv := range s.Env {
		if v, ok := strings.CutPrefix(kv, "SHELL="); ok && path.IsAbs(v) {
			shell = v
		}
	}
	passwd := fmt.Sprintf("%s:x:%d:%d::%s:%s\nroot:x:0:0::/nonexistent:/usr/sbin/nologin\n", name, id.UID, id.GID, s.Home, shell)
	group := fmt.Sprintf("%s:x:%d:\nroot:x:0:\n", name, id.GID)
	if id.UID != nobody {
		passwd += "nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n"
		group += "nogroup:x:65534:\n"
	}
	text := map[string]string{
		"/etc/passwd":        passwd,
		"/etc/group":         group,
		"/etc/hostname":      host + "\n",
		"/etc/hosts":         "127.0.0.1 localhost " + host + "\n::1 localhost ip6-localhost ip6-loopback\n",
		"/etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n",
		"/etc/resolv.conf":   "nameserver 198.18.0.1\noptions edns0\n",
		"/etc/machine-id":    "0123456789abcdef0123456789abcdef\n",
	}
	var files []File
	for p, content := range text {
		if !slices.ContainsFunc(s.Files, func(f File) bool { return f.Path == p }) {
			files = append(files, File{Path: p, Content: []byte(content), Overlay: true})
		}
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files
}

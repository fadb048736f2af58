package native

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// The attributes that mounts of the sandbox have: what is the host's and not named as writable is read-only, and nowhere outside /dev
// does a device node or a set-user-id bit mean anything.
const (
	attrRead  = unix.MOUNT_ATTR_RDONLY | attrWrite
	attrWrite = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	attrData  = attrWrite | unix.MOUNT_ATTR_NOEXEC
)

// newFilesystem makes a file system that is mounted nowhere yet. Options are "key" or "key=value".
func newFilesystem(kind string, attrs int, options ...string) (int, error) {
	ctx, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", kind, err)
	}
	defer unix.Close(ctx)
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		if err := unix.FsconfigSetString(ctx, key, value); err != nil {
			return -1, fmt.Errorf("fsconfig %s %s: %w", kind, o, err)
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, fmt.Errorf("fsconfig %s: %w", kind, err)
	}
	fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return -1, fmt.Errorf("fsmount %s: %w", kind, err)
	}
	return fd, nil
}

// cloneTree makes a detached copy of the mounts at and below fd, with attrs set on all of them.
func cloneTree(fd int, attrs uint64) (int, error) {
	tree, err := unix.OpenTree(fd, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	if err := restrict(tree, attrs); err != nil {
		unix.Close(tree)
		return -1, err
	}
	return tree, nil
}

func restrict(tree int, attrs uint64) error {
	if attrs == 0 {
		return nil
	}
	err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attrs})
	if err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

// attach mounts a detached tree over target and closes both.
func attach(tree, target int) error {
	err := unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	unix.Close(tree)
	unix.Close(target)
	if err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// tree is the sandbox's root while it is being built: a tmpfs that lies, unseen by path lookups, over the host's "/".
type tree struct {
	root     int // the root tmpfs
	scratch  int // one bounded tmpfs whose directories become home, /tmp and the rest
	own      map[uint64]bool
	switches []int // see namespaceSwitches
	notes    []string
}

func (t *tree) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

var errHostTarget = errors.New("does not exist there, and creating it would write into the host's files")

// ours says whether fd lies on a file system that was made for this sandbox, so that creating something in it changes nothing of the
// host's.
func (t *tree) ours(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && t.own[st.Dev]
}

// open resolves p inside the new root without following any symbolic link.
func (t *tree) open(p string) (int, error) {
	return unix.Openat2(t.root, "."+p, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
}

// follow resolves p inside the new root, symbolic links as the command would see them.
func (t *tree) follow(p string) (int, error) {
	return unix.Openat2(t.root, "."+p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
}

// make opens p inside the new root and creates what is missing of it, as long as that is on the sandbox's own file systems. A symbolic
// link on the way is an error: it could lead the mount to a place that its author did not name.
func (t *tree) make(p string, dir bool) (int, error) {
	if fd, err := t.open(p); err == nil {
		return fd, nil
	} else if !errors.Is(err, unix.ENOENT) {
		return -1, err
	}
	at, err := t.open(path.Dir(p))
	if errors.Is(err, unix.ENOENT) {
		at, err = t.make(path.Dir(p), true)
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	if !t.ours(at) {
		return -1, errHostTarget
	}
	name := path.Base(p)
	if dir {
		err = unix.Mkdirat(at, name, 0o755)
	} else {
		err = unix.Mknodat(at, name, unix.S_IFREG|0o644, 0)
	}
	if err != nil {
		return -1, err
	}
	return unix.Openat(at, name, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
}

// bind mounts what src names (a descriptor, which stays open) at p.
func (t *tree) bind(src int, p string, attrs uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return err
	}
	target, err := t.make(p, st.Mode&unix.S_IFMT == unix.S_IFDIR)
	if err != nil {
		return err
	}
	clone, err := cloneTree(src, attrs)
	if err != nil {
		unix.Close(target)
		return err
	}
	return attach(clone, target)
}

// bindHost mounts a path of the host, which still is the process's root, at p. It reports whether the host has it.
func (t *tree) bindHost(host, p string, attrs uint64) (bool, error) {
	fd, err := unix.Open(host, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	return true, t.bind(fd, p, attrs)
}

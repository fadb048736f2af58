package native

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Landlock is the second wall. The mounts already are read-only where they should be, and abstract sockets and pids have namespaces
// of their own; Landlock says the same thing again in another part of the kernel, and is the only wall against signals to the process
// group, which the command shares with the gateway.
const (
	landlockWrites = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	landlockNodes = unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK // handled and granted nowhere
	landlockFile  = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE  // what a rule on a file may grant

	landlockVersion  = 1 // flag of landlock_create_ruleset: answer with the ABI
	landlockBeneath  = 1 // rule type
	landlockScopeABI = 6
)

type ruleset struct {
	fd      int
	handled uint64
}

// writable lists where a sandbox's command may write. A standard descriptor that was opened for writing can be opened again by name
// (/dev/stderr), wherever on the host it is; one that was opened for reading cannot become more than that.
func (p *plan) writable() []string {
	list := []string{p.Home, "/dev", "/proc"}
	for fd := range 3 {
		if mode, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err == nil && mode&unix.O_ACCMODE != unix.O_RDONLY {
			list = append(list, fmt.Sprintf("/proc/self/fd/%d", fd))
		}
	}
	for _, e := range scratchEntries() {
		list = append(list, e.Path)
	}
	for _, m := range p.Mounts {
		if m.Write {
			list = append(list, m.Target)
		}
	}
	return list
}

// restrictSelf applies Landlock to the calling thread, as much of it as the kernel has. It returns what is missing.
func restrictSelf(writable []string) (note string, err error) {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, landlockVersion)
	if errno == unix.ENOSYS || errno == unix.EOPNOTSUPP {
		return "this kernel has no Landlock: writes are confined by mounts alone, and the command can signal the gateway's process group", nil
	}
	if errno != 0 {
		return "", fmt.Errorf("version: %w", errno)
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: landlockWrites}
	if abi >= 2 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= landlockScopeABI {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	} else {
		note = fmt.Sprintf("this kernel's Landlock (ABI %d) does not scope signals: the command can signal the gateway's process group", abi)
	}
	// An older kernel takes a larger structure than it knows as long as the rest is zero.
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return "", fmt.Errorf("create ruleset: %w", errno)
	}
	defer unix.Close(int(fd))
	r := &ruleset{int(fd), attr.Handled_access_fs}
	for _, p := range writable {
		if err := r.allow(p); err != nil {
			return "", err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return "", fmt.Errorf("restrict: %w", errno)
	}
	return note, nil
}

// allow grants writing at and below a path. What has no place in the file tree (a pipe, a socket) needs no rule.
func (r *ruleset) allow(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: r.handled &^ landlockNodes, Parent_fd: int32(fd)}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rule.Allowed_access &= landlockFile
	}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), landlockBeneath, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno == unix.EBADFD { // pipes and sockets: Landlock does not look at them
		return nil
	}
	if errno != 0 {
		return fmt.Errorf("rule for %s: %w", path, errno)
	}
	return nil
}

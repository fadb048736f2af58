package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func privilegeChecks() []Check {
	const status = "/proc/thread-self/status"
	return []Check{
		{ID: "privileges.capabilities", Title: "no capability in any set", Essential: true, Means: "parts of root's power are left", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return noCapabilities(status) }},
		{ID: "privileges.no_new_privs", Title: "no program can gain privileges", Essential: true, Means: "set-user-id programs give root's power back", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return statusIs(status, "NoNewPrivs", "1") }},
		{ID: "privileges.seccomp", Title: "system calls are filtered", Essential: true, Means: "all of the kernel is open to attack", Remedy: mendFilter,
			run: func(context.Context, *Plan) Result { return statusIs(status, "Seccomp", "2") }},
		{ID: "privileges.uid", Title: "not root, here or on the host", Essential: true, Means: "the host takes the command for root", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return notRoot(os.Getuid(), "/proc/self/uid_map") }},
		{ID: "privileges.mapping", Title: "no uid but its own is mapped", Essential: true, Means: "files of other users of the host can be reached", Remedy: mendStart,
			run: func(context.Context, *Plan) Result {
				return oneMapping(map[string]int{"/proc/self/uid_map": os.Getuid(), "/proc/self/gid_map": os.Getgid()})
			}},
		{ID: "privileges.init", Title: "the sandbox's init is closed to the command", Essential: true, Means: "memory, environment and descriptors of pid 1 can be read", Remedy: mendStart,
			run: func(context.Context, *Plan) Result { return closedProcess("/proc/1") }},
		{ID: "privileges.setid", Title: "set-user-id bits cannot be set", Essential: true, Means: "a file in a writable mount could carry its owner's power on the host", Remedy: mendFilter,
			run: func(context.Context, *Plan) Result { return noSetID(os.TempDir()) }},
		{ID: "privileges.landlock", Title: "Landlock confines writes", Means: "writes are confined by mounts alone", Remedy: mendLandlock,
			run: func(context.Context, *Plan) Result { return landlockWrites("/tmp", landlockABI()) }},
		{ID: "privileges.landlock_scope", Title: "Landlock confines signals", Means: "the command can signal the gateway's process group (it could end its own session)",
			Remedy: "Linux 6.12 or newer has Landlock ABI 6, which confines signals",
			run: func(context.Context, *Plan) Result {
				return landlockScope(landlockABI(), landlockWrites("/tmp", landlockABI()))
			}},
	}
}

const mendLandlock = "a kernel with CONFIG_SECURITY_LANDLOCK, and landlock among the lsm= of its command line"

// statusField reads one line of /proc/PID/status.
func statusField(file, name string) (string, error) {
	text, err := readSmall(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("%s has no %s", file, name)
}

func statusIs(file, name, want string) Result {
	got, err := statusField(file, name)
	switch {
	case err != nil:
		return notHeld("%v", err)
	case got != want:
		return notHeld("%s is %s", name, got)
	}
	return held("%s %s", name, got)
}

func noCapabilities(file string) Result {
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		got, err := statusField(file, set)
		if err != nil {
			return notHeld("%v", err)
		}
		if strings.Trim(got, "0") != "" {
			return notHeld("%s is %s", set, got)
		}
	}
	return held("inheritable, permitted, effective, bounding and ambient sets are empty")
}

// idRange is a line of /proc/PID/uid_map.
type idRange struct{ inside, outside, size int64 }

func readMap(file string) ([]idRange, error) {
	text, err := readSmall(file)
	if err != nil {
		return nil, err
	}
	var list []idRange
	for line := range strings.Lines(text) {
		var r idRange
		if _, err := fmt.Sscan(line, &r.inside, &r.outside, &r.size); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		list = append(list, r)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s is empty", file)
	}
	return list, nil
}

func notRoot(uid int, uidMap string) Result {
	if uid == 0 {
		return notHeld("uid 0")
	}
	ranges, err := readMap(uidMap)
	if err != nil {
		return notHeld("%v", err)
	}
	for _, r := range ranges {
		if at := int64(uid) - r.inside; at >= 0 && at < r.size {
			if r.outside+at == 0 {
				return notHeld("uid %d is root outside", uid)
			}
			return held("uid %d, outside %d", uid, r.outside+at)
		}
	}
	return notHeld("uid %d is not mapped: what it is outside cannot be told", uid)
}

// oneMapping wants each map to have one id in it: the process's own.
func oneMapping(files map[string]int) Result {
	for file, own := range files {
		ranges, err := readMap(file)
		if err != nil {
			return notHeld("%v", err)
		}
		if len(ranges) != 1 || ranges[0].size != 1 || ranges[0].inside != int64(own) || ranges[0].outside == 0 {
			n := int64(0)
			for _, r := range ranges {
				n += r.size
			}
			return notHeld("%s maps %d ids", filepath.Base(file), n)
		}
	}
	return held("one uid and one gid are mapped, and they are not 0")
}

// closedProcess wants what is private in a process's directory below /proc to be unreadable.
func closedProcess(dir string) Result {
	var open []string
	for _, name := range []string{"mem", "environ", "maps"} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		f.Close()
		open = append(open, name)
	}
	if _, err := os.ReadDir(filepath.Join(dir, "fd")); err == nil {
		open = append(open, "fd")
	}
	if _, err := os.Readlink(filepath.Join(dir, "root")); err == nil {
		open = append(open, "root")
	}
	if len(open) > 0 {
		return notHeld("%s of %s can be opened", strings.Join(open, ", "), dir)
	}
	if _, err := os.Stat(dir); err != nil {
		return notHeld("%v", err)
	}
	return held("mem, environ, maps, fd and root are refused")
}

func noSetID(dir string) Result {
	f, err := os.CreateTemp(dir, ".postern-inspect-")
	if err != nil {
		return notHeld("nothing to try it on: %v", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	for _, bit := range []uint32{unix.S_ISUID, unix.S_ISGID} {
		if err := unix.Fchmod(int(f.Fd()), 0o700|bit); err == nil {
			return notHeld("mode %04o could be set", 0o700|bit)
		} else if !errors.Is(err, unix.EPERM) {
			return notHeld("refused for another reason: %v", err)
		}
	}
	return held("EPERM")
}

// landlockABI is the version of Landlock that this kernel has, 0 for none.
func landlockABI() int {
	const version = 1 // flag of landlock_create_ruleset: answer with the ABI
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// landlockWrites makes a whiteout, a character device that overlay file systems let every user make. The sandbox's rules allow no
// device anywhere, and nothing but Landlock refuses this one.
func landlockWrites(dir string, abi int) Result {
	if abi == 0 {
		return unavailable("this kernel has no Landlock")
	}
	name := filepath.Join(dir, ".postern-inspect-"+strconv.Itoa(os.Getpid()))
	switch err := unix.Mknod(name, unix.S_IFCHR|0o600, 0); {
	case err == nil:
		_ = unix.Unlink(name)
		return notHeld("a device node could be made in %s", dir)
	case errors.Is(err, unix.EACCES):
		return held("ABI %d; a device node in %s is refused", abi, dir)
	default:
		return notHeld("refused, but not by Landlock: %v", err)
	}
}

// landlockScope goes by the version: a rule about signals shows only against a process of the host. The rules about files stand or fall
// with it, since all are put in force at once.
func landlockScope(abi int, writes Result) Result {
	const scope = 6 // the version that brought scopes
	switch {
	case abi < scope:
		return unavailable("ABI %d", abi)
	case writes.Status != Held:
		return notHeld("no rules are in force")
	}
	return held("ABI %d", abi)
}

package native

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// nobody is the overflow uid and gid of Linux: who the command is when nothing better is known.
const nobody = 65534

var errRootIdentity = errors.New("the command never runs as root")

// identify says who the command is; the package comment has the rule.
func (s *Spec) identify(euid, egid int, sudoUID, sudoGID string) (Identity, error) {
	if euid != 0 {
		self := Identity{uint32(euid), uint32(egid)}
		if s.Identity != (Identity{}) && s.Identity != self {
			return Identity{}, &Error{Op: "identity", Err: fmt.Errorf("uid %d cannot run a command as uid %d", euid, s.Identity.UID), Hint: "only root can choose the command's uid"}
		}
		return self, nil
	}
	if s.Identity != (Identity{}) {
		if s.Identity.UID == 0 || s.Identity.GID == 0 {
			return Identity{}, &Error{Op: "identity", Err: errRootIdentity}
		}
		return s.Identity, nil
	}
	uid, errU := strconv.ParseUint(sudoUID, 10, 32)
	gid, errG := strconv.ParseUint(sudoGID, 10, 32)
	if errU == nil && errG == nil && uid != 0 && gid != 0 {
		return Identity{uint32(uid), uint32(gid)}, nil
	}
	var st unix.Stat_t
	if s.Workdir != "" && unix.Stat(s.Workdir, &st) == nil && st.Uid != 0 && st.Gid != 0 {
		return Identity{st.Uid, st.Gid}, nil
	}
	return Identity{nobody, nobody}, nil
}

// swap is an id mapping in which two ids change places and all others stay what they are.
func swap(a, b uint32) []syscall.SysProcIDMap {
	lo, hi := int(min(a, b)), int(max(a, b))
	const all = 1<<32 - 1 // the last id is invalid
	var m []syscall.SysProcIDMap
	add := func(from, to, size int) {
		if size > 0 {
			m = append(m, syscall.SysProcIDMap{ContainerID: from, HostID: to, Size: size})
		}
	}
	if lo == hi {
		add(0, 0, all)
		return m
	}
	add(0, 0, lo)
	add(lo, hi, 1)
	add(lo+1, lo+1, hi-lo-1)
	add(hi, lo, 1)
	add(hi+1, hi+1, all-hi-1)
	return m
}

// idmaps makes the user namespaces that idmapped mounts refer to, one for each pair of owner and command.
type idmaps struct {
	to   Identity
	open map[Identity]*os.File
}

// namespace returns a user namespace in which the owner's ids and the command's have changed places. A user namespace needs a process
// to be born: a child is started in it and killed again before it has done anything.
func (m *idmaps) namespace(owner Identity) (*os.File, error) {
	if f := m.open[owner]; f != nil {
		return f, nil
	}
	p, err := os.StartProcess("/proc/self/exe", []string{InitName, "never"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL,
			UidMappings: swap(owner.UID, m.to.UID), GidMappings: swap(owner.GID, m.to.GID), GidMappingsEnableSetgroups: true,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.Pid))
	p.Kill()
	p.Wait()
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	m.open[owner] = f
	return f, nil
}

func (m *idmaps) close() {
	for _, f := range m.open {
		f.Close()
	}
}

package native

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Entry is something that every sandbox has in its file system, or hides in it, with the reason. The reference page is made of these.
type Entry struct {
	Path   string
	Kind   string // "read-only", "private", "masked", "fresh", "device"
	Reason string
}

// systemEntries are bound read-only where the host has them. Nothing of "/" that is not here is in the sandbox.
func systemEntries() []Entry {
	const ro = "read-only"
	return []Entry{
		{"/usr", ro, "programs and libraries"},
		{"/bin", ro, "programs, where it is no link into /usr"},
		{"/sbin", ro, "programs"},
		{"/lib", ro, "libraries"},
		{"/lib32", ro, "libraries"},
		{"/lib64", ro, "the dynamic linker"},
		{"/libx32", ro, "libraries"},
		{"/etc", ro, "configuration, with the masks below"},
		{"/opt", ro, "software that is not in packages"},
		{"/nix", ro, "the Nix store and profiles"},
		{"/gnu", ro, "the Guix store"},
		{"/var/lib/dpkg", ro, "which packages are installed (Debian)"},
		{"/var/lib/rpm", ro, "which packages are installed (Red Hat)"},
		{"/var/lib/pacman", ro, "which packages are installed (Arch)"},
		{"/var/lib/ca-certificates", ro, "trust stores that /etc links to (SUSE)"},
		{"/var/cache/fontconfig", ro, "fonts, for browsers and PDF tools"},
	}
}

// maskedEntries are hidden below what is bound. They are unreadable to most users anyway; an agent needs none of them.
func maskedEntries() []Entry {
	const m = "masked"
	var list []Entry
	add := func(reason string, paths ...string) {
		for _, p := range paths {
			list = append(list, Entry{p, m, reason})
		}
	}
	add("password hashes", "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/security/opasswd")
	add("host keys", "/etc/ssh", "/etc/ssl/private", "/etc/pki/tls/private", "/etc/krb5.keytab", "/etc/letsencrypt")
	add("who may become root", "/etc/sudoers", "/etc/sudoers.d", "/etc/polkit-1")
	add("container engines and clusters", "/etc/docker", "/etc/containerd", "/etc/containers/auth.json", "/etc/kubernetes", "/etc/rancher", "/etc/cni")
	add("network secrets", "/etc/NetworkManager/system-connections", "/etc/wireguard", "/etc/ppp", "/etc/ipsec.secrets", "/etc/openvpn", "/etc/netplan")
	add("repository passwords", "/etc/apt/auth.conf", "/etc/apt/auth.conf.d", "/etc/netrc")
	add("mail and service secrets", "/etc/exim4/passwd.client", "/etc/postfix/sasl_passwd", "/etc/msmtprc", "/etc/cups", "/etc/credstore", "/etc/credstore.encrypted")
	add("the gateway's own configuration", "/etc/postern")
	return list
}

// procEntries are what of a fresh /proc is hidden or made read-only: the files in it that are not about this sandbox's processes.
func procEntries() []Entry {
	const why = "about the kernel or the host, not about the sandbox"
	return []Entry{
		{"/proc/sys", "read-only", "kernel settings"},
		{"/proc/irq", "read-only", why},
		{"/proc/bus", "read-only", why},
		{"/proc/fs", "read-only", why},
		{"/proc/sysrq-trigger", "masked", "commands to the kernel"},
		{"/proc/kcore", "masked", "the kernel's memory"},
		{"/proc/kmsg", "masked", "the kernel's log"},
		{"/proc/kallsyms", "masked", "kernel addresses"},
		{"/proc/keys", "masked", "names of keys in keyrings"},
		{"/proc/key-users", "masked", "names of keys in keyrings"},
		{"/proc/timer_list", "masked", why},
		{"/proc/sched_debug", "masked", "names of the host's processes"},
		{"/proc/latency_stats", "masked", why},
		{"/proc/interrupts", "masked", "keystroke timing"},
		{"/proc/acpi", "masked", "hardware controls"},
		{"/proc/asound", "masked", "hardware"},
		{"/proc/scsi", "masked", "hardware"},
	}
}

// scratchEntries are private and writable; they share one tmpfs, whose size is Limits.Scratch.
func scratchEntries() []Entry {
	const p = "private"
	return []Entry{
		{"/tmp", p, "an empty tmpfs"},
		{"/var/tmp", p, "an empty tmpfs"},
		{"/run", p, "an empty tmpfs: the host's has the sockets of every daemon"},
		{"/dev/shm", p, "an empty tmpfs, not executable"},
	}
}

func deviceNodes() []string {
	return []string{"null", "zero", "full", "random", "urandom", "tty"}
}

// Layout lists everything that a sandbox has besides what its Spec names.
func Layout() []Entry {
	list := slices.Concat(systemEntries(), maskedEntries(), scratchEntries(), []Entry{
		{"the home directory", "private", "an empty tmpfs at the path that it has on the host"},
		{"/proc", "fresh", "the sandbox's own processes and no others"},
	}, procEntries())
	for _, name := range deviceNodes() {
		list = append(list, Entry{"/dev/" + name, "device", "harmless device"})
	}
	return append(list,
		Entry{"/dev/pts, /dev/ptmx", "fresh", "new terminals for the sandbox; none of the host's"},
		Entry{"/dev/console", "device", "the terminal that the command was started on, if it was"},
		Entry{"/sys", "absent", "the host's hardware and drivers"},
	)
}

// apart cuts the new mount namespace off from the host's. It is the first thing that needs a capability in the new user namespace.
func apart() error {
	err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSYS):
		return &Error{Op: "mounts", Err: err, Hint: "postern needs Linux 5.12 or newer"}
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return &Error{Op: "mounts", Err: err, Hint: "this machine lets you make a user namespace but not use it, as AppArmor does on Ubuntu: run `postern doctor`, which prints the profile that permits postern alone"}
	}
	return &Error{Op: "mounts", Err: err}
}

// begin makes the two file systems of the sandbox and lays the first over "/", where only its descriptor reaches it.
func begin(p *plan, blobs int) (*tree, error) {
	root, err := newFilesystem("tmpfs", attrWrite, "mode=0755", "size="+strconv.Itoa(blobs+16<<20))
	if err != nil {
		return nil, err
	}
	size := "size=50%"
	if p.Limits.Scratch > 0 {
		size = "size=" + strconv.FormatInt(p.Limits.Scratch, 10)
	}
	scratch, err := newFilesystem("tmpfs", attrWrite, "mode=0755", size)
	if err != nil {
		return nil, err
	}
	t := &tree{root: root, scratch: scratch, own: map[uint64]bool{}}
	for _, fd := range []int{root, scratch} {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, err
		}
		t.own[st.Dev] = true
	}
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, fmt.Errorf("mount the new root: %w", err)
	}
	for _, dir := range []string{".postern", ".postern/files", ".postern/hidden"} {
		if err := unix.Mkdirat(root, dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := unix.Mknodat(root, ".postern/nothing", unix.S_IFREG, 0); err != nil {
		return nil, err
	}
	return t, unix.Fchmodat(root, ".postern/hidden", 0, 0)
}

// system binds the host's part of the root.
func (t *tree) system() error {
	for _, e := range systemEntries() {
		target, err := os.Readlink(e.Path)
		if err == nil && path.Dir(e.Path) == "/" {
			if err := unix.Symlinkat(target, t.root, e.Path[1:]); err != nil {
				return &Error{Op: "link", Path: e.Path, Err: err}
			}
			continue
		}
		if _, err := t.bindHost(e.Path, e.Path, attrRead); err != nil {
			return &Error{Op: "mount", Path: e.Path, Err: err}
		}
	}
	return nil
}

// private binds directories of the scratch file system at the places that are the command's own. To be cloned from it must be mounted
// somewhere: over the host's /dev, which has served by now, and with which it goes.
func (t *tree) private(home string) error {
	if err := unix.MoveMount(t.scratch, "", unix.AT_FDCWD, "/dev", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount scratch: %w", err)
	}
	places := []struct {
		name, at string
		mode     uint32
		attrs    uint64
	}{
		{"tmp", "/tmp", 0o1777, attrWrite},
		{"vartmp", "/var/tmp", 0o1777, attrWrite},
		{"run", "/run", 0o755, attrWrite},
		{"shm", "/dev/shm", 0o1777, attrData},
		{"home", home, 0o700, attrWrite},
	}
	for _, p := range places {
		if err := unix.Mkdirat(t.scratch, p.name, p.mode); err != nil {
			return err
		}
		if err := unix.Fchmodat(t.scratch, p.name, p.mode, 0); err != nil {
			return err
		}
		fd, err := unix.Openat(t.scratch, p.name, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = t.bind(fd, p.at, p.attrs)
		unix.Close(fd)
		if err != nil {
			return &Error{Op: "mount", Path: p.at, Err: err}
		}
	}
	for link, to := range map[string]string{"var/run": "/run", "var/lock": "/run/lock"} {
		if err := unix.Symlinkat(to, t.root, link); err != nil {
			return err
		}
	}
	return unix.Mkdirat(t.scratch, "run/lock", 0o1777)
}

// devices makes /dev. The nodes are the host's own: a user namespace cannot make any.
func (t *tree) devices(c console) error {
	for _, name := range deviceNodes() {
		found, err := t.bindHost("/dev/"+name, "/dev/"+name, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return &Error{Op: "mount", Path: "/dev/" + name, Err: err}
		}
		if !found {
			return &Error{Op: "mount", Path: "/dev/" + name, Err: unix.ENOENT}
		}
	}
	pts, err := newFilesystem("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "ptmxmode=0666", "mode=0620")
	if err != nil {
		return err
	}
	at, err := t.make("/dev/pts", true)
	if err == nil {
		err = attach(pts, at)
	}
	if err != nil {
		return &Error{Op: "mount", Path: "/dev/pts", Err: err}
	}
	for _, l := range [][2]string{{"ptmx", "pts/ptmx"}, {"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}} {
		if err := unix.Symlinkat(l[1], t.root, "dev/"+l[0]); err != nil {
			return err
		}
	}
	return t.console(c)
}

// console binds the terminal at /dev/console, where ttyname(3) finds it.
func (t *tree) console(c console) error {
	if c.Path == "" {
		return nil
	}
	fd, err := unix.Open(c.Path, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil // it was opened in another mount namespace, or closed since: the descriptor works all the same
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || uint64(st.Rdev) != c.Rdev {
		return nil
	}
	at, err := t.make("/dev/console", false)
	if err != nil {
		return err
	}
	clone, err := cloneTree(fd, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return err
	}
	return attach(clone, at)
}

// proc mounts a fresh /proc of the new pid namespace. The kernel allows that only where the host's is seen without masks of its own.
func (t *tree) proc() error {
	fs, err := newFilesystem("proc", attrData)
	if err != nil {
		hint := ""
		if errors.Is(err, unix.EPERM) {
			hint = "parts of /proc are masked here, as container engines do: start the outer container with --security-opt systempaths=unconfined"
		}
		return &Error{Op: "mount", Path: "/proc", Err: err, Hint: hint}
	}
	at, err := t.make("/proc", true)
	if err != nil {
		return err
	}
	if err := attach(fs, at); err != nil {
		return &Error{Op: "mount", Path: "/proc", Err: err}
	}
	return nil
}

// hide masks and write-protects. It comes last: what is hidden here is hidden whatever was mounted before.
func (t *tree) hide(extra []string) error {
	for _, e := range slices.Concat(maskedEntries(), procEntries()) {
		if err := t.cover(e.Path, e.Kind == "masked"); err != nil {
			return err
		}
	}
	for _, p := range extra {
		if err := t.cover(p, true); err != nil {
			return err
		}
	}
	return nil
}

// cover masks p, or makes it read-only, if it is there.
func (t *tree) cover(p string, mask bool) error {
	fd, err := t.open(p)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if errors.Is(err, unix.ELOOP) { // a link: what it leads to is masked under its own name, or is not in the sandbox
		fd, err = t.follow(p)
		if err != nil {
			return nil
		}
	}
	if err != nil {
		return &Error{Op: "mask", Path: p, Err: err}
	}
	src := fd
	if mask {
		if src, err = t.nothing(fd); err != nil {
			return err
		}
		defer unix.Close(src)
	}
	clone, err := cloneTree(src, attrRead|unix.MOUNT_ATTR_NOEXEC)
	if err == nil {
		err = attach(clone, fd)
	}
	if err != nil {
		return &Error{Op: "mask", Path: p, Err: err}
	}
	return nil
}

// nothing opens what stands in for a masked object: an empty file, or an empty directory, that nobody may open.
func (t *tree) nothing(fd int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, err
	}
	name := ".postern/nothing"
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		name = ".postern/hidden"
	}
	return unix.Openat(t.root, name, unix.O_PATH|unix.O_CLOEXEC, 0)
}

// finish makes the new root the root, drops the host's, and seals the result. There is one unmount in all of the start: each waits for
// every processor.
func (t *tree) finish() error {
	if err := unix.Fchdir(t.root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the host's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if err != nil {
		return fmt.Errorf("seal the root: %w", err)
	}
	return nil
}

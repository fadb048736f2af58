package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"postern/internal/sandbox/inspect"
	"postern/internal/sandbox/native"
)

// machine is what doctor knows of the host, read before anything else: a hardened process cannot read it any more.
type machine struct {
	euid       int
	release    string // of the kernel
	program    string // path of this binary
	filtered   bool   // this process stands behind a seccomp filter, as in a container
	namespaces map[string]string
	witness    inspect.Witness

	// Kernel settings as text, "" where the kernel does not have them.
	maxUserNamespaces string
	unprivilegedClone string // Debian's kernel.unprivileged_userns_clone
	apparmorUserns    string // Ubuntu's kernel.apparmor_restrict_unprivileged_userns
	profile           string // AppArmor's, of this process
}

func lookAtMachine() machine {
	m := machine{
		euid: os.Geteuid(), namespaces: map[string]string{},
		maxUserNamespaces: setting("/proc/sys/user/max_user_namespaces"),
		unprivilegedClone: setting("/proc/sys/kernel/unprivileged_userns_clone"),
		apparmorUserns:    setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
		profile:           setting("/proc/self/attr/current"),
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.release = unix.ByteSliceToString(name.Release[:])
	}
	if path, err := os.Executable(); err == nil {
		m.program = path
	}
	if mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err == nil {
		m.filtered = mode != 0
	}
	for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		if link, err := os.Readlink("/proc/self/ns/" + kind); err == nil {
			m.namespaces[kind] = link
		}
	}
	if w, err := inspect.ReadWitness("/proc/self"); err == nil {
		m.witness = w
	}
	return m
}

func setting(file string) string {
	text, err := readFile(file, maxKernelFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// examine judges the host, knowing whether a sandbox started on it, and what went wrong at the first attempt.
func (m machine) examine(started bool, failure error, notes []string) map[string]outcome {
	return map[string]outcome{
		"machine.kernel":          m.kernel(),
		"machine.user_namespaces": m.userNamespaces(started),
		"machine.apparmor":        m.apparmor(started),
		"machine.idmap":           m.idmap(started, failure, notes),
	}
}

func (m machine) kernel() outcome {
	const major, minor = 5, 14 // SO_NETNS_COOKIE
	first, rest, _ := strings.Cut(m.release, ".")
	second := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	a, errA := strconv.Atoi(first)
	b, errB := strconv.Atoi(second)
	switch {
	case errA != nil || errB != nil:
		return notHeld("Linux %q: cannot tell its version", m.release)
	case a < major || a == major && b < minor:
		return notHeld("Linux %s", m.release)
	}
	return held("Linux %s", m.release)
}

func (m machine) userNamespaces(started bool) outcome {
	switch {
	case started:
		return held("one was made")
	case m.maxUserNamespaces == "0":
		return notHeld("user.max_user_namespaces is 0").mend("sudo sysctl -w user.max_user_namespaces=15000, and the same line in /etc/sysctl.d/ to keep it")
	case m.maxUserNamespaces == "":
		return notHeld("this kernel has none: /proc/sys/user is not there").mend("a kernel with CONFIG_USER_NS")
	case m.unprivilegedClone == "0" && m.euid != 0:
		return notHeld("kernel.unprivileged_userns_clone is 0").mend("run postern as root (the command runs as an unprivileged uid all the same), or sudo sysctl -w kernel.unprivileged_userns_clone=1")
	}
	return held("no setting forbids them")
}

// apparmor never advises to turn the restriction off: it protects the machine from all other programs.
func (m machine) apparmor(started bool) outcome {
	switch {
	case m.apparmorUserns == "" || m.apparmorUserns == "0":
		return held("kernel.apparmor_restrict_unprivileged_userns is not set")
	case m.euid == 0:
		return held("the restriction is not about root")
	case started, m.profile != "" && m.profile != "unconfined":
		return held("kernel.apparmor_restrict_unprivileged_userns is %s, and the profile %q permits postern", m.apparmorUserns, m.profile)
	}
	return notHeld("kernel.apparmor_restrict_unprivileged_userns is %s, and no profile permits %s", m.apparmorUserns, m.program).mend(apparmorRemedy(m.program))
}

// apparmorRemedy permits this one program, in the form that Ubuntu ships for browsers.
func apparmorRemedy(program string) string {
	escaped := strings.NewReplacer(`\`, `\\`, `"`, `\"`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `{`, `\{`, `}`, `\}`, `^`, `\^`, `@`, `\@`).Replace(program)
	return fmt.Sprintf(`permit postern alone. Write this to /etc/apparmor.d/postern:

abi <abi/4.0>,
include <tunables/global>

profile postern "%s" flags=(unconfined) {
  userns,

  include if exists <local/postern>
}

and load it: sudo apparmor_parser -r /etc/apparmor.d/postern`, escaped)
}

func (m machine) idmap(started bool, failure error, notes []string) outcome {
	var e *native.Error
	switch {
	case m.euid != 0:
		return nothingToHold("only root needs them: you own what you mount")
	case errors.As(failure, &e) && e.Op == "idmap":
		return notHeld("%v", e.Err)
	case !started:
		return nothingToHold(notStarted)
	}
	for _, n := range notes {
		if strings.Contains(n, "no idmapped mounts") {
			return unavailable("%s", n)
		}
	}
	return held("no mount needed what its file system lacks")
}

// diagnose says why a sandbox did not start. What the kernel answers is rarely the reason.
func diagnose(err error, m machine) outcome {
	evidence, remedy := split(err)
	o := notHeld("%s", evidence)
	if len(strings.TrimSpace(remedy)) > 0 && !strings.Contains(remedy, "postern doctor") {
		o = o.mend(remedy)
	}
	var e *native.Error
	refused := errors.Is(err, fs.ErrPermission) || strings.Contains(evidence, "operation not permitted") || strings.Contains(evidence, "permission denied")
	switch {
	case m.userNamespaces(false).Status != inspect.Held:
		return o.mend(m.userNamespaces(false).remedy)
	case refused && m.apparmor(false).Status != inspect.Held:
		return o.mend(m.apparmor(false).remedy)
	case refused && m.filtered && errors.As(err, &e) && e.Op == "namespaces":
		return o.mend("this is a container whose seccomp profile refuses new user namespaces: start it with a profile that allows clone, unshare, mount, pivot_root and setns, or run postern on the host")
	}
	return o
}

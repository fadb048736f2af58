package native

import "golang.org/x/sys/unix"

// Filter is one line of what system calls the command is refused, for people.
type Filter struct {
	Name   string   // what is refused
	Calls  []string // the system calls it concerns
	Answer string   // what the command sees
	Reason string
}

// Filters lists all that the seccomp filter refuses, and why.
func Filters() []Filter {
	list := []Filter{
		{"foreign architectures", nil, "the process is killed", "32-bit and x32 calls have other numbers and reach the same kernel code around this table"},
		{"calls that are newer than this table", nil, "ENOSYS", "nobody has looked at them yet; programs fall back as on an older kernel"},
	}
	for _, r := range filterTable() {
		list = append(list, r.Filter)
	}
	return list
}

const (
	namespaceFlags  = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	setIDBits       = unix.S_ISUID | unix.S_ISGID
	addrNoRandomize = 0x0040000 // linux/personality.h
	createFlags     = unix.O_CREAT | (unix.O_TMPFILE &^ unix.O_DIRECTORY)
)

func refuse(name, reason string, calls ...string) rule {
	return rule{Filter{name, calls, "EPERM", reason}, unix.EPERM, nil}
}

// when makes a rule conditional.
func (r rule) when(tests ...test) rule {
	r.tests = tests
	return r
}

// answering changes what the command sees.
func (r rule) answering(name string, errno unix.Errno) rule {
	r.Answer, r.errno = name, errno
	return r
}

// filterTable is the one place where refusals stand.
func filterTable() []rule {
	table := append(networkRules(), kernelRules()...)
	table = append(table, processRules()...)
	return append(table, modeRules()...)
}

func networkRules() []rule {
	const families = "only UNIX, INET, INET6 and NETLINK stay: VSOCK reaches the hypervisor's host around every network namespace, and PACKET, ALG, XDP, CAN, RDS, TIPC and the rest are kernel code that no agent needs"
	return []rule{
		refuse("address families", families, "socket").when(test{arg: 0, any: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}, not: true}),
		refuse("netlink but ROUTE", "reading interfaces and routes needs only ROUTE; NETFILTER, AUDIT, KOBJECT_UEVENT, CRYPTO and the rest talk to the kernel", "socket").
			when(test{arg: 0, any: []uint32{unix.AF_NETLINK}}, test{arg: 2, any: []uint32{unix.NETLINK_ROUTE}, not: true}),
		refuse("transport protocols but TCP and UDP", "SCTP, DCCP, UDP-Lite, MPTCP, ICMP and the rest load kernel modules and are not what the gateway captures", "socket").
			when(test{arg: 0, any: []uint32{unix.AF_INET, unix.AF_INET6}}, test{arg: 2, any: []uint32{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP}, not: true}).
			answering("EPROTONOSUPPORT", unix.EPROTONOSUPPORT),
		refuse("raw sockets", "only forged packets need them", "socket").
			when(test{arg: 0, any: []uint32{unix.AF_INET, unix.AF_INET6}}, test{arg: 1, mask: 0xf, any: []uint32{unix.SOCK_STREAM, unix.SOCK_DGRAM}, not: true}),
		refuse("socket pairs but UNIX", "as for address families", "socketpair").when(test{arg: 0, any: []uint32{unix.AF_UNIX}, not: true}),
		refuse("io_uring", "its operations run past this filter: a socket made in a ring is never seen here", "io_uring_setup", "io_uring_enter", "io_uring_register"),
		refuse("terminal injection", "TIOCSTI and TIOCLINUX type into the terminal that the host's shell reads next; TIOCSETD loads line disciplines, TIOCCONS takes the console", "ioctl").
			when(test{arg: 1, any: []uint32{unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSETD, unix.TIOCCONS}}),
	}
}

func kernelRules() []rule {
	return []rule{
		refuse("mounts", "the file system that was built is the file system that stays",
			"mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
		refuse("joining namespaces", "there is nothing to join that is not a way out", "setns"),
		refuse("new namespaces by unshare", "a new user namespace hands back every capability, and with them kernel code that only root could reach", "unshare").
			when(test{arg: 0, mask: namespaceFlags | unix.CLONE_NEWTIME, bits: true}),
		refuse("new namespaces by clone", "as for unshare", "clone").when(test{arg: 0, mask: namespaceFlags, bits: true}),
		refuse("clone3", "its flags lie in memory where no filter can read them; libraries fall back to clone", "clone3").answering("ENOSYS", unix.ENOSYS),
		refuse("bpf", "loads programs into the kernel", "bpf"),
		refuse("performance events", "a large attack surface that also observes other processes", "perf_event_open"),
		refuse("userfaultfd", "holds the kernel still in the middle of a copy: the usual help for exploits", "userfaultfd"),
		refuse("keyrings", "keyrings hold credentials of the session and are only partly namespaced", "keyctl", "add_key", "request_key"),
		refuse("modules and kernels", "only an administrator loads them", "init_module", "finit_module", "delete_module", "create_module", "get_kernel_syms", "query_module", "kexec_load", "kexec_file_load"),
		refuse("administration", "clocks, swap, quotas, accounting, reboot and the kernel's log belong to the host",
			"swapon", "swapoff", "reboot", "acct", "quotactl", "quotactl_fd", "syslog", "settimeofday", "clock_settime", "sethostname", "setdomainname", "vhangup", "nfsservctl"),
		refuse("file handles", "open files by number, past every path check", "name_to_handle_at", "open_by_handle_at"),
		refuse("file system events of a whole mount", "report what others do with files, by handle", "fanotify_init", "fanotify_mark"),
		refuse("ports and segments", "raw input and output, and 16-bit segments with a long record of kernel faults", "iopl", "ioperm", "modify_ldt"),
		refuse("obsolete calls", "nothing uses them but exploits", "lookup_dcookie", "uselib", "ustat", "sysfs", "_sysctl", "remap_file_pages"),
		refuse("gifted pages", "vmsplice puts user pages into pipes; nothing but exploits for its faults has much use for it", "vmsplice"),
		refuse("moving pages", "changes where other processes' memory lies", "migrate_pages", "move_pages"),
	}
}

func processRules() []rule {
	return []rule{
		refuse("attaching to processes", "a debugger may trace what it starts (PTRACE_TRACEME), and nothing else", "ptrace").
			when(test{arg: 0, any: []uint32{unix.PTRACE_ATTACH, unix.PTRACE_SEIZE}}),
		refuse("other processes' memory and descriptors", "reads secrets and sockets out of processes that did not offer them",
			"process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd"),
		refuse("personalities", "all but plain Linux and no randomisation, which debuggers ask for, revive old and untested memory layouts", "personality").
			when(test{arg: 0, any: []uint32{0, 0x0008, 0x0020000, 0x0020008, addrNoRandomize, 0xffffffff}, not: true}),
	}
}

// modeRules keep set-user-id and set-group-id bits from being made. In a working directory of root's they would be root's on the host.
func modeRules() []rule {
	const why = "in a writable mount such a file would carry its owner's power on the host"
	bits := func(arg int) test { return test{arg: arg, mask: setIDBits, bits: true} }
	create := func(arg int) test { return test{arg: arg, mask: createFlags, bits: true} }
	const name = "set-user-id and set-group-id bits"
	return []rule{
		refuse(name, why, "chmod", "fchmod", "mkdir", "mknod", "creat").when(bits(1)),
		refuse(name, why, "fchmodat", "fchmodat2", "mkdirat", "mknodat").when(bits(2)),
		refuse(name, why, "open").when(create(1), bits(2)),
		refuse(name, why, "openat").when(create(2), bits(3)),
		refuse("openat2", "its mode lies in memory where no filter can read it; libraries fall back to openat", "openat2").answering("ENOSYS", unix.ENOSYS),
	}
}

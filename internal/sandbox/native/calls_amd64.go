package native

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

func ownCalls() map[string]uint32 {
	return map[string]uint32{
		"open": unix.SYS_OPEN, "creat": unix.SYS_CREAT, "chmod": unix.SYS_CHMOD, "mkdir": unix.SYS_MKDIR, "mknod": unix.SYS_MKNOD,
		"iopl": unix.SYS_IOPL, "ioperm": unix.SYS_IOPERM, "modify_ldt": unix.SYS_MODIFY_LDT,
		"create_module": unix.SYS_CREATE_MODULE, "get_kernel_syms": unix.SYS_GET_KERNEL_SYMS, "query_module": unix.SYS_QUERY_MODULE,
		"uselib": unix.SYS_USELIB, "ustat": unix.SYS_USTAT, "sysfs": unix.SYS_SYSFS, "_sysctl": unix.SYS__SYSCTL,
	}
}

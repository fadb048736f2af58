package native

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

func ownCalls() map[string]uint32 { return nil }

package image

import (
	"debug/elf"

	"golang.org/x/sys/unix"
)

const (
	machine   = elf.EM_AARCH64
	auditArch = unix.AUDIT_ARCH_AARCH64
	segment   = 65536 // largest page size
	endOfText = "\x00\x00\x20\xd4LPFD"
)

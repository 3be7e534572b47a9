package image

import (
	"debug/elf"

	"golang.org/x/sys/unix"
)

const (
	machine   = elf.EM_X86_64
	auditArch = unix.AUDIT_ARCH_X86_64
	segment   = 4096 // largest page size
	endOfText = "\x0f\x0bPFLDED"
)

package filter

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The tables are those of golang.org/x/sys/unix, one "number name" a line;
// `go test ./sandbox/internal/filter -run TestTables -update` writes them anew.

//go:embed calls_amd64.txt
var callsAMD64 string

//go:embed calls_arm64.txt
var callsARM64 string

// calls returns the number of each system call of an architecture.
func calls(arch Arch) (map[string]uint32, error) {
	var text string
	switch arch {
	case AMD64:
		text = callsAMD64
	case ARM64:
		text = callsARM64
	default:
		return nil, fmt.Errorf("architecture %q has no table of system calls; there are %s and %s", arch, AMD64, ARM64)
	}
	out := make(map[string]uint32, 400)
	for line := range strings.Lines(text) {
		nr, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		v, err := strconv.ParseUint(nr, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("cannot read the table of system calls of %s: %w", arch, err)
		}
		out[name] = uint32(v)
	}
	return out, nil
}

func auditArch(arch Arch) uint32 {
	if arch == ARM64 {
		return unix.AUDIT_ARCH_AARCH64
	}
	return unix.AUDIT_ARCH_X86_64
}

// Number returns the number of the system call name on arch, and whether arch
// has it.
func Number(arch Arch, name string) (uint32, bool) {
	table, err := calls(arch)
	if err != nil {
		return 0, false
	}
	nr, ok := table[name]
	return nr, ok
}

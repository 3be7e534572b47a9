// Package filter compiles the names of system calls that a pen may use into a
// seccomp program, and can say by itself what that program answers. It never
// installs a filter and never looks at the host.
package filter

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"golang.org/x/sys/unix"
)

// Names of the bases that Compile starts from.
const (
	Default = "default" // what ordinary programs, compilers and interpreters use
	Strict  = "strict"  // Default without what only servers, debuggers and administrators use
)

// Arch is a processor architecture, named as Go names it.
type Arch string

// Architectures that a filter can be compiled for.
const (
	AMD64 Arch = "amd64"
	ARM64 Arch = "arm64"
)

// Memfd says whether anonymous executable files may be made.
type Memfd string

// Answers to memfd_create(2). Where vm.memfd_noexec (Linux 6.3) cannot be set
// for a pen with listed programs, the filter refuses the call instead.
const (
	MemfdAllowed Memfd = "" // the zero value
	MemfdRefused Memfd = "refused"
)

// Core says whether a pen may change its limit of core dumps.
type Core string

// Answers to setrlimit(2) for RLIMIT_CORE. The kernel starts a program that takes
// core dumps as root on the host for every limit but 1, also for 0: core(5). What
// may never dump must not come from 1 to 0.
const (
	CoreFree  Core = ""      // the zero value
	CoreNever Core = "never" // setting the limit does nothing, and seems to work
)

// Options are what a filter needs to know beyond names.
type Options struct {
	Arch  Arch // empty: the architecture that this program was built for
	Memfd Memfd
	Core  Core
}

// Program is a compiled filter; nothing in it changes after Compile.
type Program struct {
	Insns []unix.SockFilter
	Hash  string   // sha256 of Bytes, in hex
	Names []string // system calls that are allowed, always or for some arguments, sorted
	rules *rules
}

// Bytes returns the instructions as the kernel reads them (struct sock_filter,
// eight bytes each, little endian); seccomp(2).
func (p *Program) Bytes() []byte {
	b := make([]byte, 0, 8*len(p.Insns))
	for _, i := range p.Insns {
		b = binary.LittleEndian.AppendUint16(b, i.Code)
		b = append(b, i.Jt, i.Jf)
		b = binary.LittleEndian.AppendUint32(b, i.K)
	}
	return b
}

// Compile returns the filter for a base (Default or Strict) with the calls
// named in allow added and those in deny taken away; deny wins. An unknown name,
// a name that no pen may ever have, and a base that does not exist are errors.
func Compile(base string, allow, deny []string, opt Options) (*Program, error) {
	r, err := newRules(base, allow, deny, opt)
	if err != nil {
		return nil, fmt.Errorf("cannot compile filter %q: %w", base, err)
	}
	insns, err := assemble(r)
	if err != nil {
		return nil, fmt.Errorf("cannot compile filter %q: %w", base, err)
	}
	p := &Program{Insns: insns, Names: r.names(), rules: r}
	sum := sha256.Sum256(p.Bytes())
	p.Hash = hex.EncodeToString(sum[:])
	return p, nil
}

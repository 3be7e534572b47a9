package confine

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/filter"
)

// Offsets in struct seccomp_data, whose words are little endian here: seccomp(2).
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

// Answers of the filter. It never kills: a call that the list lacks by mistake is an
// error that is logged, and not the end of every session.
const (
	allow  = unix.SECCOMP_RET_ALLOW
	refuse = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	absent = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// install puts the filter on every thread at once: SECCOMP_FILTER_FLAG_TSYNC.
func install() error {
	prog, err := program()
	if err != nil {
		return err
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&prog[0])
	f := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	odd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&f)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	if odd != 0 {
		return fmt.Errorf("thread %d cannot take the filter: it has another one", odd)
	}
	return nil
}

// program assembles the filter for this machine: one comparison a call. The kernel
// keeps the unconditional answers in a bitmap (Linux 5.11) and runs nothing for them.
func program() ([]unix.SockFilter, error) {
	audit := uint32(unix.AUDIT_ARCH_X86_64)
	if runtime.GOARCH == "arm64" {
		audit = unix.AUDIT_ARCH_AARCH64
	}
	code := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: audit, SkipTrue: 1},
		bpf.RetConstant{Val: refuse},
		bpf.LoadAbsolute{Off: offNr, Size: 4},
	}
	for _, c := range calls() {
		nr, ok := filter.Number(filter.Arch(runtime.GOARCH), c.name)
		if !ok {
			continue // of the other architecture
		}
		body, err := c.body()
		if err != nil {
			return nil, err
		}
		code = append(append(code, bpf.JumpIf{Cond: bpf.JumpEqual, Val: nr, SkipFalse: uint8(len(body))}), body...)
	}
	raw, err := bpf.Assemble(append(code, bpf.RetConstant{Val: refuse}))
	if err != nil {
		return nil, fmt.Errorf("cannot assemble: %w", err)
	}
	out := make([]unix.SockFilter, len(raw))
	for i, x := range raw {
		out[i] = unix.SockFilter{Code: x.Op, Jt: x.Jt, Jf: x.Jf, K: x.K}
	}
	return out, nil
}

// body answers a call whose number has matched.
func (c call) body() ([]bpf.Instruction, error) {
	out := []bpf.Instruction{bpf.RetConstant{Val: c.answer}}
	for _, w := range slices.Backward(c.words) {
		code := []bpf.Instruction{bpf.LoadAbsolute{Off: offArgs + 4*uint32(w.at), Size: 4}}
		if w.mask != 0 {
			code = append(code, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: w.mask})
		}
		for i, v := range w.in { // a match goes behind the refusal that follows the last of them
			code = append(code, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(w.in) - i)})
		}
		out = append(append(code, bpf.RetConstant{Val: refuse}), out...)
	}
	if len(out) > 255 { // what the jump over it can skip
		return nil, fmt.Errorf("the rule of %s has %d instructions; this is a bug in pinfold, please report", c.name, len(out))
	}
	return out, nil
}

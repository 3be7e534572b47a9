package image

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Seccomp installs a filter on the calling process: seccomp(2), Linux 3.17. From
// here to the next In each step is checked against it, with 0 for what a register
// will hold: a step that the filter refuses where no refusal is wanted is an error
// of Link.
func (p *Program) Seccomp(f []unix.SockFilter, text string) {
	insns := make([]byte, 0, 8*len(f))
	for _, i := range f {
		insns = binary.LittleEndian.AppendUint16(insns, i.Code)
		insns = append(insns, i.Jt, i.Jf)
		insns = binary.LittleEndian.AppendUint32(insns, i.K)
	}
	at := p.place(insns)
	prog := Quads(fmt.Sprintf("{%s, %d instructions}", text, len(f)), uint64(len(f)), at)
	p.Call("seccomp", []Arg{Named(1, "SECCOMP_SET_MODE_FILTER"), Int(0), prog})
	p.filter = f
}

// HolderFilter allows PID 1 what it does once the target runs, and kills it for
// anything else.
func HolderFilter() []unix.SockFilter {
	allowed := []uint32{
		unix.SYS_PPOLL, unix.SYS_READ, unix.SYS_WAIT4, unix.SYS_WRITE, unix.SYS_RECVFROM, unix.SYS_CLOSE,
		unix.SYS_EXIT_GROUP, unix.SYS_RESTART_SYSCALL, unix.SYS_MUNMAP,
	}
	n := len(allowed)
	f := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 4},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditArch, Jf: uint8(n + 1)},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
	}
	for i, nr := range allowed {
		f = append(f, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jt: uint8(n - i)})
	}
	return append(f,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_PROCESS},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
}

// checkFilter fails the Program when the filter in force refuses a step that
// does not want to be refused.
func (p *Program) checkFilter(s Step, text string) {
	if p.filter == nil || s.Number == numberSet {
		return
	}
	args := s.Args
	for j := range args {
		if s.Take&(1<<j) != 0 {
			args[j] = 0
		}
	}
	ret, err := answer(p.filter, uint32(s.Number), args)
	if err != nil {
		p.fail("filter before %s: %v", text, err)
		return
	}
	ok := ret == unix.SECCOMP_RET_ALLOW || ret == unix.SECCOMP_RET_LOG
	if s.Flags&flagWant != 0 && s.Ignore != 0 { // Refused
		ok = ret == unix.SECCOMP_RET_ERRNO|uint32(s.Ignore)
	}
	if !ok {
		p.fail("the filter answers %#x to %s", ret, text)
	}
}

// answer runs a filter as the kernel does on struct seccomp_data: seccomp(2). It
// knows the instructions that the kernel lets filters have, but scratch memory.
func answer(f []unix.SockFilter, nr uint32, args [6]uint64) (uint32, error) {
	var data [64]byte
	le := binary.LittleEndian
	le.PutUint32(data[0:], nr)
	le.PutUint32(data[4:], auditArch)
	for j, a := range args {
		le.PutUint64(data[16+8*j:], a)
	}
	var a, x uint32
	for pc := 0; pc < len(f); pc++ {
		i := f[pc]
		switch i.Code {
		case unix.BPF_RET | unix.BPF_K:
			return i.K, nil
		case unix.BPF_RET | unix.BPF_A:
			return a, nil
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			if i.K > 60 || i.K%4 != 0 {
				return 0, fmt.Errorf("instruction %d loads offset %d", pc, i.K)
			}
			a = le.Uint32(data[i.K:])
		case unix.BPF_LD | unix.BPF_IMM:
			a = i.K
		case unix.BPF_LDX | unix.BPF_IMM:
			x = i.K
		case unix.BPF_MISC | unix.BPF_TAX:
			x = a
		case unix.BPF_MISC | unix.BPF_TXA:
			a = x
		default:
			n, err := compute(i, &a, x)
			if err != nil {
				return 0, fmt.Errorf("instruction %d: %w", pc, err)
			}
			pc += n
		}
	}
	return 0, fmt.Errorf("runs off its end")
}

// compute makes an arithmetic instruction or says how far a jump goes.
func compute(i unix.SockFilter, a *uint32, x uint32) (int, error) {
	v := i.K
	if i.Code&unix.BPF_X != 0 {
		v = x
	}
	var yes bool
	switch i.Code &^ unix.BPF_X {
	case unix.BPF_ALU | unix.BPF_AND:
		*a &= v
		return 0, nil
	case unix.BPF_ALU | unix.BPF_OR:
		*a |= v
		return 0, nil
	case unix.BPF_JMP | unix.BPF_JA:
		return int(i.K), nil
	case unix.BPF_JMP | unix.BPF_JEQ:
		yes = *a == v
	case unix.BPF_JMP | unix.BPF_JGT:
		yes = *a > v
	case unix.BPF_JMP | unix.BPF_JGE:
		yes = *a >= v
	case unix.BPF_JMP | unix.BPF_JSET:
		yes = *a&v != 0
	default:
		return 0, fmt.Errorf("code %#x is not known", i.Code)
	}
	if yes {
		return int(i.Jt), nil
	}
	return int(i.Jf), nil
}

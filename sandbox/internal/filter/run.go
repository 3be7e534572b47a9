package filter

import "golang.org/x/sys/unix"

// Run answers what the program returns for a system call: a SECCOMP_RET_*
// value. It runs the instructions as the kernel would; a jump out of the program
// or an instruction that the compiler never writes gives
// SECCOMP_RET_KILL_PROCESS.
func (p *Program) Run(arch uint32, nr int64, args [6]uint64) uint32 {
	ret, _ := p.run(arch, nr, args)
	return ret
}

// Cost returns how many instructions the program runs for a system call of its
// own architecture where the kernel keeps no bitmap of answers (before 5.11) or
// the answer hangs on arguments.
func (p *Program) Cost(nr int64, args [6]uint64) int {
	_, n := p.run(p.rules.audit, nr, args)
	return n
}

func (p *Program) run(arch uint32, nr int64, args [6]uint64) (ret uint32, steps int) {
	var a uint32
	for pc := 0; pc >= 0 && pc < len(p.Insns); pc++ {
		steps++
		i := p.Insns[pc]
		taken := false
		switch i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			v, ok := word(i.K, arch, nr, args)
			if !ok {
				return uint32(kill), steps
			}
			a = v
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= i.K
			continue
		case unix.BPF_RET | unix.BPF_K:
			return i.K, steps
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(i.K)
			continue
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			taken = a == i.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			taken = a >= i.K
		default:
			return uint32(kill), steps
		}
		if taken {
			pc += int(i.Jt)
		} else {
			pc += int(i.Jf)
		}
	}
	return uint32(kill), steps
}

// word reads struct seccomp_data: nr, arch, instruction pointer, six arguments.
func word(off, arch uint32, nr int64, args [6]uint64) (uint32, bool) {
	switch {
	case off == offNr:
		return uint32(nr), true
	case off == offArch:
		return arch, true
	case off < offArgs || off%4 != 0 || off >= offArgs+8*6:
		return 0, false
	}
	v := args[(off-offArgs)/8]
	if off%8 != 0 {
		v >>= 32
	}
	return uint32(v), true
}

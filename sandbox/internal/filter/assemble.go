package filter

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data; seccomp(2). Both architectures are little
// endian: the low word of an argument comes first.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

// maxInsns is the kernel's limit for one program: BPF_MAXINSNS, seccomp(2).
const maxInsns = 4096

// span is a run of system call numbers, from first up to the next span, with one rule.
type span struct {
	first uint32
	rule  rule
}

// assemble writes the filter: 1 a foreign architecture is killed, 2 a binary
// search finds the span of the number, 3 the span's rule answers. Until the
// span is found only the number and the architecture are looked at, so that
// the kernel (5.11 on) keeps unconditional answers in a bitmap and runs no
// instruction for them.
func assemble(r *rules) ([]unix.SockFilter, error) {
	tree, err := search(spans(r))
	if err != nil {
		return nil, err
	}
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: r.audit, SkipTrue: 1},
		bpf.RetConstant{Val: uint32(kill)},
		bpf.LoadAbsolute{Off: offNr, Size: 4},
	}
	raw, err := bpf.Assemble(append(prog, tree...))
	if err != nil {
		return nil, fmt.Errorf("cannot assemble: %w", err)
	}
	if len(raw) > maxInsns {
		return nil, fmt.Errorf("it has %d instructions and the kernel takes %d", len(raw), maxInsns)
	}
	out := make([]unix.SockFilter, len(raw))
	for i, x := range raw {
		out[i] = unix.SockFilter{Code: x.Op, Jt: x.Jt, Jf: x.Jf, K: x.K}
	}
	return out, nil
}

// spans cuts all 2^32 numbers into runs with the same rule.
func spans(r *rules) []span {
	var out []span
	add := func(first uint32, one rule) {
		if len(out) == 0 || !out[len(out)-1].rule.equal(one) {
			out = append(out, span{first, one})
		}
	}
	for nr := range r.last + 1 {
		one, ok := r.byNr[nr]
		if !ok {
			one = rule{otherwise: perm}
		}
		add(nr, one)
	}
	add(r.last+1, rule{otherwise: absent})
	return out
}

// search is a balanced tree of comparisons over the spans; each rule follows
// its leaf.
func search(s []span) ([]bpf.Instruction, error) {
	if len(s) == 1 {
		return answer(s[0].rule)
	}
	mid := len(s) / 2
	low, err := search(s[:mid])
	if err != nil {
		return nil, err
	}
	high, err := search(s[mid:])
	if err != nil {
		return nil, err
	}
	out := make([]bpf.Instruction, 0, 2+len(low)+len(high))
	if len(low) <= 255 { // what a conditional jump can skip
		out = append(out, bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: s[mid].first, SkipTrue: uint8(len(low))})
	} else {
		out = append(out,
			bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: s[mid].first, SkipFalse: 1},
			bpf.Jump{Skip: uint32(len(low))})
	}
	return append(append(out, low...), high...), nil
}

// answer is the code of one rule.
func answer(r rule) ([]bpf.Instruction, error) {
	var out []bpf.Instruction
	for _, c := range r.clauses {
		code, err := c.code()
		if err != nil {
			return nil, err
		}
		out = append(out, code...)
	}
	return append(out, bpf.RetConstant{Val: uint32(r.otherwise)}), nil
}

// code falls through to the next clause when a test does not hold.
func (c clause) code() ([]bpf.Instruction, error) {
	out := []bpf.Instruction{bpf.RetConstant{Val: uint32(c.then)}}
	for _, one := range slices.Backward(c.tests) {
		t, err := one.code(len(out))
		if err != nil {
			return nil, err
		}
		out = append(t, out...)
	}
	return out, nil
}

// code goes on behind itself when the test holds, and skips the following rest
// instructions when it does not.
func (t test) code(rest int) ([]bpf.Instruction, error) {
	n := len(t.in)
	if n == 0 || n+rest > 255 {
		return nil, errors.New("a test has no values or too many; this is a bug in pinfold, please report")
	}
	off := offArgs + 8*uint32(t.arg)
	if t.high {
		off += 4
	}
	out := []bpf.Instruction{bpf.LoadAbsolute{Off: off, Size: 4}}
	if t.mask != whole {
		out = append(out, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: t.mask})
	}
	for i, v := range t.in {
		left := n - 1 - i // comparisons that follow
		match, none := left, 0
		if t.not {
			match = left + rest
		}
		if left == 0 && !t.not {
			none = rest
		}
		out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(match), SkipFalse: uint8(none)})
	}
	return out, nil
}

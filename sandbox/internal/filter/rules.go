package filter

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// verdict is what a filter returns to the kernel: SECCOMP_RET_*, seccomp(2).
type verdict uint32

// Verdicts that a pen's filter gives.
const (
	allow  verdict = unix.SECCOMP_RET_ALLOW
	perm   verdict = unix.SECCOMP_RET_ERRNO | verdict(unix.EPERM)
	absent verdict = unix.SECCOMP_RET_ERRNO | verdict(unix.ENOSYS)
	done   verdict = unix.SECCOMP_RET_ERRNO // errno 0: the call does nothing and returns 0
	kill   verdict = unix.SECCOMP_RET_KILL_PROCESS
)

// test looks at the low 32 bits of one argument, which is all that the kernel
// takes of the arguments that filters look at: a number hidden behind high bits
// is compared as the kernel will read it.
type test struct {
	arg  int
	mask uint32 // all ones: the whole word
	in   []uint32
	not  bool // true: the masked word is in none of in
	high bool // look at the high 32 bits instead: of pointers, which the kernel takes whole
}

const whole = ^uint32(0)

func (t test) holds(args [6]uint64) bool {
	word := args[t.arg]
	if t.high {
		word >>= 32
	}
	return slices.Contains(t.in, uint32(word)&t.mask) != t.not
}

// clause gives its verdict when all of its tests hold.
type clause struct {
	tests []test
	then  verdict
}

func (c clause) holds(args [6]uint64) bool {
	return !slices.ContainsFunc(c.tests, func(t test) bool { return !t.holds(args) })
}

// rule is what a filter answers to one system call: the first clause that holds
// decides, then otherwise.
type rule struct {
	clauses   []clause
	otherwise verdict
}

func (r rule) decide(args [6]uint64) verdict {
	for _, c := range r.clauses {
		if c.holds(args) {
			return c.then
		}
	}
	return r.otherwise
}

func (r rule) equal(o rule) bool {
	return r.otherwise == o.otherwise && slices.EqualFunc(r.clauses, o.clauses, func(a, b clause) bool {
		return a.then == b.then && slices.EqualFunc(a.tests, b.tests, func(t, u test) bool {
			return t.arg == u.arg && t.mask == u.mask && t.not == u.not && t.high == u.high && slices.Equal(t.in, u.in)
		})
	})
}

// rules is the declarative form of a filter.
type rules struct {
	audit  uint32 // AUDIT_ARCH_*
	last   uint32 // the highest number that the table knows; above it, and in the x32 ABI, calls look absent
	byNr   map[uint32]rule
	byName map[string]rule
}

// decide answers as the filter must: the model that the compiled form is
// checked against.
func (r *rules) decide(arch uint32, nr int64, args [6]uint64) verdict {
	if arch != r.audit {
		return kill
	}
	n := uint32(nr)
	if n > r.last { // includes x32: bit 30
		return absent
	}
	if one, ok := r.byNr[n]; ok {
		return one.decide(args)
	}
	return perm
}

func (r *rules) names() []string {
	var out []string
	for name, one := range r.byName {
		lets := one.otherwise == allow || slices.ContainsFunc(one.clauses, func(c clause) bool { return c.then == allow })
		if lets {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// newRules joins moby's default profile, what this package takes off and narrows,
// and what policy added and took away, in that order.
func newRules(base string, added, denied []string, opt Options) (*rules, error) {
	arch := opt.Arch
	if arch == "" {
		arch = Arch(runtime.GOARCH)
	}
	table, err := calls(arch)
	if err != nil {
		return nil, err
	}
	if err := checkNames(added, denied); err != nil {
		return nil, err
	}
	byName, err := mobyRules(arch)
	if err != nil {
		return nil, err
	}
	drop := off()
	switch base {
	case Default:
	case Strict:
		drop = slices.Concat(drop, strictOff())
	default:
		return nil, fmt.Errorf("the bases are %q and %q", Default, Strict)
	}
	deleteAll(byName, drop)
	for _, name := range added {
		byName[name] = rule{otherwise: allow}
	}
	narrow(byName)
	deleteAll(byName, denied)
	if opt.Core == CoreNever {
		keepCore(byName)
	}
	if opt.Memfd == MemfdRefused {
		deleteAll(byName, []string{"memfd_create", "memfd_secret"})
	}
	for _, name := range lookAbsent() {
		byName[name] = rule{otherwise: absent}
	}
	return link(arch, table, byName), nil
}

func deleteAll(m map[string]rule, names []string) {
	for _, name := range names {
		delete(m, name)
	}
}

// link keeps the rules whose calls this architecture has, by their numbers.
func link(arch Arch, table map[string]uint32, byName map[string]rule) *rules {
	r := &rules{audit: auditArch(arch), byNr: map[uint32]rule{}, byName: map[string]rule{}}
	for _, nr := range table {
		r.last = max(r.last, nr)
	}
	for name, one := range byName {
		if nr, ok := table[name]; ok {
			r.byNr[nr], r.byName[name] = one, one
		}
	}
	return r
}

func checkNames(lists ...[]string) error {
	known := map[string]bool{}
	for _, arch := range []Arch{AMD64, ARM64} {
		table, err := calls(arch)
		if err != nil {
			return err
		}
		for name := range table {
			known[name] = true
		}
	}
	barred := never()
	var errs []error
	for i, names := range lists {
		for _, name := range names {
			why, no := barred[name]
			switch {
			case !known[name]:
				errs = append(errs, fmt.Errorf("unknown system call %q", name))
			case no && i == 0:
				errs = append(errs, fmt.Errorf("system call %q can never be allowed: %s", name, why))
			}
		}
	}
	return errors.Join(errs...)
}

// mobyRules evaluates moby's default profile for a process without capabilities
// on a kernel of any age.
func mobyRules(arch Arch) (map[string]rule, error) {
	out := map[string]rule{}
	for _, s := range seccomp.DefaultProfile().Syscalls {
		if !applies(s, arch) {
			continue
		}
		for _, name := range s.Names {
			one, err := convert(s, out[name])
			if err != nil {
				return nil, fmt.Errorf("cannot read moby's rule for %s: %w", name, err)
			}
			out[name] = one
		}
	}
	return out, nil
}

func applies(s *seccomp.Syscall, arch Arch) bool {
	if s.Includes != nil {
		if len(s.Includes.Caps) > 0 || len(s.Includes.Arches) > 0 && !slices.Contains(s.Includes.Arches, string(arch)) {
			return false
		}
	}
	return s.Excludes == nil || !slices.Contains(s.Excludes.Arches, string(arch))
}

// convert adds one entry of the profile to the rule that earlier entries made.
func convert(s *seccomp.Syscall, have rule) (rule, error) {
	if have.otherwise == 0 {
		have.otherwise = perm
	}
	switch {
	case s.Action == specs.ActErrno:
		return rule{otherwise: absent}, nil
	case s.Action != specs.ActAllow || len(s.Args) > 1:
		return rule{}, errors.New("its form is new to this package")
	case len(s.Args) == 0:
		return rule{otherwise: allow}, nil
	}
	a := s.Args[0]
	t := test{arg: int(a.Index), mask: whole, in: []uint32{uint32(a.Value)}}
	switch a.Op { //nolint:exhaustive // the profile uses no other, and default tells when it does
	case specs.OpEqualTo:
	case specs.OpMaskedEqual:
		t.mask, t.in = uint32(a.Value), []uint32{uint32(a.ValueTwo)}
	case specs.OpLessThan:
		t.in = nil
		for v := range uint32(a.Value) {
			t.in = append(t.in, v)
		}
	default:
		return rule{}, fmt.Errorf("operator %s is new to this package", a.Op)
	}
	have.clauses = append(slices.Clone(have.clauses), clause{tests: []test{t}, then: allow})
	return have, nil
}

// narrow replaces the rules of calls whose arguments matter, where they are
// allowed at all.
func narrow(byName map[string]rule) {
	for name, one := range maps.All(narrowed()) {
		if _, ok := byName[name]; ok {
			byName[name] = one
		}
	}
}

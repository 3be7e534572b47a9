// Package image owns the little program that is PID 1 of a pen: a list of system
// calls, an interpreter of about seventy instructions in Go assembler that makes
// them, and the static ELF image that holds both. It decides nothing and, but for
// Memfd, asks the kernel for nothing: what the steps are is package sandbox's
// business.
package image

import (
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Flags of a Step.
const (
	flagReg    = 1 << iota // X is a register
	flagWant               // another result than X fails
	flagDiffer             // jump when the result is not X
	flagEqual              // jump when the result is X
)

// numberSet is the number of the step that is no system call: its result is its
// first argument.
const numberSet = 0xffff

// Step is one system call as the interpreter reads it: 64 bytes.
type Step struct {
	Number uint16 // of the system call
	Index  uint16 // told when the step fails
	Take   uint8  // bit j: argument j is the number of a register
	Save   Reg    // gets the result
	Flags  uint8
	Ignore uint8 // an errno that counts as the result 0
	Args   [6]uint64
	X      int32 // operand of want and of jumps
	Jump   int32 // distance of the jump in bytes
}

// Program is the list of steps with their constants. It is built by its methods
// and does not change once Link has returned it without an error.
type Program struct {
	steps  []Step
	lines  []line
	labels map[string]int
	data   []byte
	dataAt uint64
	known  map[string]uint64
	where  []string // names of the processes, as In gave them
	folded string
	filter []unix.SockFilter // the one that binds the process at this point
	err    error
}

// line is what is printed for a step.
type line struct {
	text  string
	jump  string // label
	fold  string // printed once for all steps that share it
	where string // whose step it is
	call  *call
	args  int
}

// New returns an empty Program.
func New() *Program {
	return &Program{labels: map[string]int{}, known: map[string]uint64{}, dataAt: dataAddr()}
}

// In says whose steps follow: init or target. The seccomp filter, if any, no
// longer binds them.
func (p *Program) In(process string) {
	p.where = append(p.where, process)
	p.filter = nil
}

// Label names the next step for jumps.
func (p *Program) Label(name string) {
	if _, ok := p.labels[name]; ok {
		p.fail("label %s stands twice", name)
	}
	p.labels[name] = len(p.steps)
}

// Fold prints the steps that f adds as one line.
func (p *Program) Fold(text string, f func()) {
	p.folded = text
	f()
	p.folded = ""
}

// Call adds a system call. Parts are Arg and Opt values, arguments in order.
func (p *Program) Call(name string, args []Arg, opts ...Opt) {
	c := find(name)
	if c == nil {
		p.fail("no system call %s", name)
		return
	}
	if len(args) != c.args {
		p.fail("%s takes %d arguments, not %d", name, c.args, len(args))
		return
	}
	p.add(c, args, name+"("+joined(args)+")", opts)
}

// Set puts a value into a register; it is no system call.
func (p *Program) Set(r Reg, a Arg) {
	p.add(nil, []Arg{a}, "set "+r.String()+" to "+a.text, []Opt{{apply: func(s *Step) { s.Save = r }}})
}

// Test compares a register's content; it is no system call.
func (p *Program) Test(r Reg, o Opt) {
	p.add(nil, []Arg{Value(r)}, "test "+r.String(), []Opt{o})
}

// Goto goes on at a label; it is no system call.
func (p *Program) Goto(label string) {
	o := If(0, label)
	o.text = ""
	p.add(nil, []Arg{Int(0)}, "goto "+label, []Opt{o})
}

func (p *Program) add(c *call, args []Arg, text string, opts []Opt) {
	s := Step{Number: numberSet, Index: uint16(len(p.steps))}
	if c != nil {
		s.Number = c.number
	}
	for j, a := range args {
		s.Args[j] = a.value
		if a.data != nil {
			s.Args[j] = p.place(a.data)
		}
		if a.reg {
			s.Take |= 1 << j
		}
	}
	l := line{call: c, args: len(args), fold: p.folded}
	if n := len(p.where); n > 0 {
		l.where = p.where[n-1]
	}
	for _, o := range opts {
		o.apply(&s)
		text += o.text
		if o.label != "" {
			l.jump = o.label
		}
	}
	l.text = text
	p.steps = append(p.steps, s)
	p.lines = append(p.lines, l)
	p.checkFilter(s, text)
}

// place puts constant bytes into the image, once, and returns their address.
func (p *Program) place(b []byte) uint64 {
	if a, ok := p.known[string(b)]; ok {
		return a
	}
	for len(p.data)%8 != 0 {
		p.data = append(p.data, 0)
	}
	a := p.dataAt + uint64(len(p.data))
	p.data = append(p.data, b...)
	p.known[string(b)] = a
	return a
}

// Link resolves the labels and returns the first thing that went wrong while the
// Program was built: each is a bug of the caller.
func (p *Program) Link() (*Program, error) {
	for i, l := range p.lines {
		if l.jump == "" {
			continue
		}
		to, ok := p.labels[l.jump]
		if !ok || to >= len(p.steps) {
			p.fail("no step has the label %s", l.jump)
			break
		}
		p.steps[i].Jump = int32(stepSize * (to - i))
	}
	p.skip()
	if len(p.steps) >= numberSet {
		p.fail("%d steps are too many", len(p.steps))
	}
	if p.err != nil {
		return nil, p.err
	}
	return p, nil
}

func (p *Program) fail(format string, a ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("cannot build program: "+format+" (this is a bug in pinfold, please report)", a...)
	}
}

func joined(args []Arg) string {
	t := make([]string, len(args))
	for i, a := range args {
		t[i] = a.text
	}
	return strings.Join(t, ", ")
}

func errnoName(e syscall.Errno) string {
	if n := unix.ErrnoName(e); n != "" {
		return n
	}
	return fmt.Sprintf("errno %d", int(e))
}

package image

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// source hands out bytes; behind the last there are zeros.
type source struct{ in []byte }

func (s *source) n(limit int) int {
	if len(s.in) == 0 {
		return 0
	}
	v := s.in[0]
	s.in = s.in[1:]
	return int(v) % limit
}

// word is a number of any size: small ones and the edges more often.
func (s *source) word() int {
	edges := []int{0, 1, -1, 7, -4095, -4096, 1 << 31, -1 << 31, 1<<63 - 1, -1 << 63, 4095, 255}
	if i := s.n(16); i < len(edges) {
		return edges[i]
	}
	var v int
	for range 8 {
		v = v<<8 | s.n(256)
	}
	return v
}

// reg is one that the interpreter does not use itself.
func (s *source) reg() Reg { return RegStatus + Reg(s.n(numRegs-int(RegStatus))) }

// own is a register that a result may be kept in.
func (s *source) own() Reg { return RegPath + Reg(s.n(numRegs-int(RegPath))) }

func (s *source) value() Arg {
	if s.n(2) == 0 {
		return Value(s.own())
	}
	return Int(s.word())
}

// errno is one that the calls below often give.
func (s *source) errno() syscall.Errno {
	return []syscall.Errno{unix.EBADF, unix.ENOENT, unix.EINVAL, unix.EPERM, unix.ECHILD, unix.ENOTSOCK, unix.ENOTDIR, unix.EFAULT}[s.n(8)]
}

func label(i int) string { return fmt.Sprint("step", i) }

// opts are at most one of each kind: what saves, what ignores, and what compares. A jump backwards is for calls alone.
func (s *source) opts(i, steps int, isCall bool) []Opt {
	var out []Opt
	if s.n(3) == 0 {
		out = append(out, Save(s.own()))
	}
	if isCall && s.n(4) == 0 {
		return append(out, Refused(s.errno()))
	}
	if isCall && s.n(2) == 0 {
		out = append(out, Or(s.errno()))
	}
	to := i + 1 + s.n(steps-i)
	if isCall && s.n(4) == 0 {
		to = s.n(i + 1)
	}
	switch s.n(8) {
	case 0:
		return append(out, Want(s.n(4)))
	case 1:
		return append(out, If(int(int32(s.word())), label(to)))
	case 2:
		return append(out, Unless(int(int32(s.word())), label(to)))
	case 3:
		return append(out, UnlessValue(s.reg(), label(to)))
	}
	return out
}

// call adds a system call that does no harm and never waits.
func (s *source) call(p *Program, opts []Opt) {
	fd := func() Arg {
		if s.n(2) == 0 {
			return Int(s.n(40))
		}
		return s.value()
	}
	switch s.n(12) {
	case 0:
		p.Call("getpid", nil, opts...)
	case 1:
		p.Call("umask", []Arg{s.value()}, opts...)
	case 2:
		p.Call("close", []Arg{fd()}, opts...)
	case 3:
		p.Call("fcntl", []Arg{fd(), Named(unix.F_GETFD, "F_GETFD"), s.value()}, opts...)
	case 4:
		p.Call("dup3", []Arg{fd(), fd(), Int(0)}, opts...)
	case 5:
		p.Call("openat", []Arg{Named(unix.AT_FDCWD, "AT_FDCWD"), Text([]string{"/", "/dev/null", "/nonexistent", ""}[s.n(4)]), Int(unix.O_PATH), s.value()}, opts...)
	case 6:
		p.Call("chdir", []Arg{Text([]string{"/", "/dev", "/nonexistent"}[s.n(3)])}, opts...)
	case 7:
		p.Call("wait4", []Arg{Int(-1), Spare(), Named(unix.WNOHANG, "WNOHANG"), Null()}, opts...)
	case 8:
		p.Call("recvfrom", []Arg{fd(), Spare(), Int(s.n(256)), Named(unix.MSG_DONTWAIT, "MSG_DONTWAIT"), Null(), Null()}, opts...)
	case 9:
		p.Call("setsid", nil, opts...)
	case 10:
		p.Call("write", []Arg{fd(), Words("words", uint32(s.word()), 2, 3), Int(s.n(13))}, opts...)
	default:
		p.Call("prctl", []Arg{Named(unix.PR_SET_NAME, "PR_SET_NAME"), Text("fuzz"), s.value(), s.value(), s.value()}, opts...)
	}
}

// randomProgram builds a Program from any bytes. Its last step ends it.
func randomProgram(in []byte) (*Program, error) {
	s := &source{in: in}
	p := New()
	steps := 1 + s.n(40)
	for i := range steps {
		if s.n(8) == 0 {
			p.In([]string{"init", "target"}[s.n(2)])
		}
		p.Label(label(i))
		switch s.n(8) {
		case 0:
			p.Set(s.own(), s.value())
		case 1:
			o := s.opts(i, steps, false)
			if len(o) == 0 {
				o = []Opt{If(0, label(i+1))}
			}
			p.Test(s.reg(), o[0])
		case 2:
			p.Goto(label(i + 1 + s.n(steps-i)))
		default:
			s.call(p, s.opts(i, steps, true))
		}
	}
	p.Label(label(steps))
	p.Call("exit_group", []Arg{s.value()})
	return p.Link()
}

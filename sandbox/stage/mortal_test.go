package stage_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"pinfold/sandbox"
)

// mortalFlag makes the test binary a daemon that is there to be killed.
const mortalFlag = "--mortal"

// orders are what such a daemon does: one after the other.
type orders struct {
	Config sandbox.StageConfig
	Specs  []sandbox.Spec
	Attach int  // descriptors of each spec's attaches, beginning at 4
	Start  bool // open the last gates
	Adopt  []sandbox.Mark
}

// mortal starts pens for the connection that is descriptor 3, says how to find each
// before its start and again after it, and waits for its end.
func mortal(ctx context.Context, in io.Reader, out io.Writer) int {
	fail := func(err error) int { fmt.Fprintln(os.Stderr, "mortal:", err); return 1 }
	r := bufio.NewReader(in)
	var o orders
	line, err := r.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil {
		return fail(err)
	}
	o.Config.Stderr = os.Stderr
	s, err := sandbox.StartStage(ctx, o.Config)
	if err != nil {
		return fail(err)
	}
	conn := os.NewFile(3, "conn")
	var attach []*os.File
	for n := range o.Attach {
		attach = append(attach, os.NewFile(uintptr(4+n), "attach"))
	}
	for _, spec := range o.Specs {
		pen, err := s.Launch(ctx, conn, spec, attach)
		if err != nil {
			return fail(err)
		}
		if err := json.MarshalWrite(out, pen.Mark()); err != nil {
			return fail(err)
		}
		fmt.Fprintln(out)
		if _, err := r.ReadByte(); err != nil {
			return fail(err)
		}
		if !o.Start {
			continue
		}
		p, err := pen.Start(ctx)
		if err != nil {
			return fail(err)
		}
		defer p.Resize(1, 1) //nolint:errcheck // keeps it alive
		fmt.Fprintln(out)
	}
	for _, m := range o.Adopt {
		fmt.Fprintln(out, seen(ctx, s, m))
	}
	_, _ = io.Copy(io.Discard, r)
	return 0
}

// seen adopts a pen that runs echoes, and says in a line what came of it.
func seen(ctx context.Context, s *sandbox.Stage, m sandbox.Mark) string {
	p, err := s.Adopt(ctx, m)
	if errors.Is(err, sandbox.ErrGone) {
		return "gone: " + err.Error()
	}
	if err != nil {
		return err.Error()
	}
	if _, err := p.Stdin.WriteString("one\n"); err != nil {
		return err.Error()
	}
	b := make([]byte, 16)
	_, err = io.ReadFull(p.Stdout, b[:8])
	if err == nil {
		_, err = io.ReadFull(p.Stderr, b[8:])
	}
	if err == nil {
		err = p.CloseStdin()
	}
	var st sandbox.Status
	if err == nil {
		st, err = p.Wait(ctx)
	}
	if err == nil {
		err = p.Release(ctx)
	}
	return fmt.Sprintf("%q, exit %d, %v", b, st.Code, err)
}

// victim is such a daemon seen from the test.
type victim struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// config is what the stage of a bench is started with.
func (b *bench) config() sandbox.StageConfig {
	b.t.Helper()
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	return sandbox.StageConfig{
		Path: self, State: b.state, DynamicFirst: dynFirst, DynamicCount: dynCount, Cgroups: []sandbox.CgroupHier{{Dir: b.base}},
	}
}

// victim starts a daemon in b's place, whose own stage is ended.
func (b *bench) victim(start bool, attach []*os.File, specs ...sandbox.Spec) *victim {
	b.t.Helper()
	if b.Stage != nil {
		if err := b.Close(); err != nil {
			b.t.Fatal(err)
		}
	}
	return b.order(orders{Config: b.config(), Specs: specs, Attach: len(attach), Start: start}, nil, attach...)
}

// order starts a daemon, as an ordinary user where attr says so.
func (b *bench) order(o orders, attr *syscall.SysProcAttr, attach ...*os.File) *victim {
	b.t.Helper()
	v := &victim{t: b.t, cmd: exec.CommandContext(b.t.Context(), "/proc/self/exe", mortalFlag)}
	v.cmd.Stderr = os.Stderr
	v.cmd.SysProcAttr = attr
	v.cmd.ExtraFiles = append([]*os.File{b.conn}, attach...)
	in, err := v.cmd.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := v.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	v.in, v.out = in, bufio.NewReader(out)
	b.t.Cleanup(v.kill)
	if err := json.MarshalWrite(in, o); err != nil {
		b.t.Fatal(err)
	}
	v.say("\n")
	return v
}

func (v *victim) say(s string) {
	v.t.Helper()
	if _, err := io.WriteString(v.in, s); err != nil {
		v.t.Fatal(err)
	}
}

func (v *victim) line() []byte {
	v.t.Helper()
	line, err := v.out.ReadBytes('\n')
	if err != nil {
		v.t.Fatalf("the daemon said %q, %v", line, err)
	}
	return line
}

// next lets the daemon go on with its next pen.
func (v *victim) next() sandbox.Mark {
	v.t.Helper()
	var m sandbox.Mark
	if err := json.Unmarshal(v.line(), &m); err != nil {
		v.t.Fatal(err)
	}
	v.say(".")
	return m
}

// started is next for a daemon that starts its pens.
func (v *victim) started() sandbox.Mark {
	v.t.Helper()
	m := v.next()
	v.line()
	return m
}

// kill ends the daemon with SIGKILL, once.
func (v *victim) kill() {
	if v.cmd.ProcessState == nil {
		_ = v.cmd.Process.Kill()
		_ = v.cmd.Wait()
	}
}

// successor starts the next stage in b's place.
func (b *bench) successor() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), waitLimit)
	defer cancel()
	c := b.config()
	c.Stderr = os.Stderr
	s, err := sandbox.StartStage(ctx, c)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Stage = s
	b.t.Cleanup(func() {
		if err := s.Close(); err != nil && !b.killed {
			b.t.Errorf("Close() = %v; want nil", err)
		}
	})
}

// adopt takes over a pen, which ends with the test.
func (b *bench) adopt(m sandbox.Mark) *sandbox.Process {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), waitLimit)
	defer cancel()
	p, err := b.Adopt(ctx, m)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = p.Kill() })
	return p
}

// said reads n bytes of a stream.
func said(tb testing.TB, f *os.File, n int) string {
	tb.Helper()
	if err := f.SetReadDeadline(time.Now().Add(waitLimit)); err != nil {
		tb.Fatal(err)
	}
	b := make([]byte, n)
	k, err := io.ReadFull(f, b)
	if err != nil {
		tb.Errorf("read %q, %v; want %d bytes", b[:k], err, n)
	}
	return string(b[:k])
}

// halted is next with a PID 1 that stands still from before its start.
func (v *victim) halted() sandbox.Mark {
	v.t.Helper()
	var m sandbox.Mark
	if err := json.Unmarshal(v.line(), &m); err != nil {
		v.t.Fatal(err)
	}
	if err := syscall.Kill(m.Init.Pid, syscall.SIGSTOP); err != nil {
		v.t.Fatal(err)
	}
	v.say(".")
	return m
}

func itoa(n int) string { return strconv.Itoa(n) }

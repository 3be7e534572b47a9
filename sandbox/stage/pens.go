package stage

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// pens are the pens that the daemon has not yet let go: it asks for each, in the
// end, whether it is gone.
type pens struct {
	mu   sync.Mutex
	next uint64
	all  map[uint64]*pen
}

// pen is one PID 1 from its start until it is reaped and cleaned up after. A pen
// whose gate was never opened does not outlive the daemon's connection.
type pen struct {
	id    uint64
	pidfd *os.File // pollable
	prog  *image.Program
	made  []*place

	adopted bool // PID 1 is no child of ours, and what it executes is not known step by step

	watching sync.Mutex
	watches  []*watch            // guarded by watching; nil once the pen is gone
	changed  []sandbox.DenyEvent // what was seen last, guarded by watching

	image sandbox.Identity // what PID 1 executes

	mu     sync.Mutex
	gate   *os.File  // write end of the last gate; nil once it was handed over or shut
	target int       // whose gate was handed over; 0: it was not
	waits  *launcher // of a pen that waits for its command
	expiry *time.Timer
	over   bool // it is gone, and waits for nothing any more

	gone chan struct{} // closed once reaped and cleaned up
	err  error         // of that, once gone is closed
}

func newPens() *pens { return &pens{all: map[uint64]*pen{}} }

// full reports whether there is room for one more.
func (s *pens) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all) >= maxPens
}

func (s *pens) add(p *pen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	p.id = s.next
	s.all[p.id] = p
}

func (s *pens) get(id uint64) *pen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

func (s *pens) remove(p *pen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, p.id)
}

// abandon ends every pen that was not started, and waits for those.
func (s *pens) abandon() {
	s.mu.Lock()
	var waiting []*pen
	for _, p := range s.all {
		if p.shut() || p.atGate() {
			waiting = append(waiting, p)
		}
	}
	s.mu.Unlock()
	for _, p := range waiting {
		_ = p.kill() // ESRCH alone: it is gone already
		<-p.gone
	}
}

// reap waits for PID 1, then removes what its launch put on the host. The pen stays
// known, so that its steps can be named.
func (s *server) reap(p *pen) {
	p.err = p.wait()
	p.shut()
	p.unwatch()
	p.err = errors.Join(p.err, s.dropPlaces(p.made))
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	if l := p.take(); l != nil {
		p.err = errors.Join(p.err, l.close())
	}
	linux.CloseAll(p.pidfd)
	close(p.gone)
}

// wait waits for PID 1. One that was adopted is reaped by whose child it has become.
func (p *pen) wait() error {
	if p.adopted {
		return linux.WaitGone(p.pidfd)
	}
	return linux.Reap(p.pidfd)
}

// shut closes the last gate and reports whether the stage still had it.
func (p *pen) shut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate == nil {
		return false
	}
	linux.CloseAll(p.gate)
	p.gate = nil
	return true
}

// hand gives the last gate of a target away, for which what confines it was read back.
// Whoever has it now lets the target through with a byte, or ends it with the end of file.
func (p *pen) hand(target int) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate == nil || !p.executes(target) {
		return -1, refused("the pen waits at no gate")
	}
	n, err := linux.DupNumber(p.gate)
	if err == nil {
		linux.CloseAll(p.gate)
		p.gate, p.target = nil, target
	}
	return n, err
}

// atGate reports whether a target whose gate was handed over has not made its exec.
func (p *pen) atGate() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target != 0 && p.executes(p.target)
}

// executes reports whether a process of the pen still executes the image.
func (p *pen) executes(pid int) bool {
	st, err := linux.StatPath(procPath(pid, "exe"))
	if errors.Is(err, unix.EACCES) {
		return true // the image keeps everyone out, and few programs do
	}
	return err == nil && idOf(st) == p.image
}

func (p *pen) kill() error {
	err := linux.Kill(p.pidfd, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EBADF) {
		return nil
	}
	return err
}

// onPen answers the requests that name a pen. One that is gone has been cleaned
// up after: nothing is left to do for it.
func (s *server) onPen(ctx context.Context, m stagewire.Message) (any, error) {
	var q stagewire.Pen
	if err := stagewire.Unmarshal(m.Body, &q); err != nil {
		return nil, refused("cannot read the request: %w", err)
	}
	p := s.pens.get(q.Pen)
	if p == nil {
		if m.Op == stagewire.OpStep || m.Op == stagewire.OpDenies {
			return nil, refused("there is no pen %d", q.Pen)
		}
		return nil, nil
	}
	switch m.Op {
	case stagewire.OpStep:
		if p.adopted {
			return nil, refused("what pen %d executes is not known", q.Pen)
		}
		return stagewire.Text{Text: p.prog.Step(q.Step), Where: p.prog.Where(q.Step)}, nil
	case stagewire.OpDenies:
		return p.denies(), nil
	case stagewire.OpAbort:
		p.shut()
		if err := p.kill(); err != nil {
			return nil, err
		}
	case stagewire.OpReaped, stagewire.OpHello, stagewire.OpLook, stagewire.OpScratch, stagewire.OpDropScratch, stagewire.OpLaunch, stagewire.OpPrepare, stagewire.OpAhead, stagewire.OpCommand,
		stagewire.OpHome, stagewire.OpPlace, stagewire.OpEnd, stagewire.OpRmdir,
		stagewire.OpAdopt, stagewire.OpSettle, stagewire.OpSucceed:
	}
	select {
	case <-p.gone:
		s.pens.remove(p)
		return nil, p.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

package stage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// A prepared pen is one whose target waits for its command with all that confines it
// in force and read back. Time passes before that comes, and the host's files change. What
// was built is given a command only if the same would be built now, to the same caller: the
// way to each denied path is walked again, and what could have been changed from outside is
// read again.

// errAttached refuses to prepare a pen where its trees would lie in the host's mount table
// for as long as it waits: what is masked in them could then not be moved by anybody.
var errAttached = fmt.Errorf("cannot prepare a pen: mounts cannot be put onto a detached tree before Linux 6.15: %w", sandbox.ErrUnsupported)

// prepared reads back what confines a pen, keeps its launcher until its command comes, and
// names it.
func (s *server) prepared(ctx context.Context, l *launcher) (any, []int, error) {
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	e, err := l.confined(ctx)
	if err == nil && l.opening != nil {
		err = l.gate(ctx)
	}
	if err == nil {
		err = l.keepOpen()
	}
	if err != nil {
		return nil, nil, errors.Join(err, l.end(), l.close())
	}
	l.shown = e
	a, err := l.describe(e)
	body, out, err := l.answer(a, err)
	if err == nil && !s.pens.keep(l.pen, l) {
		linux.CloseNumbers(out...)
		err = errors.Join(errBusy, l.end())
	}
	if err != nil {
		return nil, nil, errors.Join(err, l.close())
	}
	return body, out, nil
}

// command answers a request to give a prepared pen its command: passed is the connection
// of the caller whose command it is.
func (s *server) command(ctx context.Context, raw []byte, passed []int) (any, []int, error) {
	var r stagewire.Command
	if err := stagewire.Unmarshal(raw, &r); err != nil {
		return nil, nil, refused("cannot read the request: %w", err)
	}
	defer clear(r.Command) // may hold secrets
	c, err := readCommand(r.Command)
	if err != nil {
		return nil, nil, err
	}
	peer, err := peerOf(passed)
	if err != nil {
		return nil, nil, err
	}
	p := s.pens.get(r.Pen)
	if p == nil {
		return nil, nil, errStale
	}
	l := p.take()
	if l == nil {
		return nil, nil, errStale
	}
	l.c = c
	l.timed()
	rests := sandbox.OnLook
	if r.Rests {
		rests = sandbox.OnSeen
	}
	a, out, err := l.resume(ctx, peer, rests, r.Look)
	return a, out, errors.Join(err, l.close())
}

// resume gives a prepared pen its command. What the target has open for it stays so; else it
// opens program and directory while it is looked whether the command is still good, if
// nobody has looked ahead, and whether the pen is. Nothing of it runs before the last gate,
// which only the answer to a yes can open.
func (l *launcher) resume(ctx context.Context, peer linux.Peer, rests sandbox.Rest, look uint64) (any, []int, error) {
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	err := l.isFor(peer)
	if err == nil {
		err = untraceable(l.s.dumpable) // before it has what may be secret
	}
	if err == nil {
		err = l.command()
	}
	l.laps.Lap("launch.command")
	if err == nil {
		err = l.looked(ctx, peer, rests, look)
	}
	l.laps.Lap("launch.look")
	if err == nil {
		err = l.holds()
	}
	l.laps.Lap("launch.holds")
	if err == nil && !l.opened {
		err = l.gate(ctx)
	}
	if err != nil {
		return nil, nil, errors.Join(err, l.end())
	}
	a := sandbox.Launched{Pen: l.pen.id} // all else went with the answer to prepare
	return l.answer(a, l.handOver(&a))
}

// unchanged looks once more, with the caller's rights, and refuses what is not as it was
// seen before: what was decided on that is void.
func (l *launcher) unchanged(ctx context.Context, peer linux.Peer) error {
	if l.before == nil {
		return refused("cannot give a pen a command that rests on a look: it was prepared with none")
	}
	now, dir, err := l.s.lookAs(ctx, l.before.Request, peer)
	if err != nil {
		return err
	}
	defer linux.CloseAll(dir)
	if !now.Same(l.before.Looked) {
		return errStale
	}
	if dir == nil {
		return nil
	}
	m, err := sandbox.MountOf(dir)
	if err == nil && m != l.before.Mount {
		err = errStale
	}
	return err
}

// same says why a pen that was built now would be another, or nil.
func (l *launcher) same() error {
	if !l.p.current(l.seen) {
		return errStale
	}
	if trail(l.m.walked) != l.m.trail || len(l.pen.denies()) > 0 {
		return errStale
	}
	return l.m.sameRules()
}

// walked is the way to a denied path: below a mount of the pen.
type walked struct {
	h   *holder
	rel string
}

// trail says what is found on the way to each denied path, masks and pins included, and
// where it ends. Two walks that find the same give the same.
func trail(all []walked) string {
	var b strings.Builder
	for _, w := range all {
		cur := w.h.tree.root
		for name := range strings.SplitSeq(w.rel, "/") {
			f, err := linux.OpenAt(cur, name, unix.O_PATH|unix.O_NOFOLLOW, linux.Beneath)
			if cur != w.h.tree.root {
				linux.CloseAll(cur)
			}
			cur = f
			var st unix.Stat_t
			if err == nil {
				st, err = linux.Stat(f)
			}
			if err != nil {
				b.WriteString(linux.ErrnoName(err))
				break
			}
			fmt.Fprintf(&b, "%d:%d:%o ", st.Dev, st.Ino, st.Mode)
		}
		if cur != w.h.tree.root {
			linux.CloseAll(cur)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// ruled is what a Landlock rule below the root of an attach was put on.
type ruled struct {
	rule sandbox.Rule
	id   sandbox.Identity // zero: it was not there, and has no rule
}

// sameRules says whether rules would go on the same files now. The view is the same by
// itself; in an attach others make, move and remove at any time.
func (m *mounts) sameRules() error {
	for _, r := range m.ruled {
		id := sandbox.Identity{}
		at, err := m.open(r.rule)
		if err == nil {
			var st unix.Stat_t
			st, err = linux.Stat(at)
			id = idOf(st)
			linux.CloseAll(at)
		}
		if err != nil && !gone(err) {
			return failed("open "+r.rule.Path+" for its Landlock rule", err)
		}
		if id != r.id {
			return errStale
		}
	}
	return nil
}

// maxPreparedTime is how long the stage lets a pen wait for its command, whatever a daemon
// asks for.
const maxPreparedTime = 30 * time.Second

// keep makes a pen one that waits for its command; false: there are too many.
func (s *pens) keep(p *pen, l *launcher) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, q := range s.all {
		if q.waiting() != nil {
			n++
		}
	}
	if n >= maxPrepared {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false // whoever reaped it found no launcher
	}
	p.waits = l
	p.expiry = time.AfterFunc(maxPreparedTime, func() {
		if p.waiting() != nil {
			_ = p.kill() // what reaps it cleans up
		}
	})
	return true
}

// waiting returns the launcher of a pen that waits for its command, and leaves it there.
func (p *pen) waiting() *launcher {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waits
}

// take returns the launcher of a pen that waits for its command, once.
func (p *pen) take() *launcher {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.waits
	p.waits = nil
	if p.expiry != nil {
		p.expiry.Stop()
	}
	return l
}

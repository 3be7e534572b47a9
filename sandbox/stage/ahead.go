package stage

import (
	"context"
	"errors"
	"sync"
	"time"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// A look ahead is made once a spawn is asked for, beside what the daemon has to do before
// it can send the command: deciding on what was seen earlier. It has a number, and the
// command of that spawn names it: no other command rests on it.

// maxAhead is how long a look ahead is good for its command, from its beginning.
const maxAhead = 50 * time.Millisecond

// ahead is the look ahead that was made last, one at a time.
type ahead struct {
	mu     sync.Mutex
	last   *aheadLook
	busy   bool // it is under way
	closed bool // the launcher is to be freed once it is not
}

type aheadLook struct {
	number uint64
	began  time.Time
	done   chan struct{} // closed once err stands
	err    error
}

// ahead answers a request to look ahead of the command of a prepared pen, whose caller's
// connection was passed. What it finds is told with the command: a pen that is not good any
// more is ended by that.
func (s *server) ahead(ctx context.Context, raw []byte, passed []int) error {
	var q stagewire.Ahead
	if err := stagewire.Unmarshal(raw, &q); err != nil {
		return refused("cannot read the request: %w", err)
	}
	peer, err := peerOf(passed)
	if err != nil {
		return err
	}
	p := s.pens.get(q.Pen)
	if p == nil {
		return nil // its command meets that too
	}
	l := p.waiting()
	if l == nil {
		return nil
	}
	return l.lookAhead(ctx, peer, q.Look)
}

// lookAhead looks whether the command that names this look may rest on what was seen. While
// another look is under way it does nothing: the command then looks for itself.
func (l *launcher) lookAhead(ctx context.Context, peer linux.Peer, number uint64) error {
	if err := l.isFor(peer); err != nil {
		return err
	}
	a := &aheadLook{number: number, began: time.Now(), done: make(chan struct{})}
	l.ahead.mu.Lock()
	if l.ahead.closed || l.ahead.busy {
		l.ahead.mu.Unlock()
		return nil
	}
	l.ahead.busy, l.ahead.last = true, a
	l.ahead.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, maxAhead) // for its turn: later than that it is good for nothing
	defer cancel()
	a.err = l.still(ctx, peer, sandbox.OnSeen)
	close(a.done)
	l.ahead.mu.Lock()
	l.ahead.busy = false
	last := l.ahead.closed
	l.ahead.mu.Unlock()
	if last {
		return l.free()
	}
	return nil
}

// isFor refuses to give the pen of one to another.
func (l *launcher) isFor(peer linux.Peer) error {
	if !l.peer.Same(peer) {
		return refused("cannot give a pen of uid %d a command of uid %d", l.peer.UID, peer.UID)
	}
	return nil
}

// still refuses a command unless a pen that was built now would be the same, and what the
// command rests on is as it was seen.
func (l *launcher) still(ctx context.Context, peer linux.Peer, rests sandbox.Rest) error {
	if rests == sandbox.OnSeen {
		if err := l.unchanged(ctx, peer); err != nil {
			return err
		}
	}
	return l.same()
}

// looked is still, or what the look ahead of that number has found.
func (l *launcher) looked(ctx context.Context, peer linux.Peer, rests sandbox.Rest, number uint64) error {
	l.ahead.mu.Lock()
	a := l.ahead.last
	l.ahead.mu.Unlock()
	if a == nil || number != a.number || rests != sandbox.OnSeen || time.Since(a.began) > maxAhead {
		return l.still(ctx, peer, rests)
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if errors.Is(a.err, context.DeadlineExceeded) { // it had no turn
		return l.still(ctx, peer, rests)
	}
	return a.err
}

// close gives up what the launch itself no longer needs; what a look that is under way
// needs goes with that.
func (l *launcher) close() error {
	l.release()
	l.ahead.mu.Lock()
	l.ahead.closed = true
	busy := l.ahead.busy
	l.ahead.mu.Unlock()
	if busy {
		return nil
	}
	return l.free()
}

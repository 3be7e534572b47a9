package stage

import (
	"context"
	"sync"
)

// turns bounds how much of one kind of work each uid has under way, so that a
// caller whose file systems do not answer holds up nobody but itself.
type turns struct {
	each int // at once for one uid; the others wait

	mu     sync.Mutex
	queues map[uint32]*queue
}

// queue is where the work of one uid waits for its turn.
type queue struct {
	tokens chan struct{}
	users  int // guarded by turns.mu
}

func newTurns(each int) *turns { return &turns{each: each, queues: map[uint32]*queue{}} }

// take waits for a turn of uid, which give gives back.
func (t *turns) take(ctx context.Context, uid uint32) (give func(), err error) {
	t.mu.Lock()
	q := t.queues[uid]
	if q == nil {
		q = &queue{tokens: make(chan struct{}, t.each)}
		t.queues[uid] = q
	}
	q.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if q.users--; q.users == 0 {
			delete(t.queues, uid)
		}
	}
	select {
	case q.tokens <- struct{}{}:
		return func() { <-q.tokens; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

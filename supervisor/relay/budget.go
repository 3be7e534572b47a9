package relay

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
)

// Budget bounds the bytes that the spools of one caller hold together. While there
// is room every stream keeps its last Keep bytes; when there is none, what was
// delivered goes first, in all streams, and then nothing is taken from the pipes
// until an owner reads. Streams take beside each other, so that the bound can be
// passed by what their pipes hold. The nil Budget has no bound.
type Budget struct {
	limit atomic.Int64
	used  atomic.Int64

	waited atomic.Bool // somebody waits on freed

	mu      sync.Mutex
	members map[*stream]bool
	freed   chan struct{} // closed when there may be room again; nil: nobody waits
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget {
	b := &Budget{members: map[*stream]bool{}}
	b.limit.Store(limit)
	return b
}

// SetLimit changes the bound. Lowering it frees nothing by itself: less is taken.
func (b *Budget) SetLimit(limit int64) {
	b.limit.Store(limit)
	b.wake()
}

// Used returns how many bytes the spools hold now.
func (b *Budget) Used() int64 { return b.used.Load() }

func (b *Budget) join(s *stream) {
	if b == nil {
		return
	}
	b.used.Add(s.spool.size.Load() - s.spool.low.Load())
	s.spool.onFree = b.give
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members[s] = true
}

func (b *Budget) leave(s *stream) {
	if b == nil {
		return
	}
	b.mu.Lock()
	delete(b.members, s)
	b.mu.Unlock()
	b.give(s.spool.settle())
}

func (b *Budget) take(n int64) {
	if b != nil {
		b.used.Add(n)
	}
}

func (b *Budget) give(n int64) {
	b.used.Add(-n)
	b.wake()
}

// spent reports whether the bound is reached.
func (b *Budget) spent() bool { return b != nil && b.used.Load() >= b.limit.Load() }

// left returns how many bytes may still be taken, at most want; it frees what was
// delivered when little is left.
func (b *Budget) left(want int64) (int64, error) {
	if b == nil {
		return want, nil
	}
	left := b.limit.Load() - b.used.Load()
	if left >= min(want, MinKeep) {
		return min(want, left), nil
	}
	err := b.reclaim()
	return min(want, b.limit.Load()-b.used.Load()), err
}

// reclaim frees what was delivered, in all streams.
func (b *Budget) reclaim() error {
	b.mu.Lock()
	list := make([]*stream, 0, len(b.members))
	for s := range b.members {
		list = append(list, s)
	}
	b.mu.Unlock()
	var errs []error
	for _, s := range list {
		if err := s.spool.free(s.delivered.Load(), 1); !errors.Is(err, os.ErrClosed) { // it has just left
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// watch returns a channel that is closed when there may be room again.
func (b *Budget) watch() <-chan struct{} {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.freed == nil {
		b.freed = make(chan struct{})
	}
	b.waited.Store(true)
	return b.freed
}

// wake tells those who wait that bytes were freed or delivered.
func (b *Budget) wake() {
	if b == nil || !b.waited.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
	b.waited.Store(false)
}

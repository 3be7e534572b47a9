package relay

import (
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Budget bounds the bytes that the spools of one caller hold together, those of
// finished processes too. While there is room every stream keeps its last Keep bytes.
// When there is none, the output that was retained longest is evicted; then what was
// delivered goes, in all streams; then nothing is taken from the pipes until an owner
// reads. Streams take beside each other, so that the bound can be passed by what their
// pipes hold. The nil Budget has no bound.
//
// A budget may be a part of another, which bounds all its parts together: the daemon
// has one for all callers.
type Budget struct {
	parent *Budget
	limit  atomic.Int64 // 0: none
	used   atomic.Int64

	waited atomic.Bool // somebody waits on freed

	mu       sync.Mutex
	members  map[*stream]bool // of live outputs
	finished []*Output        // retained, the oldest first
	freed    chan struct{}    // closed when there may be room again; nil: nobody waits
}

// NewBudget returns a budget of limit bytes; 0: it counts and has no bound.
func NewBudget(limit int64) *Budget {
	b := &Budget{members: map[*stream]bool{}}
	b.SetLimit(limit)
	return b
}

// Part returns a budget of limit bytes, as of NewBudget, that is a part of b.
func (b *Budget) Part(limit int64) *Budget {
	part := NewBudget(limit)
	part.parent = b
	return part
}

// SetLimit changes the bound. Lowering it frees nothing by itself: less is taken.
func (b *Budget) SetLimit(limit int64) {
	b.limit.Store(max(limit, 0))
	b.wakeOne()
}

// Used returns how many bytes the spools hold now.
func (b *Budget) Used() int64 { return b.used.Load() }

// join counts a stream of a live output.
func (b *Budget) join(s *stream) {
	held := s.spool.size.Load() - s.spool.low.Load()
	s.spool.onFree = b.give
	for ; b != nil; b = b.parent {
		b.used.Add(held)
		b.mu.Lock()
		b.members[s] = true
		b.mu.Unlock()
	}
}

// retain lets o be evicted; its bytes count as before.
func (b *Budget) retain(o *Output) {
	for ; b != nil; b = b.parent {
		b.mu.Lock()
		for _, s := range o.streams {
			delete(b.members, s)
		}
		b.finished = append(b.finished, o)
		b.mu.Unlock()
	}
}

// forget takes an output's bytes off.
func (b *Budget) forget(o *Output) {
	for l := b; l != nil; l = l.parent {
		l.mu.Lock()
		l.finished = slices.DeleteFunc(l.finished, func(f *Output) bool { return f == o })
		l.mu.Unlock()
	}
	for _, s := range o.streams {
		b.leave(s)
	}
}

// leave takes one stream's bytes off.
func (b *Budget) leave(s *stream) {
	for l := b; l != nil; l = l.parent {
		l.mu.Lock()
		delete(l.members, s)
		l.mu.Unlock()
	}
	b.give(s.spool.settle())
}

func (b *Budget) take(n int64) {
	for ; b != nil; b = b.parent {
		b.used.Add(n)
	}
}

func (b *Budget) give(n int64) {
	for ; b != nil; b = b.parent {
		b.used.Add(-n)
		b.wakeOne()
	}
}

// spent reports whether the bound is reached.
func (b *Budget) spent() bool {
	for ; b != nil; b = b.parent {
		if b.room() <= 0 {
			return true
		}
	}
	return false
}

// room returns how many bytes may be taken as far as b's own bound goes.
func (b *Budget) room() int64 {
	if limit := b.limit.Load(); limit > 0 {
		return limit - b.used.Load()
	}
	return math.MaxInt64
}

// left returns how many bytes may still be taken, at most want, and which budget has
// less; where little is left it makes room.
func (b *Budget) left(want int64) (left int64, short *Budget, err error) {
	left = want
	for ; b != nil; b = b.parent {
		if b.room() < min(want, MinKeep) {
			err = errors.Join(err, b.makeRoom(min(want, MinKeep)))
		}
		if room := b.room(); room < left {
			left, short = room, b
		}
	}
	return left, short, err
}

// makeRoom evicts finished outputs, the oldest first, then frees what was delivered,
// until want bytes may be taken.
func (b *Budget) makeRoom(want int64) error {
	for b.room() < want {
		freed, err := b.evictOldest()
		if err != nil {
			return err
		}
		if freed == 0 {
			_, err := b.reclaim(b.limit.Load())
			return err
		}
	}
	return nil
}

// relieve frees something on a file system of size bytes that is full: an output of
// this caller's, then another's. It returns how many bytes that were.
func (b *Budget) relieve(size int64) (int64, error) {
	for l := b; l != nil; l = l.parent {
		if freed, err := l.evictOldest(); freed > 0 || err != nil {
			return freed, err
		}
	}
	for l := b; l != nil; l = l.parent {
		if freed, err := l.reclaim(size); freed > 0 || err != nil {
			return freed, err
		}
	}
	return 0, nil
}

// evictOldest frees the bytes of the finished output that was retained longest and has
// any, and returns how many that were; 0: there is none.
func (b *Budget) evictOldest() (int64, error) {
	for {
		b.mu.Lock()
		if len(b.finished) == 0 {
			b.mu.Unlock()
			return 0, nil
		}
		oldest := b.finished[0]
		b.finished = b.finished[1:]
		b.mu.Unlock()
		if freed, err := oldest.evict(); freed > 0 || err != nil {
			return freed, err
		}
	}
}

// reclaim frees what was delivered, in all live streams, and returns how many bytes
// that were. What may be in flight stays, unless all streams together have more of it
// than a quarter of size: then each keeps its share of that.
func (b *Budget) reclaim(size int64) (int64, error) {
	b.mu.Lock()
	list := make([]*stream, 0, len(b.members))
	for s := range b.members {
		list = append(list, s)
	}
	b.mu.Unlock()
	var freed int64
	var errs []error
	for _, s := range list {
		n, err := s.spool.free(s.delivered.Load()-min(inFlight, size/4/int64(len(list))), 1)
		freed += n
		errs = append(errs, err)
	}
	return freed, errors.Join(errs...)
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
	for ; b != nil; b = b.parent {
		b.wakeOne()
	}
}

func (b *Budget) wakeOne() {
	if !b.waited.Load() {
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

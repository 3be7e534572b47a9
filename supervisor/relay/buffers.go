package relay

import (
	"slices"
	"sync"
)

// Buffers lends the memory in which events are made. An output that has nothing to
// deliver holds none, so a thousand silent processes cost nothing here.
type Buffers struct {
	in, out sync.Pool
}

// NewBuffers returns an empty store.
func NewBuffers() *Buffers {
	return &Buffers{
		in:  sync.Pool{New: func() any { return new([inBuffer]byte) }},
		out: sync.Pool{New: func() any { return new(events) }},
	}
}

// events is a buffer of finished events.
type events struct{ b []byte }

func (b *Buffers) takeIn() *[inBuffer]byte {
	in, ok := b.in.Get().(*[inBuffer]byte)
	if !ok {
		in = new([inBuffer]byte)
	}
	return in
}

func (b *Buffers) giveIn(in *[inBuffer]byte) { b.in.Put(in) }

func (b *Buffers) takeOut() *events {
	out, ok := b.out.Get().(*events)
	if !ok {
		out = new(events)
	}
	if cap(out.b) == 0 {
		out.b = make([]byte, 0, outBuffer)
	}
	return out
}

// giveOut takes a buffer back. One that a single huge event has grown is not kept.
func (b *Buffers) giveOut(out *events) {
	if cap(out.b) > 2*outBuffer {
		return
	}
	out.b = out.b[:0]
	b.out.Put(out)
}

// subscribers are those who wait for bytes or for the end of an output.
type subscribers struct {
	mu   sync.Mutex
	list []chan struct{}
}

// add returns a channel that holds a token once there is something new.
func (s *subscribers) add() chan struct{} {
	ch := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, ch)
	return ch
}

func (s *subscribers) remove(ch chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(c chan struct{}) bool { return c == ch })
}

func (s *subscribers) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ch := range s.list {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

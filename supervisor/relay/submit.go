package relay

import "slices"

// Submitted is a write on its way.
type Submitted struct {
	in *Input
	w  *write
}

// Submit puts a write in the queue at once, so that writes keep the order in which
// they were submitted. data must not change before its outcome was told.
func (in *Input) Submit(data []byte, eof After) *Submitted {
	w := &write{data: data, eof: eof, answer: make(chan error, 1)}
	if err := in.add(w); err != nil {
		w.answer <- err
	}
	return &Submitted{in, w}
}

// Outcome is where the outcome will be told: once, as Write would return it.
func (s *Submitted) Outcome() <-chan error { return s.w.answer }

// TakeBack takes the write back while it waits for its turn: its outcome is then
// ErrTakenBack, and stdin gets nothing of it. false: it is being made, or its outcome
// stands, and it goes on.
func (s *Submitted) TakeBack() bool {
	in := s.in
	in.mu.Lock()
	defer in.mu.Unlock()
	i := slices.Index(in.queue, s.w)
	if i < 0 || s.w.begun {
		return false
	}
	in.remove(i, ErrTakenBack)
	return true
}

// Counts returns how many bytes the kernel took so far, and how many wait.
func (in *Input) Counts() (taken, queued int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.taken.Load(), in.waiting
}

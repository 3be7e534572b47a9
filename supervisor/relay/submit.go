package relay

// Submit puts a write in the queue at once, so that writes keep the order in which
// they were submitted, and returns where its outcome will be told: once, as Write
// would return it. data must not change before that.
func (in *Input) Submit(data []byte, eof After) <-chan error {
	w := &write{data: data, eof: eof, answer: make(chan error, 1)}
	if err := in.add(w); err != nil {
		w.answer <- err
	}
	return w.answer
}

// Counts returns how many bytes the kernel took so far, and how many wait.
func (in *Input) Counts() (taken, queued int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.taken.Load(), in.waiting
}

package relay

import (
	"errors"
	"io"
	"testing"
)

// TestSubmittedIsTakenBack while it waits for its turn, and at no other time.
func TestSubmittedIsTakenBack(t *testing.T) {
	f := newFeeder(t, 1<<30)
	first := f.begin(t.Context(), t) // is being made until somebody reads
	f.mu.Lock()
	begun := &Submitted{f.Input, f.queue[0]}
	f.mu.Unlock()
	middle, last := f.Submit([]byte("never"), ThenEOF), (*Submitted)(nil)
	if begun.TakeBack() {
		t.Error("TakeBack() of a write that is being made = true; want false")
	}
	if !middle.TakeBack() || middle.TakeBack() {
		t.Error("TakeBack() of a write that waits: want true, and then false")
	}
	if err := <-middle.Outcome(); !errors.Is(err, ErrTakenBack) {
		t.Errorf("outcome = %v; want %v", err, ErrTakenBack)
	}
	last = f.Submit([]byte("last"), ThenEOF) // stdin is open again
	got, err := io.ReadAll(f.r)
	if err != nil || len(got) != 1<<20+len("last") {
		t.Errorf("stdin had %d bytes, %v; want those of the first and the last write", len(got), err)
	}
	if err := errors.Join(<-first, <-last.Outcome()); err != nil {
		t.Errorf("outcomes = %v; want none", err)
	}
	if last.TakeBack() {
		t.Error("TakeBack() of a write that was made = true; want false")
	}
}

package session

import (
	"errors"
	"os"
	"testing"
)

// TestWhatWasSeenStaysOpen as long as somebody looks at it: a pen that is ready may be
// discarded while a spawn asks whether it is for it.
func TestWhatWasSeenStaysOpen(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &readyPen{seen: &seen{dir: dir}, made: make(chan struct{})}
	r := &ready{next: n}
	if got := r.ripe(); got != nil {
		t.Error("ripe() before it is made: want none")
	}
	close(n.made)
	if one, other := r.ripe(), r.ripe(); one != n || other != n || !r.drop(n) {
		t.Fatal("ripe() of one that is made: want it, for whoever asks")
	}
	for holder := range 3 { // the pen, and the two that asked
		if _, err := dir.Stat(); err != nil {
			t.Errorf("the directory with %d left that have it: %v; want it open", 3-holder, err)
		}
		n.seen.close()
	}
	if _, err := dir.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the directory that nobody has = %v; want it closed", err)
	}
	if r.ripe() != nil {
		t.Error("ripe() after somebody took it: want none")
	}
}

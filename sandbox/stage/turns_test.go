package stage

import (
	"context"
	"errors"
	"testing"
)

// TestTurns has one uid take all of its turns: another is not held up by that.
func TestTurns(t *testing.T) {
	q := newTurns(2)
	var gives []func()
	for range 2 {
		give, err := q.take(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		gives = append(gives, give)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := q.take(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("take(1) beyond its turns = %v; want it to wait until canceled", err)
	}
	give, err := q.take(t.Context(), 2)
	if err != nil {
		t.Errorf("take(2) beside = %v; want a turn at once", err)
	} else {
		give()
	}
	gives[0]()
	if give, err := q.take(t.Context(), 1); err != nil {
		t.Errorf("take(1) after a turn was given back = %v; want a turn", err)
	} else {
		give()
	}
	gives[1]()
	if len(q.queues) != 0 {
		t.Errorf("queues = %d when nobody has a turn; want none kept", len(q.queues))
	}
}

// TestTurnsLeaveRoom holds the two limits of launches together.
func TestTurnsLeaveRoom(t *testing.T) {
	if launchesOfOne*2 > maxLaunches {
		t.Errorf("one uid may have %d launches of %d; want at least half left to others", launchesOfOne, maxLaunches)
	}
}

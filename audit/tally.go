package audit

import (
	"context"
	"sync"
	"time"
)

const (
	tallyTime = time.Second // events of one uid and kind within it are one record
	maxTally  = 1024        // uids and kinds that are counted apart; those beyond it are counted together
)

// ManyUIDs is the uid of a Flood that counts events of several uids.
const ManyUIDs = ^uint32(0)

// Tally counts events that anybody can cause as often as they like, so that they cost at most two records a second for each uid: the first
// is written whole by its author, what follows is counted.
type Tally struct {
	mu   sync.Mutex
	open map[source]*Flood
}

// source is who caused what.
type source struct {
	uid uint32
	of  FloodOf
}

// NewTally returns an empty tally. Its counts are told by Serve.
func NewTally() *Tally { return &Tally{open: map[source]*Flood{}} }

// First reports whether this event is to be written whole: nothing like it is being counted. If not, it is counted. It never blocks.
func (t *Tally) First(uid uint32, of FloodOf) bool { return t.add(uid, of, 0) }

// Count counts an event that has no record of its own.
func (t *Tally) Count(uid uint32, of FloodOf) { t.add(uid, of, 1) }

// add begins to count with begin, or counts one more.
func (t *Tally) add(uid uint32, of FloodOf, begin int64) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := source{uid, of}
	if t.open[key] == nil && len(t.open) >= maxTally {
		key.uid = ManyUIDs
	}
	f := t.open[key]
	if f == nil {
		t.open[key] = &Flood{Of: of, Since: time.Now(), Count: begin}
		return true
	}
	if f.Count++; f.Count == 1 {
		f.Since = time.Now()
	}
	return false
}

// Serve tells every second what was counted, one call for each uid and kind, until ctx ends; then it tells the rest and returns nil.
func (t *Tally) Serve(ctx context.Context, tell func(Subject, Flood)) error {
	tick := time.NewTicker(tallyTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			t.tell(tell)
			return nil
		case <-tick.C:
			t.tell(tell)
		}
	}
}

// tell tells what was counted since the last time, and forgets who was quiet.
func (t *Tally) tell(tell func(Subject, Flood)) {
	t.mu.Lock()
	told := map[source]Flood{}
	for key, f := range t.open {
		if f.Count == 0 {
			delete(t.open, key)
			continue
		}
		told[key] = *f
		f.Count = 0
	}
	t.mu.Unlock()
	for key, f := range told {
		tell(Subject{UID: key.uid}, f)
	}
}

package session

import (
	"sync"
	"time"
)

// Limits of refusals: policy says no at once, and what says no may be asked again at
// once. Beyond them spawns are answered without a look.
const (
	denyBurst  = 200                   // denied spawns of one uid at once
	denyEvery  = 50 * time.Millisecond // and one more after each
	maxDeniers = 1024                  // uids whose denials are remembered; those that may be denied whole bursts go first
)

// pace holds back spawns of uids that policy denies in floods. Each uid has denyBurst
// denials, and gets one back every denyEvery.
type pace struct {
	mu   sync.Mutex
	full map[uint32]time.Time // when the uid has its whole burst again
}

// held reports whether spawns of uid are to wait: it has no denial left.
func (p *pace) held(uid uint32, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.full[uid].Sub(now) >= denyBurst*denyEvery
}

// denied takes one denial from uid.
func (p *pace) denied(uid uint32, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, known := p.full[uid]
	if !known && len(p.full) >= maxDeniers {
		p.clean(now)
	}
	if at.Before(now) {
		at = now
	}
	p.full[uid] = at.Add(denyEvery)
}

// clean forgets uids that have their burst again; where none has, the one nearest to
// it. mu is held.
func (p *pace) clean(now time.Time) {
	var nearest uint32
	var first time.Time
	for uid, at := range p.full {
		if at.Before(now) {
			delete(p.full, uid)
		} else if first.IsZero() || at.Before(first) {
			nearest, first = uid, at
		}
	}
	if len(p.full) >= maxDeniers {
		delete(p.full, nearest)
	}
}

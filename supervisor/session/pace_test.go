package session

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	p := &pace{full: map[uint32]time.Time{}}
	now := time.Unix(1000, 0)
	for i := range denyBurst {
		if p.held(7, now) {
			t.Fatalf("held() after %d denials = true; want false before %d", i, denyBurst)
		}
		p.denied(7, now)
	}
	if !p.held(7, now) || p.held(8, now) {
		t.Errorf("held() after %d denials = %t, of another uid %t; want true, false", denyBurst, p.held(7, now), p.held(8, now))
	}
	if now = now.Add(denyEvery); p.held(7, now) {
		t.Errorf("held() after %s = true; want one more let through", denyEvery)
	}
	if p.denied(7, now); !p.held(7, now) {
		t.Error("held() after that one = false; want true")
	}
	now = now.Add(time.Hour)
	for range denyBurst {
		p.denied(7, now)
	}
	if !p.held(7, now) {
		t.Error("held() after an hour and a burst = false; want true: rest is not saved up")
	}
}

func TestPaceIsBounded(t *testing.T) {
	p := &pace{full: map[uint32]time.Time{}}
	now := time.Unix(1000, 0)
	for range denyBurst {
		p.denied(7, now)
	}
	for uid := range uint32(3 * maxDeniers) {
		if uid != 7 {
			p.denied(uid, now)
		}
	}
	if len(p.full) > maxDeniers || !p.held(7, now) {
		t.Errorf("%d uids remembered, the flooder held: %t; want at most %d, true", len(p.full), p.held(7, now), maxDeniers)
	}
}

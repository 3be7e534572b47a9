package session

import (
	"strings"
	"testing"
)

func TestRegistryQuotas(t *testing.T) {
	r := NewRegistry(100, 4)
	a, b := &Session{id: "a"}, &Session{id: "b"}
	agents, others, same := account{"agents", 1000}, account{"others", 1000}, account{"agents", 1001}
	if err := r.admit(agents, a, Quota{Sessions: 1}); err != nil {
		t.Fatalf("admit(a) = %v; want nil", err)
	}
	if err := r.admit(agents, b, Quota{Sessions: 1}); err == nil || !strings.Contains(err.Error(), "1 of 1 sessions") {
		t.Errorf("admit(b) = %v; want a refusal that names 1 of 1 sessions", err)
	}
	if err := r.admit(others, b, Quota{Sessions: 1}); err != nil {
		t.Errorf("admit(b) for another caller = %v; want nil", err)
	}
	if err := r.admit(same, &Session{id: "c"}, Quota{Sessions: 1}); err != nil {
		t.Errorf("admit(c) of another uid under the same rule = %v; want nil", err)
	}
	r.leave(agents, a)
	r.leave(agents, a) // twice is once
	if err := r.admit(agents, a, Quota{Sessions: 1}); err != nil {
		t.Errorf("admit(a) after leave = %v; want nil", err)
	}
	for range 2 {
		if err := r.takeProcess(agents, Quota{Processes: 2}); err != nil {
			t.Fatalf("takeProcess() = %v; want nil", err)
		}
	}
	if err := r.takeProcess(agents, Quota{Processes: 2}); err == nil {
		t.Error("takeProcess() beyond the quota = nil; want a refusal")
	}
	r.dropProcess(agents)
	if err := r.takeProcess(agents, Quota{Processes: 2}); err != nil {
		t.Errorf("takeProcess() after dropProcess = %v; want nil", err)
	}
}

// TestRegistryReady: no caller has all pens that may wait, and all places come back.
func TestRegistryReady(t *testing.T) {
	r := NewRegistry(100, 4)
	take := func(a account) (n int) {
		for r.takeReady(a) {
			n++
		}
		return n
	}
	total := 0
	var all []account
	for uid := uint32(1000); total < maxReady; uid++ {
		a := account{"agents", uid}
		n := take(a)
		if want := min(maxReadyOfOne, maxReady-total); n != want {
			t.Fatalf("pens of caller %d = %d; want %d", uid, n, want)
		}
		total += n
		all = append(all, a)
	}
	if r.takeReady(account{"others", 1}) {
		t.Errorf("takeReady() beyond %d = true; want none", maxReady)
	}
	for _, a := range all {
		for range maxReadyOfOne {
			r.dropReady(a)
		}
	}
	if r.ready != 0 || len(r.callers) != 0 {
		t.Errorf("registry after all went = %d ready, callers %v; want nothing", r.ready, r.callers)
	}
}

func TestRegistryUIDs(t *testing.T) {
	r := NewRegistry(100, 4)
	got := map[uint32]bool{}
	for range 3 {
		uid, err := r.takeUID()
		if err != nil {
			t.Fatalf("takeUID() = %v; want a uid", err)
		}
		if uid == 100 || uid < 100 || uid > 103 || got[uid] {
			t.Errorf("takeUID() = %d; want one of 101–103 that is free", uid)
		}
		got[uid] = true
	}
	if _, err := r.takeUID(); err == nil || !strings.Contains(err.Error(), "dynamic.count") {
		t.Errorf("takeUID() with all in use = %v; want an error that names the setting", err)
	}
	r.dropUID(102)
	if uid, err := r.takeUID(); err != nil || uid != 102 {
		t.Errorf("takeUID() = %d, %v; want 102, the one given back", uid, err)
	}
}

// TestRegistryKept: one caller's finished processes are bounded together, whatever its
// sessions, another caller's are not touched by it, and all places come back.
func TestRegistryKept(t *testing.T) {
	r := NewRegistry(100, 4)
	one, other := account{"agents", 1000}, account{"agents", 1001}
	for n := range maxKeptOfOne {
		if got := r.keep(one); got != maxKept {
			t.Fatalf("keep() of %d = %d; want %d", n, got, maxKept)
		}
	}
	if got := r.keep(one); got != minKept {
		t.Errorf("keep() beyond %d = %d; want %d", maxKeptOfOne, got, minKept)
	}
	if got := r.keep(other); got != maxKept {
		t.Errorf("keep() for another caller = %d; want %d", got, maxKept)
	}
	for range maxKeptOfOne + 1 {
		r.unkeep(one)
	}
	r.unkeep(other)
	if len(r.callers) != 0 {
		t.Errorf("callers after unkeep of all = %v; want none", r.callers)
	}
}

// TestRegistryReaders: one caller's readers are bounded over all its connections.
func TestRegistryReaders(t *testing.T) {
	r := NewRegistry(100, 4)
	one, other := account{"agents", 1000}, account{"agents", 1001}
	for n := range maxReadersOfOne {
		if !r.takeReader(one) {
			t.Fatalf("takeReader() of %d = false; want a place", n)
		}
	}
	if r.takeReader(one) || !r.takeReader(other) {
		t.Errorf("takeReader() beyond %d is no refusal, or is one to another caller", maxReadersOfOne)
	}
	r.dropReader(one)
	if !r.takeReader(one) {
		t.Error("takeReader() after dropReader = false; want a place")
	}
	for range maxReadersOfOne {
		r.dropReader(one)
	}
	r.dropReader(other)
	if len(r.callers) != 0 {
		t.Errorf("callers after all readers have gone = %v; want none", r.callers)
	}
}

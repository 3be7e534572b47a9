package session

import (
	"sync"
	"testing"

	"pinfold/proto"
)

// TestACallIsClaimedOnce: its end, its time and its cancel come at once, and one of them
// answers it; what waits for it goes in any case.
func TestACallIsClaimedOnce(t *testing.T) {
	for range 1000 {
		s := bare()
		from := newClient(s, Options{}, nil)
		r := &proto.WaitReq{ProcID: "p"}
		r.ID = "w"
		from.out.take()
		c := from.calls.open(from, r)
		var undone, sent, gave int
		var mu sync.Mutex
		count := func(n *int) { mu.Lock(); *n++; mu.Unlock() }
		var wg sync.WaitGroup
		wg.Go(func() {
			if c.giveUp() {
				count(&gave)
			}
		})
		wg.Go(func() { c.onGivenUp(s, func() { count(&undone) }) })
		for range 2 {
			wg.Go(func() { c.answer(proto.Answer(r, proto.Done(r)), func() { count(&sent) }) })
		}
		wg.Wait()
		if n := len(from.out.queue); n != 1 {
			t.Fatalf("%d answers; want 1", n)
		}
		l := <-from.out.queue
		l.sent()
		cancelled := l.msg.(*proto.WaitResp).Code == proto.CodeCancelled //nolint:errcheck // Answer gives this type
		if cancelled != (gave == 1) || undone != gave || sent != 2 || from.calls.find("w") != nil {
			t.Fatalf("cancelled %t, given up %d, undone %d, told %d of 2; want these to fit", cancelled, gave, undone, sent)
		}
	}
}

package session

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pinfold/proto"
)

// paper is a Link that keeps what was sent.
type paper struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *paper) Write(lines []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text.Write(lines)
	return nil
}

func (p *paper) SetWriteDeadline(time.Time) error { return nil }

func (p *paper) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func TestAnAnswerThatIsNoFrameIsToldInItsPlace(t *testing.T) {
	link := &paper{}
	o := newOutbox(link)
	o.take()
	o.take()
	o.answer(&proto.ListResp{Reply: proto.Reply{ReqID: "big", OK: true}, Procs: []proto.ProcStatus{{Cmd: strings.Repeat("x", proto.MaxFrame)}}}, nil)
	o.answer(&proto.Pong{ReqID: "next"}, nil)
	o.end()
	o.serve()
	lines := strings.Split(strings.TrimSpace(link.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"req_id":"big"`) || !strings.Contains(lines[0], `"code":"server_error"`) {
		t.Errorf("a ListResp of more than a frame is answered with %.200q; want an error with its req_id", lines[0])
	}
	if len(lines) == 2 && !strings.Contains(lines[1], `"req_id":"next"`) {
		t.Errorf("the answer after it is %q; want the pong", lines[1])
	}
}

func TestTakeEndsWithTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutbox(&paper{})
		for range maxOpen {
			if !o.take() {
				t.Fatal("take() with room = false; want true")
			}
		}
		got := make(chan bool, 1)
		go func() { got <- o.take() }()
		synctest.Wait()
		o.end() // another session still owes the answers
		if <-got {
			t.Error("take() at the end of the session = true; want false")
		}
	})
}

// bare is a session with no more than what post needs.
func bare() *Session {
	return &Session{work: make(chan func(), 64), done: make(chan struct{})}
}

func TestNothingPostedIsLost(t *testing.T) {
	for range 200 {
		s := bare()
		var ran, promised sync.WaitGroup
		var mu sync.Mutex
		yes, did := 0, 0
		for range 32 {
			promised.Go(func() {
				ok := s.post(func() { mu.Lock(); did++; mu.Unlock() })
				mu.Lock()
				defer mu.Unlock()
				if ok {
					yes++
				}
			})
		}
		ran.Go(func() {
			(<-s.work)()
			s.close()
			s.flush()
		})
		ran.Wait()
		promised.Wait()
		if yes != did {
			t.Fatalf("post() promised %d calls and %d were made; want the same", yes, did)
		}
	}
}

func TestWaitersOfClientsThatLeftGo(t *testing.T) {
	p := &process{}
	here := newClient(bare(), Options{}, &paper{})
	for range 1000 {
		gone := newClient(bare(), Options{}, &paper{})
		p.await(&waiter{asker: gone})
		gone.end()
	}
	w := &waiter{asker: here}
	p.await(w)
	if len(p.waiters) != 1 {
		t.Errorf("%d waiters after 1000 clients left; want 1", len(p.waiters))
	}
	if !p.leave(w) || p.leave(w) || len(p.waiters) != 0 {
		t.Errorf("leave() twice: %d waiters; want true, then false, and none", len(p.waiters))
	}
}

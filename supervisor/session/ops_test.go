package session

import (
	"strings"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/supervisor/ops"
)

// desk is a session with what requests and their answers need.
func desk() *Session {
	s := bare()
	s.client, s.ops = newClient(s, Options{}, nil), newOperations(ops.New(ops.Volatile{}))
	return s
}

// named takes a spawn of that name, and returns how it is to be answered; nil: it is
// not to be done.
func (s *Session) named(id, op, program string) (*call, respond) {
	r := &proto.SpawnReq{Spawn: proto.Spawn{Cmd: []string{program}, OpID: op}}
	r.ID = id
	c := s.client.calls.open(s.client, r)
	return c, s.once(r, c)
}

// told takes the next answer that is to be sent.
func (s *Session) told(t *testing.T) *proto.SpawnResp {
	t.Helper()
	select {
	case l := <-s.client.out.queue:
		if l.sent != nil {
			s.client.out.slots <- struct{}{} // of a request that was not taken from a connection
			l.sent()
		}
		r, ok := l.msg.(*proto.SpawnResp)
		if !ok {
			t.Fatalf("answer = %T; want one to a spawn", l.msg)
		}
		return r
	default:
		t.Fatal("no answer; want one")
		return nil
	}
}

func TestAllThatShareAreToldBeforeWhatFollows(t *testing.T) {
	s := desk()
	c1, answer := s.named("1", "op", "ls")
	c2, none := s.named("2", "op", "ls")
	if answer == nil || none != nil {
		t.Fatalf("once() = %t, %t; want one of them to be done", answer != nil, none != nil)
	}
	if !s.ops.leave(c1) || s.ops.leave(c2) {
		t.Error("leave() of two that wait: want the first to, and the last not")
	}
	if !c1.giveUp() {
		t.Error("giveUp() = false; want true")
	}
	if r := s.told(t); r.ReqID != "1" || r.Code != proto.CodeCancelled {
		t.Errorf("answer = %+v; want 1 cancelled", r)
	}
	followed := false
	answer(&proto.SpawnResp{Reply: proto.Reply{ReqID: "1", OK: true}, ProcID: "p"}, func() { followed = true })
	if followed {
		t.Error("output follows before the answer was sent")
	}
	if r := s.told(t); r.ReqID != "2" || r.ProcID != "p" || !r.Repeated || !followed {
		t.Errorf("answer = %+v, output follows: %t; want p for 2, and then its output", r, followed)
	}
}

func TestOutputFollowsWhereNobodyWaits(t *testing.T) {
	s := desk()
	c, answer := s.named("1", "op", "ls")
	c.giveUp()
	s.told(t)
	followed := false
	answer(&proto.SpawnResp{Reply: proto.Reply{ReqID: "1", OK: true}, ProcID: "p"}, func() { followed = true })
	if !followed || len(s.client.out.queue) != 0 {
		t.Errorf("output follows: %t, %d answers; want it, and none", followed, len(s.client.out.queue))
	}
}

// TestWhoIsGoneWaitsForNothing: a client that comes back and asks again, as often as it
// likes, leaves nothing of its earlier connections with what it waits for.
func TestWhoIsGoneWaitsForNothing(t *testing.T) {
	s, p := desk(), &process{id: "p"}
	var answer respond
	var timers []*time.Timer
	for range 3 {
		s.client.end()
		s.client = newClient(s, Options{}, nil)
		if _, do := s.named("1", "op", "ls"); do != nil {
			answer = do
		}
		s.awaitKilled(p, &proto.KillReq{}, &call{from: s.client}, func(*process) {})
		timers = append(timers, time.AfterFunc(time.Hour, func() {}))
		p.await(&waiter{asker: s.client, timer: timers[len(timers)-1]})
	}
	if n := len(s.ops.open["op"].waiting); n != 1 {
		t.Errorf("%d requests wait for the operation; want the last", n)
	}
	if n := len(p.waiters); n != 2 {
		t.Errorf("%d wait for the end; want the two of the last connection", n)
	}
	if timers[0].Stop() || timers[1].Stop() || !timers[2].Stop() {
		t.Error("the time of a wait that nobody is there for goes on; want only that of the last connection to")
	}
	named := &proto.KillReq{OpID: "kill"}
	s.awaitKilled(p, named, &call{from: s.client}, func(*process) {})
	s.client.end()
	p.await(&waiter{asker: newClient(s, Options{}, nil)})
	if n := len(p.waiters); n != 2 {
		t.Errorf("%d wait for the end; want the new one, and the operation whose outcome is kept", n)
	}
	s.client = newClient(s, Options{}, nil)
	s.named("2", "op", "ls")
	answer(&proto.SpawnResp{Reply: proto.Reply{ReqID: "1", OK: true}, ProcID: "p"}, nil)
	if r := s.told(t); r.ReqID != "2" || r.ProcID != "p" {
		t.Errorf("answer = %+v; want p for 2", r)
	}
}

func TestOutcomeOf(t *testing.T) {
	for code, want := range map[proto.Code]proto.Outcome{
		"": proto.OutcomeApplied, proto.CodeBusy: proto.OutcomeNotSent, proto.CodeAuditUnavailable: proto.OutcomeNotSent,
		proto.CodeDenied: proto.OutcomeRejected, proto.CodeProcDead: proto.OutcomeRejected, proto.CodeProcLimit: proto.OutcomeRejected,
		proto.CodeCancelled: proto.OutcomeRejected, proto.CodeOutcomeUnknown: proto.OutcomeUnknown, proto.CodeInternal: proto.OutcomeUnknown,
	} {
		r := &proto.SpawnResp{Reply: proto.Reply{OK: code == "", Code: code, Retryable: code.Retryable()}}
		if got := outcomeOf(r); got != want {
			t.Errorf("outcomeOf(%q) = %s; want %s", code, got, want)
		}
	}
	r := &proto.SpawnResp{Reply: proto.Reply{Code: proto.CodeAuditUnavailable, Retryable: true}}
	if uncertain(r); outcomeOf(r) != proto.OutcomeUnknown {
		t.Errorf("outcomeOf(%+v) = %s; want outcome_unknown", r, outcomeOf(r))
	}
}

// TestARestoredRecordAnswers as the daemon before it did, and says what it cannot know.
func TestARestoredRecordAnswers(t *testing.T) {
	s := desk()
	_, answer := s.named("1", "done", "ls")
	answer(&proto.SpawnResp{Reply: proto.Reply{ReqID: "1", OK: true}, ProcID: "p", PID: 7, Workspace: "/w"}, nil)
	s.told(t)
	s.named("2", "open", "ls")

	record, err := ops.Restore(s.ops.record.Snapshot(), ops.Volatile{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	next := desk()
	next.ops = newOperations(record)
	next.named("a", "done", "ls")
	if r := next.told(t); r.ReqID != "a" || r.ProcID != "p" || r.PID != 7 || r.Workspace != "/w" || !r.OK || !r.Repeated {
		t.Errorf("answer = %+v; want that of the daemon before", r)
	}
	next.named("b", "open", "ls")
	if r := next.told(t); r.OK || r.Code != proto.CodeOutcomeUnknown {
		t.Errorf("answer = %+v; want outcome_unknown", r)
	}
	next.named("c", "open", "rm")
	if r := next.told(t); r.OK || r.Code != proto.CodeRejected || !strings.Contains(r.Error, "other content") {
		t.Errorf("answer = %+v; want rejected", r)
	}
}

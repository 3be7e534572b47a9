package client_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// repeated is the answer to a spawn whose op_id was known.
func repeated(req proto.Request, id string) *proto.SpawnResp {
	r := spawned(req, id)
	r.Repeated = true
	return r
}

// TestSpawnsOfOneNameAreOneProcess: whoever asks has its events, and none ends it while
// another has it.
func TestSpawnsOfOneNameAreOneProcess(t *testing.T) {
	c, p := pair(t)
	ctx, cancel := context.WithCancel(withTimeout(t))
	gone, kept := make(chan struct{}), make(chan struct{})
	p.play(func() {
		first, second := p.next(), p.next()
		if first == nil || second == nil {
			return
		}
		cancel()
		<-gone
		back := p.next()
		if _, ok := back.(*proto.Cancel); !ok {
			t.Errorf("the peer got %+v; want a cancel", back)
			return
		}
		p.send(proto.Answer(back, proto.Refused(back, proto.CodeUnsupported, "too late", "")))
		p.send(spawned(first, "one"), repeated(second, "one"))
		h := proto.NewEventHead("one", first.Base().ID, time.Now())
		p.raw(proto.AppendReadEvent(nil, h, proto.Stdout, 1, 0, []byte("x"), proto.DataString))
		p.raw(proto.AppendFinalEvent(nil, h, 2, &proto.Verdict{Cause: proto.CauseExited}, proto.DataString))
		<-kept
		again, ok := p.next().(*proto.SpawnReq) // and no kill
		if !ok {
			t.Errorf("the peer got %+v; want a third spawn", again)
			return
		}
		p.send(repeated(again, "one"))
	})
	named := proto.Spawn{Cmd: []string{"x"}, OpID: "op"}
	type result struct {
		p   *client.Process
		err error
	}
	results := make(chan result, 2)
	for _, ctx := range []context.Context{ctx, withTimeout(t)} {
		go func() {
			p, err := c.Spawn(ctx, named)
			results <- result{p, err}
		}()
	}
	if r := <-results; !errors.Is(r.err, context.Canceled) {
		t.Fatalf("Spawn(cancelled) = %+v, %v; want context.Canceled", r.p, r.err)
	}
	close(gone)
	r := <-results
	if r.err != nil {
		t.Fatalf("Spawn() of the same name = %v; want the process", r.err)
	}
	if e, err := r.p.Next(withTimeout(t)); err != nil || string(e.Data.Text) != "x" {
		t.Errorf("Next() = %+v, %v; want x", e, err)
	}
	if e, err := r.p.Next(withTimeout(t)); err != nil || !e.Final() {
		t.Errorf("Next() = %+v, %v; want the final event", e, err)
	}
	if _, err := r.p.Next(withTimeout(t)); !errors.Is(err, io.EOF) {
		t.Errorf("Next() after it = %v; want io.EOF", err)
	}
	close(kept)
	late, err := c.Spawn(withTimeout(t), named)
	if err != nil || late.ID != "one" {
		t.Fatalf("Spawn() once more = %+v, %v; want the process", late, err)
	}
	if _, err := late.Next(withTimeout(t)); !errors.Is(err, client.ErrRepeated) {
		t.Errorf("Next() of a process whose events were taken = %v; want ErrRepeated", err)
	}
}

func TestAWaitThatWasGivenUpIsCancelled(t *testing.T) {
	c, p := pair(t)
	ctx, cancel := context.WithCancel(withTimeout(t))
	back := make(chan proto.Request, 1)
	var wait proto.Request
	p.play(func() {
		if wait = p.next(); wait == nil {
			return
		}
		cancel()
		req := p.next()
		if req != nil {
			p.send(proto.Answer(wait, proto.Refused(wait, proto.CodeCancelled, "cancelled", "")), proto.Answer(req, proto.Done(req)))
		}
		back <- req
	})
	if _, err := c.Wait(ctx, "p", 0); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait(cancelled) = %v; want context.Canceled", err)
	}
	select {
	case got := <-back:
		if req, ok := got.(*proto.Cancel); !ok || req.ReqID != wait.Base().ID {
			t.Errorf("the peer got %+v; want the wait cancelled", got)
		}
	case <-withTimeout(t).Done():
		t.Error("the peer got nothing; want the wait cancelled")
	}
}

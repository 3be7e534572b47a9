package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestEveryRequestGetsItsAnswer(t *testing.T) {
	c, p := pair(t)
	ctx := withTimeout(t)
	exit := 0
	verdict := &proto.Verdict{Cause: proto.CauseExited}
	p.play(func() {
		for req := p.next(); req != nil; req = p.next() {
			a := proto.Answer(req, proto.Done(req))
			switch a := a.(type) {
			case *proto.HandshakeResp:
				a.SessionID = "s1"
				if h, ok := req.(*proto.Handshake); ok {
					a.AcceptedCaps = []proto.AcceptedCap{{Capability: "proc", Enabled: true, Metadata: proto.NewMetadata(h)}}
				}
			case *proto.KillResp:
				a.State = proto.StatusKilled
			case *proto.StatusResp:
				a.Status, a.Proc = proto.StatusCompleted, &proto.ProcStatus{ProcID: "p", ExitCode: &exit}
			case *proto.ListResp:
				a.Procs = []proto.ProcStatus{{ProcID: "p", State: proto.StateRunning}}
			case *proto.WaitResp:
				a.Verdict = verdict
			case *proto.StatsResp:
				a.Stats = &proto.Stats{PidsCurrent: 3}
			case *proto.ExplainResp:
				a.Text = "because"
			}
			if a == nil {
				p.send(&proto.Pong{ReqID: req.Base().ID, UptimeSeconds: 2.5})
				continue
			}
			p.send(a)
		}
	})

	h, err := c.Handshake(ctx, &proto.Handshake{Proc: proto.ProcOptions{Data: proto.DataObject}})
	if err != nil || h.SessionID != "s1" || h.AcceptedCaps[0].Metadata.Data != proto.DataObject {
		t.Errorf("Handshake() = %+v, %v; want session s1 with data as object", h, err)
	}
	if up, err := c.Ping(ctx); err != nil || up != 2500*time.Millisecond {
		t.Errorf("Ping() = %v, %v; want 2.5s", up, err)
	}
	if err := c.Write(ctx, &proto.WriteReq{ProcID: "p", Data: "x"}); err != nil {
		t.Errorf("Write() = %v; want none", err)
	}
	if s, err := c.Kill(ctx, "p", proto.SigTerm); err != nil || s != proto.StatusKilled {
		t.Errorf("Kill() = %s, %v; want killed", s, err)
	}
	if s, err := c.Status(ctx, "p"); err != nil || s.Status != proto.StatusCompleted || *s.Proc.ExitCode != 0 {
		t.Errorf("Status() = %+v, %v; want completed with 0", s, err)
	}
	if l, err := c.List(ctx, ""); err != nil || len(l) != 1 || l[0].ExitCode != nil {
		t.Errorf("List() = %+v, %v; want one without an exit code", l, err)
	}
	if v, err := c.Wait(ctx, "p", time.Microsecond); err != nil || !cmp.Equal(v, verdict, cmpopts.EquateEmpty()) {
		t.Errorf("Wait() = %+v, %v; want the verdict", v, err)
	}
	if s, err := c.Stats(ctx, "p"); err != nil || s.Stats.PidsCurrent != 3 {
		t.Errorf("Stats() = %+v, %v; want 3 pids", s, err)
	}
	if e, err := c.Explain(ctx, proto.Spawn{Cmd: []string{"ls"}}); err != nil || e.Text != "because" {
		t.Errorf("Explain() = %+v, %v; want the text", e, err)
	}
	if err := c.Resize(ctx, "p", proto.PTY{Rows: 5, Cols: 6}); err != nil {
		t.Errorf("Resize() = %v; want none", err)
	}
}

func TestAnswersOutOfOrder(t *testing.T) {
	c, p := pair(t)
	ctx := withTimeout(t)
	const n = 20
	p.play(func() {
		var reqs []proto.Request
		for range n {
			req := p.next()
			if req == nil {
				return
			}
			reqs = append(reqs, req)
		}
		for i := range reqs {
			req := reqs[n-1-i]
			p.send(proto.Answer(req, proto.Done(req))) // names the process that was asked for
		}
	})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			id := fmt.Sprintf("p%d", i)
			if r, err := c.Status(ctx, id); err != nil || r.ProcID != id {
				t.Errorf("Status(%s) = %+v, %v; want its own answer", id, r, err)
			}
		})
	}
	wg.Wait()
}

func TestSpawnGivesTheEventsInOrderInBothForms(t *testing.T) {
	for _, form := range []proto.DataForm{proto.DataString, proto.DataObject} {
		t.Run(string(form), func(t *testing.T) {
			c, p := pair(t)
			ctx := withTimeout(t)
			var want bytes.Buffer
			p.play(func() {
				req := p.next()
				if req == nil {
					return
				}
				p.send(spawned(req, "p1")) // the events follow in the same breath
				h := proto.NewEventHead("p1", req.Base().ID, time.Now())
				var b []byte
				for i := range uint64(1000) {
					text := fmt.Appendf(nil, "line %d \xff\"\\\n", i)
					b = proto.AppendReadEvent(b, h, proto.Stdout, i+1, 0, text, form)
				}
				b = append(b, "{\"type\":\"proc/later/event\",\"id\":\"x\",\"proc_id\":\"p1\"}\n"...)
				b = proto.AppendReadEvent(b, h, proto.Stderr, 1001, 0, []byte("oops\n"), form)
				b = proto.AppendFinalEvent(b, h, 1002, &proto.Verdict{Cause: proto.CauseExited, Code: 3}, form)
				p.raw(b)
			})
			for i := range 1000 {
				fmt.Fprintf(&want, "line %d \xff\"\\\n", i)
			}
			proc, err := c.Spawn(ctx, proto.Spawn{Cmd: []string{"x"}})
			if err != nil || proc.ID != "p1" || proc.PID != 42 {
				t.Fatalf("Spawn() = %+v, %v; want p1", proc, err)
			}
			var stdout, stderr bytes.Buffer
			v, err := proc.Copy(ctx, &stdout, &stderr)
			if err != nil || v == nil || v.Code != 3 {
				t.Errorf("Copy() = %+v, %v; want code 3", v, err)
			}
			if stdout.String() != want.String() || stderr.String() != "oops\n" {
				t.Errorf("Copy() wrote %d and %q; want %d bytes and oops", stdout.Len(), stderr.String(), want.Len())
			}
			if e, err := proc.Next(ctx); !errors.Is(err, io.EOF) {
				t.Errorf("Next() after the final event = %+v, %v; want EOF", e, err)
			}
		})
	}
}

func TestRefusalsAreTypedErrors(t *testing.T) {
	c, p := pair(t)
	ctx := withTimeout(t)
	p.play(func() {
		req := p.next()
		if req == nil {
			return
		}
		p.send(&proto.SpawnResp{
			Reply:  proto.Refused(req, proto.CodeDenied, "no rule allows rm", "see pinfold explain"),
			Denial: &proto.Denial{Final: true},
		})
		if req = p.next(); req != nil {
			p.send(proto.NewError(req.Base().ID, proto.CodeUnknownType, "no such message"))
		}
		if req = p.next(); req != nil {
			p.send(&proto.HandshakeResp{Reply: proto.Reply{ReqID: req.Base().ID, Code: proto.CodeUnauthorized}, Reason: proto.ReasonAuthFailed})
		}
		if req = p.next(); req != nil {
			p.send(&proto.Pong{ReqID: req.Base().ID})
		}
	})
	_, err := c.Spawn(ctx, proto.Spawn{Cmd: []string{"rm"}})
	var e *client.Error
	if !errors.As(err, &e) || e.Code != proto.CodeDenied || e.Retryable || e.Hint == "" {
		t.Fatalf("Spawn(rm) = %v; want denied with its hint", err)
	}
	if r, ok := e.Response.(*proto.SpawnResp); !ok || r.Denial == nil || !r.Denial.Final {
		t.Errorf("Spawn(rm) response = %+v; want the final denial", e.Response)
	}
	const want = `cannot do proc/spawn/req: no rule allows rm (denied); see pinfold explain`
	if err == nil || err.Error() != want {
		t.Errorf("Spawn(rm) = %v; want %s", err, want)
	}
	if !errors.Is(err, &client.Error{Code: proto.CodeDenied}) || errors.Is(err, &client.Error{Code: proto.CodeBusy}) {
		t.Errorf("errors.Is(%v) by code; want denied and not busy", err)
	}
	if _, err = c.Stats(ctx, "p"); !errors.Is(err, &client.Error{Code: proto.CodeUnknownType}) {
		t.Errorf("Stats() = %v; want unknown_type", err)
	}
	h, err := c.Handshake(ctx, &proto.Handshake{})
	if h == nil || h.Reason != proto.ReasonAuthFailed || err == nil || !strings.Contains(err.Error(), "auth_failed") {
		t.Errorf("Handshake() = %+v, %v; want the response and auth_failed", h, err)
	}
	if _, err = c.Kill(ctx, "p", proto.SigKill); err == nil || !strings.Contains(err.Error(), "pong") {
		t.Errorf("Kill() answered by a pong = %v; want an error that says so", err)
	}
}

func TestContextEndsACall(t *testing.T) {
	c, p := pair(t)
	ctx, cancel := context.WithCancel(withTimeout(t))
	p.play(func() {
		if p.next() != nil {
			cancel()
		}
	})
	if _, err := c.Status(ctx, "p"); !errors.Is(err, context.Canceled) {
		t.Errorf("Status(cancelled) = %v; want context.Canceled", err)
	}
	if c.Err() != nil {
		t.Errorf("Err() after a cancelled call = %v; want none", c.Err())
	}
	if _, err := c.Status(ctx, "p"); !errors.Is(err, context.Canceled) {
		t.Errorf("Status(ended context) = %v; want context.Canceled", err)
	}
}

func TestASpawnThatWasGivenUpIsEnded(t *testing.T) {
	c, p := pair(t)
	ctx, cancel := context.WithCancel(withTimeout(t))
	killed := make(chan proto.Request, 1)
	gone := make(chan struct{})
	p.play(func() {
		req := p.next()
		if req == nil {
			return
		}
		cancel()
		<-gone
		back, ok := p.next().(*proto.Cancel)
		if !ok || back.ReqID != req.Base().ID {
			t.Errorf("the peer got %+v; want the spawn cancelled", back)
			return
		}
		p.send(proto.Answer(back, proto.Refused(back, proto.CodeUnsupported, "too late", "")))
		h := proto.NewEventHead("late", req.Base().ID, time.Now())
		p.send(spawned(req, "late"))
		p.raw(proto.AppendReadEvent(nil, h, proto.Stdout, 1, 0, []byte("x"), proto.DataString))
		kill := p.next()
		if kill != nil {
			p.send(proto.Answer(kill, proto.Done(kill)))
		}
		killed <- kill // last: the test ends with it and closes the connection
	})
	_, err := c.Spawn(ctx, proto.Spawn{Cmd: []string{"x"}})
	close(gone)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Spawn(cancelled) = %v; want context.Canceled", err)
	}
	kill, ok := (<-killed).(*proto.KillReq)
	if !ok || kill.ProcID != "late" || kill.Signal != proto.SigKill {
		t.Errorf("the peer got %+v; want a SIGKILL for the process", kill)
	}
}

func TestAFullQueueHoldsTheConnectionAndDiscardFreesIt(t *testing.T) {
	c, p := pair(t)
	ctx := withTimeout(t)
	const events = 200
	text := bytes.Repeat([]byte("x"), 64<<10) // 12.5 MiB in all: three queues' worth
	p.play(func() {
		req := p.next()
		if req == nil {
			return
		}
		p.send(spawned(req, "p"))
		h := proto.NewEventHead("p", req.Base().ID, time.Now())
		for i := range uint64(events) {
			p.raw(proto.AppendReadEvent(nil, h, proto.Stdout, i+1, 0, text, proto.DataString))
		}
		p.raw(proto.AppendFinalEvent(nil, h, events+1, &proto.Verdict{Cause: proto.CauseExited}, proto.DataString))
		for ping := p.next(); ping != nil; ping = p.next() {
			p.send(&proto.Pong{ReqID: ping.Base().ID})
		}
	})
	proc, err := c.Spawn(ctx, proto.Spawn{Cmd: []string{"yes"}})
	if err != nil {
		t.Fatalf("Spawn() = %v; want a process", err)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err := c.Ping(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Ping() behind a full queue = %v; want it to wait", err)
	}
	for i := range uint64(10) {
		if e, err := proc.Next(ctx); err != nil || e.Seq != i+1 {
			t.Fatalf("Next() = %+v, %v; want seq %d", e, err, i+1)
		}
	}
	proc.Discard()
	e, err := proc.Next(ctx)
	if err != nil || !e.Final() {
		t.Errorf("Next() after Discard = %+v, %v; want the final event", e, err)
	}
	if _, err := c.Ping(ctx); err != nil {
		t.Errorf("Ping() after Discard = %v; want an answer", err)
	}
}

func TestTheEndOfTheConnection(t *testing.T) {
	for _, c := range []struct {
		name string
		last []byte
		want string
	}{
		{"between messages", nil, "connection closed"},
		{"within a message", []byte(`{"type":"pong"`), "unexpected EOF"},
		{"after nonsense", []byte("hello\n"), "cannot read a line"},
		{"after a line without end", bytes.Repeat([]byte("x"), 2*proto.MaxFrame), "more than 1048576 bytes"},
		{"after the session was taken", []byte(`{"type":"error","id":"e","version":"1.0","ts":1,"code":"session_taken","message":"it goes on elsewhere"}` + "\n"), "session_taken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl, p := pair(t)
			ctx := withTimeout(t)
			p.play(func() {
				req := p.next()
				if req == nil {
					return
				}
				p.send(spawned(req, "p"))
				if p.next() == nil {
					return
				}
				if len(c.last) > 0 {
					if _, err := p.conn.Write(c.last); err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "broken pipe") {
						p.t.Errorf("the peer writes: %v; want none", err)
					}
				}
				p.conn.Close()
			})
			proc, err := cl.Spawn(ctx, proto.Spawn{Cmd: []string{"x"}})
			if err != nil {
				t.Fatalf("Spawn() = %v; want a process", err)
			}
			_, err = cl.Status(ctx, "p")
			if !errors.Is(err, client.ErrClosed) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Status() = %v; want ErrClosed with %q", err, c.want)
			}
			<-cl.Done()
			if _, err := proc.Next(ctx); !errors.Is(err, client.ErrClosed) {
				t.Errorf("Next() = %v; want ErrClosed", err)
			}
			if _, err := cl.Ping(ctx); !errors.Is(err, client.ErrClosed) {
				t.Errorf("Ping() = %v; want ErrClosed", err)
			}
		})
	}
}

func TestCloseWithAFullQueue(t *testing.T) {
	c, p := pair(t)
	ctx := withTimeout(t)
	p.play(func() {
		req := p.next()
		if req == nil {
			return
		}
		p.send(spawned(req, "p"))
		h := proto.NewEventHead("p", req.Base().ID, time.Now())
		line := proto.AppendReadEvent(nil, h, proto.Stdout, 1, 0, bytes.Repeat([]byte("x"), 64<<10), proto.DataString)
		for {
			if _, err := p.conn.Write(line); err != nil {
				return
			}
		}
	})
	if _, err := c.Spawn(ctx, proto.Spawn{Cmd: []string{"yes"}}); err != nil {
		t.Fatalf("Spawn() = %v; want a process", err)
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := c.Ping(short); err == nil {
		t.Errorf("Ping() behind a full queue = nil; want it to wait")
	}
	if err := c.Close(); err != nil {
		t.Errorf("Close() = %v; want none", err)
	}
	if err := c.Err(); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Err() = %v; want ErrClosed", err)
	}
}

func TestWriteSendsAnyBytesInPieces(t *testing.T) {
	c, p := pair(t)
	ctx := withTimeout(t)
	var mu sync.Mutex
	var got []byte
	var eof bool
	p.play(func() {
		for req := p.next(); req != nil; req = p.next() {
			if w, ok := req.(*proto.WriteReq); ok {
				b, err := w.Bytes()
				if err != nil {
					t.Errorf("Bytes() = %v; want none", err)
				}
				mu.Lock()
				got, eof = append(got, b...), eof || w.EOF
				mu.Unlock()
				p.send(proto.Answer(req, proto.Done(req)))
				continue
			}
			p.send(spawned(req, "p"))
		}
	})
	proc, err := c.Spawn(ctx, proto.Spawn{Cmd: []string{"cat"}})
	if err != nil {
		t.Fatalf("Spawn() = %v; want a process", err)
	}
	var want []byte
	for _, piece := range [][]byte{[]byte("text\n"), {0, 0xff, 0x80}, bytes.Repeat([]byte("é\x00"), 200000), bytes.Repeat([]byte{0xfe}, 300000)} {
		want = append(want, piece...)
		if err := proc.Write(ctx, piece); err != nil {
			t.Fatalf("Write(%d bytes) = %v; want none", len(piece), err)
		}
	}
	if err := proc.CloseStdin(ctx); err != nil {
		t.Errorf("CloseStdin() = %v; want none", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !bytes.Equal(got, want) || !eof {
		t.Errorf("the peer got %d bytes, eof %v; want the %d written and eof", len(got), eof, len(want))
	}
}

func TestAWriteThatNobodyReadsEndsWithItsContext(t *testing.T) {
	c, _ := pair(t)
	ctx, cancel := context.WithTimeout(withTimeout(t), 300*time.Millisecond)
	defer cancel()
	big := &proto.WriteReq{ProcID: "p", Data: strings.Repeat("x", 900<<10)}
	if err := c.Write(ctx, big); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Write(unread) = %v; want the deadline", err)
	}
	<-c.Done() // cut in its middle: nothing after it could be understood
	if err := c.Err(); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Err() = %v; want ErrClosed", err)
	}
}

func TestShutdownWaitsForTheEnd(t *testing.T) {
	c, p := pair(t)
	ctx := withTimeout(t)
	p.play(func() {
		if s, ok := p.next().(*proto.Shutdown); !ok || s.Timeout != 2 {
			t.Errorf("the peer got %+v; want shutdown with 2 s", s)
		}
		p.conn.Close()
	})
	if err := c.Shutdown(ctx, 1500*time.Millisecond); err != nil {
		t.Errorf("Shutdown() = %v; want none", err)
	}
}

func TestDial(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if _, err := client.Dial(t.Context(), path); err == nil || !strings.Contains(err.Error(), "cannot connect to "+path) {
		t.Errorf("Dial(absent) = %v; want an error that names the socket", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatalf("Listen(%s) = %v; want none", path, err)
	}
	defer l.Close()
	c, err := client.Dial(t.Context(), path)
	if err != nil {
		t.Fatalf("Dial(%s) = %v; want a client", path, err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("Close() = %v; want none", err)
	}
}

func TestAnIDIsNotUsedTwiceAtOnce(t *testing.T) {
	c, p := pair(t)
	ctx := withTimeout(t)
	first := make(chan struct{})
	hold := make(chan struct{})
	p.play(func() {
		req := p.next()
		close(first)
		<-hold
		if req != nil {
			p.send(&proto.Pong{ReqID: req.Base().ID})
		}
	})
	ping := func() error {
		req := &proto.Ping{}
		req.ID = "same"
		_, err := c.Do(ctx, req)
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := ping(); err != nil {
			t.Errorf("Do(first) = %v; want an answer", err)
		}
	})
	<-first
	if err := ping(); err == nil {
		t.Errorf("Do(second with the same id) = nil; want an error")
	}
	close(hold)
	wg.Wait()
}

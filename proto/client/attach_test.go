package client_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"

	"pinfold/proto"
	"pinfold/proto/client"
)

func text(stream proto.Stream, offset int64, s string) *proto.ReadEvent {
	return &proto.ReadEvent{ProcID: "p", StreamType: stream, Offset: offset, Data: proto.Data{Text: []byte(s)}}
}

// TestOffsetsAreThoseOfWhatWasTaken, not of what waits in the queue.
func TestOffsetsAreThoseOfWhatWasTaken(t *testing.T) {
	c, p := pair(t)
	ctx := withTimeout(t)
	var asked *proto.AttachReq
	p.play(func() {
		req := p.next()
		asked, _ = req.(*proto.AttachReq)
		code := 0
		p.send(
			&proto.AttachResp{Reply: proto.Done(req), ProcID: "p", PID: 7, Status: proto.StatusRunning},
			text(proto.Stdout, 100, "abc"), text(proto.Stderr, 5, "é"),
			&proto.ReadEvent{ProcID: "p", StreamType: proto.Stdout, Offset: 103, Gap: &proto.Gap{From: 103, To: 200}},
			text(proto.Stdout, 200, "d"),
			&proto.ReadEvent{ProcID: "p", StreamType: proto.Stdout, Data: proto.Data{Code: &code}},
		)
		p.next()
	})
	proc, err := c.Attach(ctx, "p", client.Offsets{Stdout: 100, Stderr: 5})
	if err != nil || proc.ID != "p" || proc.PID != 7 || proc.Attached == nil {
		t.Fatalf("Attach() = %+v, %v; want the process", proc, err)
	}
	if asked == nil || asked.StdoutFrom != 100 || asked.StderrFrom != 5 {
		t.Errorf("Attach() sent %+v; want its offsets", asked)
	}
	for i, want := range []client.Offsets{{100, 5}, {103, 5}, {103, 7}, {200, 7}, {201, 7}, {201, 7}} {
		if got := proc.Offsets(); got != want {
			t.Errorf("Offsets() after %d events = %+v; want %+v", i, got, want)
		}
		if i == 5 {
			break
		}
		if _, err := proc.Next(ctx); err != nil {
			t.Fatalf("Next() = %v; want event %d", err, i)
		}
	}
	if _, err := proc.Next(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("Next() after the end = %v; want io.EOF", err)
	}
}

// TestALaterAttachTakesTheOutput, also of a process that was spawned here.
func TestALaterAttachTakesTheOutput(t *testing.T) {
	c, p := pair(t)
	ctx := withTimeout(t)
	p.play(func() {
		p.send(spawned(p.next(), "p"))
		for range 2 {
			req := p.next()
			p.send(&proto.AttachResp{Reply: proto.Done(req), ProcID: "p"}, text(proto.Stdout, 0, "new"))
		}
		p.next()
	})
	first, err := c.Spawn(ctx, proto.Spawn{Cmd: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		next, err := c.Attach(ctx, "p", client.Offsets{})
		if err != nil {
			t.Fatal(err)
		}
		for {
			_, err = first.Next(ctx)
			if err != nil {
				break
			}
		}
		if !errors.Is(err, client.ErrAttached) {
			t.Errorf("Next() of the one before = %v; want ErrAttached", err)
		}
		first = next
	}
	if e, err := first.Next(ctx); err != nil || string(e.Data.Text) != "new" {
		t.Errorf("Next() of the last = %+v, %v; want its output", e, err)
	}
}

// TestResumeShakesHandsWithTheToken, and closes what is refused.
func TestResumeShakesHandsWithTheToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx := withTimeout(t)
	serve := func(answer func(h *proto.Handshake) *proto.HandshakeResp) chan error {
		over := make(chan error, 1)
		go func() {
			conn, err := ln.Accept()
			if err != nil {
				over <- err
				return
			}
			p := &peer{t: t, conn: conn, in: bufio.NewReaderSize(conn, proto.MaxFrame+2)}
			h, ok := p.next().(*proto.Handshake)
			if !ok {
				over <- errors.New("no handshake came")
				return
			}
			p.send(answer(h))
			_, err = conn.Read(make([]byte, 1))
			over <- errors.Join(err, conn.Close())
		}()
		return over
	}
	var got *proto.Handshake
	over := serve(func(h *proto.Handshake) *proto.HandshakeResp {
		got = h
		return &proto.HandshakeResp{Reply: proto.Done(h), SessionID: "s1", Resume: &proto.ResumeOffer{Token: "next", TTLMS: 30000}}
	})
	c, r, err := client.Resume(ctx, path, &proto.Handshake{AgentID: "me"}, "s1", "now")
	if err != nil || r.Resume == nil || r.Resume.Token != "next" || r.Resume.TTLMS != 30000 {
		t.Fatalf("Resume() = %+v, %v; want the next token", r, err)
	}
	if got.Resume != (proto.ResumeRequest{SessionID: "s1", Token: "now"}) || got.AgentID != "me" {
		t.Errorf("Resume() sent %+v; want session and token", got)
	}
	if err := errors.Join(c.Close()); err != nil {
		t.Error(err)
	}
	if err := <-over; !errors.Is(err, io.EOF) {
		t.Errorf("the connection of a client that was closed = %v; want its end", err)
	}
	over = serve(func(h *proto.Handshake) *proto.HandshakeResp {
		return &proto.HandshakeResp{Reply: proto.Refused(h, proto.CodeUnauthorized, "no", ""), Reason: proto.ReasonAuthFailed}
	})
	c, r, err = client.Resume(ctx, path, &proto.Handshake{}, "s1", "old")
	if c != nil || r == nil || r.Reason != proto.ReasonAuthFailed || !errors.Is(err, &client.Error{Code: proto.CodeUnauthorized}) {
		t.Errorf("Resume() with an old token = %+v, %+v, %v; want the refusal alone", c, r, err)
	}
	select {
	case err := <-over:
		if !errors.Is(err, io.EOF) {
			t.Errorf("the refused connection = %v; want it closed", err)
		}
	case <-ctx.Done():
		t.Error("the refused connection is open; want it closed")
	}
}

package session

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"pinfold/proto"
	"pinfold/supervisor/relay"
)

// respond answers one request; sent, if not nil, is called once the answer is on
// its way. It may be called from any goroutine.
type respond func(m proto.Message, sent func())

// handle takes one request that came over c.
func (s *Session) handle(c *Client, r proto.Request) {
	id := r.Base().ID
	if c != s.client {
		c.out.answer(nil, nil) // the session goes on elsewhere
		return
	}
	if !c.ids.use(id) {
		c.out.answer(proto.NewError(id, proto.CodeSchemaViolation, fmt.Sprintf("cannot take request: its id %q was used before on this connection", id)), nil)
		return
	}
	s.dispatch(r, c.calls.open(c, r))
}

func (s *Session) dispatch(r proto.Request, c *call) {
	answer := s.once(r, c)
	if answer == nil {
		return
	}
	switch r := r.(type) {
	case *proto.SpawnReq:
		s.spawn(r, c, answer)
	case *proto.ExplainReq:
		s.explain(r, answer)
	case *proto.Ping:
		answer(&proto.Pong{ReqID: r.ID, UptimeSeconds: proto.SecondsOf(time.Since(s.host.Started))}, nil)
	case *proto.Shutdown:
		s.grace = r.Timeout.Duration()
		answer(nil, nil)
		s.end()
	case *proto.WriteReq:
		s.write(r, c, answer)
	case *proto.KillReq:
		s.reach(r, r.ProcID, answer, func(t *Session, p *process) { t.kill(p, r, c, answer) })
	case *proto.StatusReq:
		s.status(r, answer)
	case *proto.ListReq:
		s.list(r, answer)
	case *proto.WaitReq:
		s.reach(r, r.ProcID, answer, func(t *Session, p *process) { t.wait(p, r, c, answer) })
	case *proto.StatsReq:
		s.reach(r, r.ProcID, answer, func(t *Session, p *process) { t.stats(p, r, answer) })
	case *proto.ResizeReq:
		s.resize(r, answer)
	case *proto.OpsGetReq:
		s.opsGet(r, answer)
	case *proto.Cancel:
		s.cancel(r, c.from, answer)
	case *proto.AttachReq:
		s.reach(r, r.ProcID, answer, func(t *Session, p *process) { t.attach(p, r, c.from, answer) })
	default:
		answer(proto.NewError(r.Base().ID, proto.CodeUnknownType, fmt.Sprintf("cannot take a %s here", r.Kind())), nil)
	}
}

func (s *Session) write(r *proto.WriteReq, c *call, answer respond) {
	p := s.procs[r.ProcID]
	if p == nil || p.start == nil {
		answer(proto.UnknownProc(r), nil)
		return
	}
	data := []byte(r.Data)
	if r.Encoding == proto.EncodingBase64 {
		var err error
		if data, err = base64.StdEncoding.DecodeString(r.Data); err != nil {
			answer(proto.Answer(r, proto.Refused(r, proto.CodeSchemaViolation, "cannot write to process: data is no base64", "")), nil)
			return
		}
	}
	if p.dead() {
		answer(proto.Answer(r, proto.Refused(r, proto.CodeProcDead, "cannot write to process: it has ended", "")), nil)
		return
	}
	if p.start.eof {
		answer(proto.Answer(r, writeReply(r, relay.ErrEOF)), nil)
		return
	}
	if p.start.in == nil {
		answer(proto.Answer(r, proto.Refused(r, proto.CodeUnsupported, "cannot write to process: its stdin is null", `spawn it with stdin_mode "pipe"`)), nil)
		return
	}
	end := relay.KeepOpen
	if r.EOF {
		end = relay.ThenEOF
	}
	w, pid := p.start.in.Submit(data, end), p.start.pid
	c.take = w.TakeBack
	var moot <-chan struct{} // what has no name nobody can ask about over another connection
	if r.OpID == "" {
		moot = c.from.ctx.Done()
	}
	s.wg.Go(func() {
		select {
		case err := <-w.Outcome():
			answer(&proto.WriteResp{Reply: writeReply(r, err), ProcID: r.ProcID, PID: pid}, nil)
		case <-moot:
		}
	})
}

func writeReply(r *proto.WriteReq, err error) proto.Reply {
	switch {
	case err == nil:
		return proto.Done(r)
	case errors.Is(err, relay.ErrBusy):
		return proto.Refused(r, proto.CodeBusy, "cannot write to process: its queue of writes is full", "wait for the answers of earlier writes")
	case errors.Is(err, relay.ErrTakenBack):
		return proto.Refused(r, proto.CodeCancelled, "cannot write to process: the write was taken back", "")
	case errors.Is(err, relay.ErrUnknown):
		return proto.Refused(r, proto.CodeOutcomeUnknown, "cannot say whether the write was read: the process ended when a part of it had been taken", "")
	default:
		return proto.Refused(r, proto.CodeProcDead, fmt.Sprintf("cannot write to process: %v", err), "")
	}
}

func (s *Session) kill(p *process, r *proto.KillReq, c *call, answer respond) {
	if p.start == nil {
		answer(proto.UnknownProc(r), nil)
		return
	}
	if p.verdict != nil || p.state == Ending {
		if p.verdict == nil && r.Signal == proto.SigKill {
			s.step(p, KillAsked)
		}
		s.killDead(p, r, c, answer)
		return
	}
	if !r.Signal.Ends() {
		resp := &proto.KillResp{Reply: proto.Done(r), State: proto.StatusRunning}
		if err := p.start.proc.Signal(signalOf(r.Signal)); err != nil {
			resp.Reply = proto.Refused(r, proto.CodeInternal, fmt.Sprintf("cannot signal process: %v", err), "")
			if errors.Is(err, os.ErrProcessDone) {
				resp.Reply = proto.Refused(r, proto.CodeProcDead, "cannot signal process: it has ended", "")
			}
		}
		answer(resp, nil)
		return
	}
	p.blame(proto.CauseKilled, "request", "")
	if r.Signal == proto.SigKill {
		s.step(p, KillAsked)
	} else {
		s.step(p, StopAsked)
	}
	s.awaitKilled(p, r, c, func(p *process) {
		answer(&proto.KillResp{Reply: proto.Done(r), State: p.verdict.Status()}, nil)
	})
}

// awaitKilled answers a kill at the end of p. One that is given up has been sent; where
// the operation has a name, its outcome is awaited all the same.
func (s *Session) awaitKilled(p *process, r *proto.KillReq, c *call, done func(*process)) {
	w := &waiter{done: done}
	if r.OpID == "" {
		w.asker = c.from
	}
	p.await(w)
	if r.OpID == "" {
		c.onGivenUp(s, func() { p.leave(w) })
	}
}

// killDead answers a kill that came after the end.
func (s *Session) killDead(p *process, r *proto.KillReq, c *call, answer respond) {
	dead := func(p *process) {
		answer(&proto.KillResp{Reply: proto.Refused(r, proto.CodeProcDead, "cannot signal process: it has ended", ""), State: p.verdict.Status()}, nil)
	}
	if p.verdict != nil {
		dead(p)
		return
	}
	s.awaitKilled(p, r, c, dead)
}

// signalOf is the number of a signal that the wire names; 0 for one that it has not.
func signalOf(sig proto.Signal) syscall.Signal {
	for n := range lastSignal + 1 {
		if n > 0 && signalName(n) == string(sig) {
			return syscall.Signal(n)
		}
	}
	return 0
}

// wait answers at the end of p or when its own time is over. The waits of a
// connection are bounded.
func (s *Session) wait(p *process, r *proto.WaitReq, c *call, answer respond) {
	asker := c.from
	ended := func(p *process) {
		answer(&proto.WaitResp{Reply: proto.Done(r), ProcID: p.id, Status: p.verdict.Status(), Verdict: p.verdict}, nil)
	}
	if p.verdict != nil {
		ended(p)
		return
	}
	if p.start == nil {
		answer(proto.UnknownProc(r), nil)
		return
	}
	if !asker.waits.take() {
		answer(proto.Answer(r, proto.Refused(r, proto.CodeBusy, fmt.Sprintf("cannot wait: %d requests of this connection wait already", maxWaits), "wait for fewer processes at a time")), nil)
		return
	}
	w := &waiter{asker: asker}
	w.done = func(p *process) {
		w.stop()
		asker.waits.drop()
		ended(p)
	}
	p.await(w)
	c.onGivenUp(s, func() {
		w.stop()
		if p.leave(w) {
			asker.waits.drop()
		}
	})
	d := r.TimeoutMS.Duration()
	if d <= 0 {
		return
	}
	w.timer = time.AfterFunc(d, func() {
		s.post(func() {
			if !p.leave(w) {
				return // answered, or given up
			}
			asker.waits.drop()
			answer(&proto.WaitResp{
				Reply:  proto.Refused(r, proto.CodeTimeout, fmt.Sprintf("process has not ended within %v", d), ""),
				ProcID: p.id, Status: proto.StatusRunning,
			}, nil)
		})
	})
}

func (s *Session) resize(r *proto.ResizeReq, answer respond) {
	p := s.procs[r.ProcID]
	switch {
	case p == nil || p.start == nil:
		answer(proto.UnknownProc(r), nil)
	case p.dead():
		answer(proto.Answer(r, proto.Refused(r, proto.CodeProcDead, "cannot resize process: it has ended", "")), nil)
	case p.start.proc.PTY == nil:
		answer(proto.Answer(r, proto.Refused(r, proto.CodeUnsupported, "cannot resize process: it has no terminal", "spawn it with pty")), nil)
	default:
		resp := &proto.ResizeResp{Reply: proto.Done(r), ProcID: p.id}
		if err := p.start.proc.Resize(r.Rows, r.Cols); err != nil {
			resp.Reply = proto.Refused(r, proto.CodeInternal, fmt.Sprintf("cannot resize process: %v", err), "")
		}
		answer(resp, nil)
	}
}

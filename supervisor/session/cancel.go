package session

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"pinfold/proto"
)

// errTakenBack is why a start is cut whose spawn the client took back.
var errTakenBack = errors.New("the spawn was taken back")

// call is one request of a connection on the way to its answer. Whoever claims it
// first answers it; what comes later is dropped.
type call struct {
	from *Client // over which it came
	id   string
	req  proto.Request
	op   *operation  // that it names; nil: none. The owner's
	take func() bool // takes back what it asks for, if nothing of that was done: its answer follows. The owner's

	mu      sync.Mutex
	claimed bool
	givenUp bool
	at      *Session // on whose goroutine undo runs
	undo    func()   // what is to be done once it is given up
}

// claim reports whether the call is the caller's to answer.
func (c *call) claim() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.claimed {
		return false
	}
	c.claimed = true
	return true
}

// answer is a respond.
func (c *call) answer(m proto.Message, sent func()) {
	if c.claim() {
		c.from.reply(c, m, sent)
		return
	}
	if sent != nil {
		sent() // it was answered: cancelled
	}
}

// waits reports whether the call may be given up at any time: it waits for an end, and
// does nothing more.
func (c *call) waits() bool {
	switch r := c.req.(type) {
	case *proto.WaitReq:
		return true
	case *proto.KillReq:
		return r.Signal.Ends()
	}
	return false
}

// giveUp answers the call as cancelled. false: it was answered.
func (c *call) giveUp() bool {
	c.mu.Lock()
	if c.claimed {
		c.mu.Unlock()
		return false
	}
	c.claimed, c.givenUp = true, true
	at, undo := c.at, c.undo
	c.mu.Unlock()
	c.from.reply(c, proto.Answer(c.req, proto.Refused(c.req, proto.CodeCancelled, "the request was cancelled", "")), nil)
	switch {
	case undo == nil:
	case at == c.from.s:
		undo()
	default:
		c.from.s.wg.Go(func() { at.post(undo) })
	}
	return true
}

// onGivenUp says what is to be done once the call is given up. Session at calls it on
// its own goroutine, and undo runs there.
func (c *call) onGivenUp(at *Session, undo func()) {
	c.mu.Lock()
	over := c.givenUp
	c.at, c.undo = at, undo
	c.mu.Unlock()
	if over {
		undo()
	}
}

// calls are the unanswered requests of a connection, at most maxOpen.
type calls struct {
	mu   sync.Mutex
	byID map[string]*call
}

func newCalls() calls { return calls{byID: map[string]*call{}} }

func (o *calls) open(from *Client, r proto.Request) *call {
	c := &call{from: from, id: r.Base().ID, req: r}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.byID[c.id] = c
	return c
}

func (o *calls) close(c *call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID[c.id] == c {
		delete(o.byID, c.id)
	}
}

// drop forgets all: no request of the connection can be cancelled any more.
func (o *calls) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.byID)
}

func (o *calls) find(id string) *call {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byID[id]
}

// cancel takes a request back, and says whether it did. What was taken back is answered
// by its own response, with code cancelled.
func (s *Session) cancel(r *proto.Cancel, from *Client, answer respond) {
	code := proto.CodeUnknownReq
	c := from.calls.find(r.ReqID)
	if c != nil {
		code = s.withdraw(c)
	}
	reply := proto.Done(r)
	switch {
	case code == proto.CodeUnknownReq:
		reply = proto.Refused(r, code, "cannot cancel the request: no request of this connection with that id waits for an answer", "")
	case code != "":
		reply = proto.Refused(r, code, fmt.Sprintf("cannot cancel the %s: it is being carried out", c.req.Kind()), "wait for its answer")
	}
	answer(&proto.CancelResp{Reply: reply}, nil)
}

// withdraw takes a call back; the code says why not. The effect of an operation that
// other requests share is left to them.
func (s *Session) withdraw(c *call) proto.Code {
	carrier := c
	shared := false
	if c.op != nil {
		carrier, shared = c.op.carrier, s.ops.leave(c)
	}
	switch {
	case shared, carrier.waits():
		if c.giveUp() {
			return ""
		}
		return proto.CodeUnknownReq
	case carrier.take != nil && carrier.take():
		return ""
	}
	return proto.CodeUnsupported
}

// failed is the answer to a spawn that did not come to run.
func (p *process) failed(err error) *proto.SpawnResp {
	resp := failure(p.req, err)
	if resp.Denial == nil && errors.Is(context.Cause(p.launching), errTakenBack) {
		resp = &proto.SpawnResp{Reply: proto.Refused(p.req, proto.CodeCancelled, "cannot start process: its spawn was taken back", "")}
	}
	return resp
}

// takeBack gives up a start that is under way.
func (s *Session) takeBack(p *process) bool {
	if p.state != Starting {
		return false
	}
	p.cut(errTakenBack)
	p.blame(proto.CauseKilled, "request", "")
	s.step(p, CancelAsked)
	return true
}

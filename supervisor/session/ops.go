package session

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"pinfold/proto"
	"pinfold/supervisor/ops"
)

// operations are the named operations of a session: their record, and who waits for
// those that are under way.
type operations struct {
	mu     sync.Mutex
	record *ops.Record
	file   *ops.File // in which the record is kept; nil: it ends with the daemon
	open   map[string]*operation
}

// operation is one that is under way.
type operation struct {
	carrier *call   // the request that carries it out
	waiting []*call // the requests that its answer is for
}

func newOperations(r *ops.Record) operations {
	return operations{record: r, open: map[string]*operation{}}
}

// recall takes up the record that an earlier daemon has left of the session, or begins
// one. settle is as for ops.Open.
func (s *Session) recall(settle func(*ops.Entry)) error {
	path, err := s.host.Records.Operations(s.id)
	if err != nil {
		return err
	}
	s.ops.record, s.ops.file, err = ops.Open(path, time.Now(), settle)
	return err
}

// close leaves the file to whoever removes it.
func (o *operations) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil {
		return nil
	}
	return o.file.Close()
}

// leave takes a call off those that wait for its operation, and reports whether others
// are left. The last stays: somebody must be told.
func (o *operations) leave(c *call) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := slices.Index(c.op.waiting, c)
	if i < 0 || len(c.op.waiting) == 1 {
		return false
	}
	c.op.waiting = slices.Delete(c.op.waiting, i, i+1)
	return true
}

// begin says how a request stands to the record, and joins it to the operation that is
// begun with it or under way.
func (o *operations) begin(r proto.Named, c *call) (ops.Standing, ops.Entry, error) {
	digest, err := proto.DigestOf(r)
	if err != nil {
		return ops.Fresh, ops.Entry{}, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	how, e, err := o.record.Begin(r.Op(), r.Kind(), digest, time.Now())
	switch {
	case err != nil:
	case how == ops.Fresh:
		c.op = &operation{carrier: c, waiting: []*call{c}}
		o.open[r.Op()] = c.op
	case how == ops.UnderWay:
		c.op = o.open[r.Op()]
		// Who asks again over one connection after the other must not make it grow.
		c.op.waiting = append(slices.DeleteFunc(c.op.waiting, func(w *call) bool { return w.from.gone() }), c)
	}
	return how, e, err
}

// settle concludes an operation, and returns who is to be told.
func (o *operations) settle(id string, op *operation, outcome proto.Outcome, answer jsontext.Value) ([]*call, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.open, id)
	told := op.waiting
	op.waiting = nil
	return told, o.record.Settle(id, outcome, answer, time.Now())
}

func (o *operations) get(id string) (proto.Outcome, *ops.Entry, proto.Timestamp) {
	o.mu.Lock()
	defer o.mu.Unlock()
	outcome, e := o.record.Get(id, time.Now())
	return outcome, e, o.record.Horizon()
}

// once returns how a request is to be answered. Where it names an operation that is
// known, it is answered from the record, or with that operation, and nil is returned:
// nothing is to be done for it.
func (s *Session) once(r proto.Request, c *call) respond {
	n, ok := r.(proto.Named)
	if !ok || n.Op() == "" {
		return c.answer
	}
	how, e, err := s.ops.begin(n, c)
	refuse := func(code proto.Code, text, hint string) {
		c.answer(proto.Answer(r, proto.Refused(r, code, fmt.Sprintf("cannot take operation %q: %s", n.Op(), text), hint)), nil)
	}
	switch {
	case err != nil:
		s.log.Error("cannot record an operation, refusing it", attrErr(err))
		refuse(proto.CodeInternal, err.Error(), "nothing was done; send it again, or without op_id")
	case how == ops.Fresh:
		return func(m proto.Message, sent func()) { s.settle(n, c.op, m, sent) }
	case how == ops.UnderWay:
	case how == ops.Concluded:
		c.answer(s.again(r, e.Answer), nil)
	case how == ops.Other:
		refuse(proto.CodeRejected, "the same op_id came before with other content", "use a new op_id for each operation")
	case how == ops.Forgotten:
		refuse(proto.CodeOutcomeUnknown, "it was concluded, and what became of it is not known any more", "look at what it was about, and use a new op_id")
	case how == ops.Full:
		refuse(proto.CodeBusy, fmt.Sprintf("%d are under way", ops.MaxKept), "wait for the answers of earlier ones")
	}
	return nil
}

// again is the answer to a request whose operation was concluded before.
func (s *Session) again(r proto.Request, answer jsontext.Value) proto.Message {
	unknown := func() proto.Message {
		return proto.Answer(r, proto.Refused(r, proto.CodeOutcomeUnknown, "cannot say what became of the operation: it was under way when the daemon ended", ""))
	}
	if len(answer) == 0 {
		return unknown()
	}
	m, err := proto.DecodeAnswer(answer)
	resp, ok := m.(proto.Response)
	if err != nil || !ok {
		s.log.Error("cannot read an answer of the record", attrErr(err))
		return unknown()
	}
	*resp.Base() = proto.Base{}
	resp.Result().ReqID, resp.Result().Repeated = r.Base().ID, true
	return resp
}

// settle records what became of an operation, and tells all that wait for it. sent is
// called once the last of them was told.
func (s *Session) settle(r proto.Named, op *operation, m proto.Message, sent func()) {
	outcome := outcomeOf(m)
	line, err := proto.Append(nil, m)
	if err != nil {
		line = nil // the answer says so itself
	}
	line = bytes.TrimSuffix(line, []byte{'\n'})
	told, err := s.ops.settle(r.Op(), op, outcome, jsontext.Value(line))
	if err != nil {
		s.log.Error("the record of an operation is not safe, answering it", slog.String("op", r.Op()), attrErr(err))
	}
	for i, c := range told {
		answer, last := m, i == len(told)-1
		if c != op.carrier {
			answer = s.again(c.req, line)
		}
		if last {
			c.answer(answer, sent)
		} else {
			c.answer(answer, nil)
		}
	}
}

// outcomeOf is what an answer says of its operation. A refusal that may not last had
// no effect, and the same request may be sent again.
func outcomeOf(m proto.Message) proto.Outcome {
	resp, ok := m.(proto.Response)
	if !ok {
		return proto.OutcomeUnknown
	}
	switch r := resp.Result(); {
	case r.OK:
		return proto.OutcomeApplied
	case r.Retryable:
		return proto.OutcomeNotSent
	case r.Code == proto.CodeOutcomeUnknown, r.Code == proto.CodeInternal:
		return proto.OutcomeUnknown
	}
	return proto.OutcomeRejected
}

// uncertain makes of a start that failed after the program may have run an answer that
// promises nothing.
func uncertain(r *proto.SpawnResp) {
	r.Code, r.Retryable = proto.CodeOutcomeUnknown, proto.CodeOutcomeUnknown.Retryable()
	r.Hint = "the program may have run for a moment; nothing of it is left"
}

// opsGet tells what became of a named operation.
func (s *Session) opsGet(r *proto.OpsGetReq, answer respond) {
	outcome, e, horizon := s.ops.get(r.OpID)
	resp := &proto.OpsGetResp{Reply: proto.Done(r), OpID: r.OpID, Outcome: outcome}
	switch {
	case e != nil:
		resp.Open = e.Open()
		op, err := essentials(e)
		if err != nil {
			s.log.Error("cannot read an answer of the record", attrErr(err))
		}
		resp.Operation = op
	case outcome == proto.OutcomeUnknown:
		resp.Horizon = horizon
	}
	answer(resp, nil)
}

// essentials are those of an entry's answer.
func essentials(e *ops.Entry) (*proto.Operation, error) {
	op := &proto.Operation{Request: e.Request, At: e.At}
	if len(e.Answer) == 0 {
		return op, nil
	}
	m, err := proto.DecodeAnswer(e.Answer)
	if err != nil {
		return op, err
	}
	switch m := m.(type) {
	case *proto.SpawnResp:
		op.ProcID, op.PID = m.ProcID, m.PID
	case *proto.WriteResp:
		op.ProcID, op.PID = m.ProcID, m.PID
	case *proto.KillResp:
		op.State = m.State
	default:
		return op, errors.New("it is no answer of a named request")
	}
	if resp, ok := m.(proto.Response); ok {
		op.Code, op.Error = resp.Result().Code, resp.Result().Error
	}
	return op, nil
}

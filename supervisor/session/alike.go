package session

import (
	"context"
	"errors"
	"os"
	"reflect"
	"sync/atomic"

	"pinfold/policy"
	"pinfold/sandbox"
)

// seen is what a look found, with the directory that it found open. The pen that is made
// ready has it; who only looks at it holds it meanwhile.
type seen struct {
	sandbox.Seen
	dir  *os.File     // nil: none
	held atomic.Int32 // how many have it beside the one who closes it
}

func (s *seen) hold() { s.held.Add(1) }

// close ends a hold, or the having of it; the last closes the directory.
func (s *seen) close() {
	if s != nil && s.held.Add(-1) < 0 && s.dir != nil {
		_ = s.dir.Close() // an O_PATH descriptor has nothing to lose
	}
}

// alike starts p in the pen that is ready, where p asks for what the spawn before it asked
// for. Policy decides on what was seen then; the stage looks once more before it gives the
// command away, and refuses what is not the same now: then nothing has come of it, and p
// goes the whole way, as it does where alike returns nil without an error.
func (s *Session) alike(ctx context.Context, p *process, pol *policy.Policy, q sandbox.LookRequest) (*started, error) {
	r := s.ready.ripe()
	if r == nil {
		return nil, nil //nolint:nilnil // see above
	}
	defer r.seen.close()
	if !reflect.DeepEqual(q, r.seen.Request) {
		return nil, nil //nolint:nilnil // see above
	}
	g, err := pol.Decide(s.caller, request(&p.req.Spawn), looked(r.seen.Looked))
	if err != nil || s.checkHost(g) != nil {
		return nil, nil //nolint:nilnil,nilerr // a no rests on a look of its own
	}
	p.laps.Lap("decide")
	return s.reuse(ctx, p, pol, g, r)
}

// reuse gives the pen that is ready to a process that was granted what it is for.
func (s *Session) reuse(ctx context.Context, p *process, pol *policy.Policy, g *policy.Grant, r *readyPen) (*started, error) {
	ctx, cancel := context.WithDeadline(ctx, p.asked.Add(g.Timeout.Start))
	defer cancel()
	k, err := s.kind(ctx, p, g, r.seen.dir)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // the whole way meets it again and tells
	}
	p.laps.Lap("plan")
	if !k.like(r.kind) || !s.ready.drop(r) {
		return nil, nil //nolint:nilnil // it is for something else, or another has it
	}
	r.idle.Stop()
	keep := r.seen
	defer func() { keep.close() }()
	inJob(&k.spec.Site, r.job.Path(), r.job.Join())
	k.spec.Command.Timed = p.laps != nil
	st := newStarted(g, r.job, r.shown)
	pen, err := s.sent(ctx, p, k, r, st)
	if err != nil {
		s.log.Debug("the pen that was ready is not used, the spawn goes the whole way", attrProc(p.id), attrErr(err))
		s.removeJob(ctx, r.job)
		return nil, errors.Join(ctx.Err(), st.disconnect())
	}
	p.laps.Add(pen.Laps)
	p.laps.Lap("launch")
	if err = s.recordDecision(p, g, nil); err != nil && pol.Audit().OnFailure == policy.FailureRefuse {
		err = errors.Join(&auditError{err}, pen.Abort(context.WithoutCancel(ctx)), st.disconnect())
	} else {
		p.laps.Lap("record")
		st, err = s.begun(ctx, p, st, pen)
	}
	if err != nil {
		s.removeJob(ctx, r.job)
		return nil, err
	}
	if s.makeReady(p, k, keep) { //nolint:contextcheck // the next pen is not for this spawn
		keep = nil
	}
	return st, nil
}

// sent gives the pen that is ready its command, and registers the process while the stage is
// at work: a record of one that does not come to run is removed or written over.
func (s *Session) sent(ctx context.Context, p *process, k *kind, r *readyPen, st *started) (*sandbox.Pen, error) {
	if err := s.use(ctx, r); err != nil {
		return nil, err
	}
	if err := r.pen.Send(ctx, s.conn, k.spec.Command, sandbox.OnSeen); err != nil {
		return nil, err
	}
	failed := s.register(p, st, r.pen.Pid(), r.pen.Mark())
	pen, err := r.commanded(ctx)
	if failed != nil && err == nil {
		err = errors.Join(failed, pen.Abort(context.WithoutCancel(ctx)))
	}
	return pen, err
}

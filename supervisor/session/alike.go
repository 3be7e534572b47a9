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

// foreseen is the pen that a spawn is likely to get.
type foreseen struct {
	*readyPen
	look sandbox.Look // whether it is still good for that
}

// foresee returns the pen that is ready where p asks, under the same policy, for what the
// spawn before it asked for, else nil. The stage then already looks whether it is still good
// for that, while this process decides. What was seen for the pen is the caller's to close.
func (s *Session) foresee(p *process, pol *policy.Policy) *foreseen {
	r := s.ready.ripe()
	if r == nil {
		return nil
	}
	if r.policy == pol && reflect.DeepEqual(bareRequest(&p.req.Spawn), r.asked) {
		if look, err := r.pen.Ahead(s.conn); err == nil {
			return &foreseen{r, look}
		}
	}
	r.seen.close()
	return nil
}

// alike starts p in the pen that was foreseen for it. Policy decides on what was seen for the
// spawn before it; the stage looks once more before it gives the command away, and refuses
// what is not the same now: then nothing has come of it, and p goes the whole way, as it does
// where alike returns nil without an error.
func (s *Session) alike(ctx context.Context, p *process, pol *policy.Policy, q sandbox.LookRequest, f *foreseen) (*started, error) {
	if f == nil {
		return nil, nil //nolint:nilnil // see above
	}
	defer f.seen.close()
	if !reflect.DeepEqual(q, f.seen.Request) {
		return nil, nil //nolint:nilnil // see above
	}
	g, err := pol.Decide(s.caller, request(&p.req.Spawn), looked(f.seen.Looked))
	if err != nil || s.checkHost(g) != nil {
		return nil, nil //nolint:nilnil,nilerr // a no rests on a look of its own
	}
	p.laps.Lap("decide")
	return s.reuse(ctx, p, pol, g, f)
}

// reuse gives the pen that is ready to a process that was granted what it is for.
func (s *Session) reuse(ctx context.Context, p *process, pol *policy.Policy, g *policy.Grant, r *foreseen) (*started, error) {
	ctx, cancel := context.WithDeadline(ctx, p.asked.Add(g.Timeout.Start))
	defer cancel()
	pl, files, err := s.place(ctx, p, g, r.seen.dir)
	if err != nil || !s.ready.drop(r.readyPen) {
		return nil, nil //nolint:nilnil,nilerr // the whole way meets it again and tells, or another has it
	}
	r.idle.Stop()
	keep := r.seen
	defer func() { keep.close() }()
	w := &word{p: p, r: r, st: newStarted(g, r.job, r.shown), place: pl, files: files}
	pen, err := s.sent(ctx, w)
	if err != nil {
		s.log.Debug("the pen that was ready is not used, the spawn goes the whole way", attrProc(p.id), attrErr(err))
		s.removeJob(ctx, r.job)
		return nil, errors.Join(ctx.Err(), w.st.disconnect())
	}
	p.laps.Add(pen.Laps)
	p.laps.Lap("launch")
	st, err := s.begun(ctx, p, pol, w.st, pen, w.records)
	if err != nil {
		s.removeJob(ctx, r.job)
		return nil, err
	}
	if s.makeReady(p, pol, w.kind, keep) { //nolint:contextcheck // the next pen is not for this spawn
		keep = nil
	}
	return st, nil
}

// word is a command for the pen that is ready.
type word struct {
	p     *process
	r     *foreseen
	st    *started
	place Place
	files []*os.File // of its attaches

	kind    *kind   // what would be built now
	records encoded // of decision and start
}

// sent gives the pen that is ready its command. What else a start needs is done while the
// stage is at work: the process is registered (a record of one that does not come to run is
// removed or written over), what is to be recorded is encoded, and the pen is compared with
// the one that would be built now.
func (s *Session) sent(ctx context.Context, w *word) (*sandbox.Pen, error) {
	c := command(w.st.grant, w.place)
	c.Timed = w.p.laps != nil
	err := s.use(ctx, w.r.readyPen)
	if err == nil {
		err = w.r.pen.Send(ctx, s.conn, c, sandbox.OnSeen, w.r.look)
	}
	if err != nil {
		return nil, err
	}
	failed := s.register(w.p, w.st, w.r.pen.Pid(), w.r.pen.Mark())
	if w.kind, err = kindAt(w.st.grant, w.place, w.files); err == nil && !w.kind.like(w.r.kind) {
		err = errOther
	}
	failed = errors.Join(failed, err)
	w.records = s.encode(s.decision(w.p, w.st.grant, nil), s.start(w.p, w.st))
	pen, err := w.r.commanded(ctx)
	if failed != nil && err == nil {
		err = errors.Join(failed, pen.Abort(context.WithoutCancel(ctx)))
	}
	return pen, err
}

var errOther = errors.New("the pen that is ready is for something else")

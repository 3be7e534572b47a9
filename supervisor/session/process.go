package session

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/sandbox"
	"pinfold/supervisor/record"
	"pinfold/supervisor/relay"
)

// process is one spawn from request to retention. Only the session's goroutine
// touches it, but for the parts that have a goroutine of their own.
type process struct {
	id     string
	req    *proto.SpawnReq
	answer respond
	client *Client // that asked for it
	state  State
	asked  time.Time

	start   *started // nil until Launched
	failure *proto.SpawnResp

	cause   proto.Cause // why we ended it; the first reason stands
	by      string
	scope   string
	grace   *time.Timer
	killed  bool // the whole job was, before the main process ended: nothing outlived it
	timers  []*time.Timer
	end     ending
	verdict *proto.Verdict
	waiters []*waiter

	feed      *delivery   // to its owner; nil: none goes on
	last      *delivery   // what went on when the verdict stood; read once concluded is closed
	readers   []*delivery // to operators
	delivered bool        // its owner was sent everything, once at least
	kept      bool        // it counts among the finished processes of its caller

	ctx       context.Context    // the life of the process's goroutines, not of a call
	stop      context.CancelFunc // ends them
	launching context.Context    // ends with the start, or cuts it
	cut       context.CancelCauseFunc
	watched   context.Context // ends with the main process: of what watches its limits
	unwatch   context.CancelFunc
	lingering context.Context // of what outlives the main process: hurry ends it before its time
	hurry     context.CancelFunc
	noted     noted[record.Process] // for the next daemon
	laps      *sandbox.Laps         // of the steps, for the log; nil: nobody asks
	begun     atomic.Bool           // the last gate was opened: the program may have run, whatever the start says
	told      chan struct{}         // closed when spawn/resp was sent
	concluded chan struct{}         // closed when the verdict stands
}

// started is what a launch gives.
type started struct {
	pid       int
	grant     *policy.Grant
	proc      *sandbox.Process
	job       *cgroup.Job
	out       *relay.Output
	in        *relay.Input
	workspace string
	proof     proof
	at        time.Time
	shown     time.Time // at, by the clock on the wall as it was then
	eof       bool      // stdin was closed under an earlier daemon
	spool     string
	pumped    chan struct{} // closed when nothing more comes out of the pipes
}

// ending is what was seen at the end.
type ending struct {
	status    sandbox.Status
	lost      bool
	at        time.Time
	events    cgroup.Events
	usage     cgroup.Usage
	survivors []int
	denies    []sandbox.DenyEvent
}

// waiter is a request that waits for the end of a process.
type waiter struct {
	done  func(*process)
	asker *Client     // who waits; nil: whoever names the operation, and that is kept
	timer *time.Timer // after which it waits no more; nil: none
}

// stop ends the waiter's own time.
func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// await adds a waiter, and drops those whose client has left meanwhile: a process
// that lives for months must not collect them.
func (p *process) await(w *waiter) {
	p.waiters = slices.DeleteFunc(p.waiters, func(w *waiter) bool {
		if w.asker == nil || !w.asker.gone() {
			return false
		}
		w.stop()
		return true
	})
	p.waiters = append(p.waiters, w)
}

// leave takes a waiter off and reports whether it still waited.
func (p *process) leave(w *waiter) bool {
	i := slices.Index(p.waiters, w)
	if i < 0 {
		return false
	}
	p.waiters = slices.Delete(p.waiters, i, i+1)
	return true
}

// blame notes why we end the process, unless a reason stands already or its end
// was seen.
func (p *process) blame(c proto.Cause, by, scope string) {
	if p.cause != "" {
		return
	}
	switch p.state {
	case Starting, Running:
		p.cause, p.by, p.scope = c, by, scope
	case Doomed, Stopping, Killing, Ending, Ended, Kept, Gone:
	}
}

// dead reports whether a process that was started can take nothing more: its verdict
// stands, or its pen was gone already when it was taken up from an earlier daemon.
func (p *process) dead() bool { return p.verdict != nil || p.start.proc == nil }

// shrink forgets of a finished process what nobody asks about any more: a request
// alone may be a megabyte, and a session keeps maxKept of them.
func (p *process) shrink() {
	st := p.start
	r := &proto.SpawnReq{Spawn: proto.Spawn{Cmd: brief(p.req.Cmd), Labels: p.req.Labels, PTY: p.req.PTY}}
	r.ID = p.req.ID
	p.req = r
	p.start = &started{pid: st.pid, grant: &policy.Grant{Profile: st.grant.Profile}, out: st.out, at: st.at, shown: st.shown, spool: st.spool}
	p.answer, p.client = nil, nil
}

// step moves a process and carries out the effects.
func (s *Session) step(p *process, e Event) {
	m, ok := s.table.Step(p.state, e)
	if !ok {
		return
	}
	p.state = m.Next
	for _, f := range m.Effects {
		s.effect(p, f)
	}
}

func (s *Session) effect(p *process, f Effect) {
	switch f {
	case Answer:
		s.answerSpawn(p)
	case Cut:
		p.cut(nil)
	case Watch:
		s.watch(p)
	case Term:
		s.term(p)
	case KillJob:
		s.killJob(p)
	case EndRest:
		s.endRest(p)
	case Conclude:
		s.conclude(p)
	case Retain:
		s.retain(p)
	case Forget:
		s.forget(p)
	}
}

// watch starts everything that goes on beside a running process.
func (s *Session) watch(p *process) {
	st := p.start
	if p.client == s.client { // else its owner has to ask for it
		s.feed(p, p.client, nil, p.awaitTold)
	}
	if st.in != nil {
		s.wg.Go(func() {
			if err := st.in.Serve(p.ctx); err != nil && p.ctx.Err() == nil {
				s.log.Warn("stdin ended", attrProc(p.id), attrErr(err))
			}
		})
	}
	s.wg.Go(func() { s.awaitExit(p, st) })
	s.wg.Go(func() { s.watchFull(p, st) })
	s.wg.Go(func() { s.watchOOM(p, st) })
	if wall := st.grant.Timeout.Wall; wall > 0 {
		s.timer(p, wall-time.Since(st.at), func() { s.timeUp(p, proto.CauseTimeoutWall) })
	}
	if cpu := st.grant.Timeout.CPU; cpu > 0 {
		s.wg.Go(func() { s.watchCPU(p, st, cpu) })
	}
	if idle := st.grant.Timeout.Idle; idle > 0 {
		s.wg.Go(func() { s.watchIdle(p, st, idle) })
	}
}

func (s *Session) timer(p *process, d time.Duration, f func()) *time.Timer {
	t := time.AfterFunc(max(d, 0), func() { s.post(f) })
	p.timers = append(p.timers, t)
	return t
}

func (s *Session) timeUp(p *process, c proto.Cause) {
	p.blame(c, "timer", "process")
	s.step(p, TimeUp)
}

// awaitExit reports the main process's end.
func (s *Session) awaitExit(p *process, st *started) {
	status, err := st.proc.Wait(p.ctx)
	p.laps.Lap("exit")
	if err != nil && p.ctx.Err() != nil {
		return
	}
	if err != nil {
		s.log.Error("the pen ended without a record of its process", attrProc(p.id), attrErr(err))
	}
	now := time.Now()
	s.post(func() {
		if p.end.at.IsZero() { // else an earlier daemon had seen it
			p.end.at = now
		}
		p.end.status, p.end.lost = status, err != nil
		s.step(p, Exited)
	})
}

// watchFull reports that the output limit was reached.
func (s *Session) watchFull(p *process, st *started) {
	select {
	case <-p.watched.Done():
	case <-st.out.LimitHit():
		s.post(func() {
			p.blame(proto.CauseOutputLimit, "output", "process")
			s.step(p, OutputFull)
		})
	}
}

// watchOOM reports that the kernel killed in the job for memory: where it does not
// end the whole job itself, we do. On v1 a watch takes a quarter of a millisecond to
// set up: a process that ends at once is spared it. A kill before then is not missed,
// since the kernel counts it and the count is looked at first.
func (s *Session) watchOOM(p *process, st *started) {
	if !sleep(p.watched, oomAfter) {
		return
	}
	if err := st.job.WaitOOM(p.watched); err != nil {
		if p.watched.Err() == nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, cgroup.ErrGone) {
			s.log.Warn("cannot watch the memory limit, the verdict still tells of it", attrProc(p.id), attrErr(err))
		}
		return
	}
	s.post(func() {
		p.blame(proto.CauseOOM, "kernel", "")
		s.step(p, OutOfMemory)
	})
}

// watchCPU asks for the processor time used as often as the limit could have been
// reached by then, and not more than twenty times a second.
func (s *Session) watchCPU(p *process, st *started, limit time.Duration) {
	const least = 50 * time.Millisecond
	cores := time.Duration(runtime.NumCPU())
	wait := max(limit/cores, least)
	for sleep(p.watched, wait) {
		u, err := st.job.Usage()
		if p.watched.Err() != nil {
			return
		}
		if err != nil {
			s.log.Warn("cannot read processor time, asking again", attrProc(p.id), attrErr(err))
			wait = time.Second
			continue
		}
		left := limit - u.CPUUser - u.CPUSystem
		if left <= 0 {
			s.post(func() { s.timeUp(p, proto.CauseTimeoutCPU) })
			return
		}
		wait = max(left/cores, least)
	}
}

// watchIdle waits until nothing went in either direction for so long.
func (s *Session) watchIdle(p *process, st *started, limit time.Duration) {
	wait := limit
	for sleep(p.watched, wait) {
		last := st.out.LastActivity()
		if st.in != nil {
			if in := st.in.LastActivity(); in.After(last) {
				last = in
			}
		}
		wait = limit - time.Since(last)
		if wait <= 0 {
			s.post(func() { s.timeUp(p, proto.CauseTimeoutIdle) })
			return
		}
	}
}

// sleep waits for d and reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

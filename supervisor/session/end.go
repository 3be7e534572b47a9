package session

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"time"

	"pinfold/sandbox"
	"pinfold/supervisor/record"
)

// term asks the main process to end and begins its grace period. A stopped
// process gets SIGCONT too: it could not act on SIGTERM otherwise.
func (s *Session) term(p *process) {
	grace := s.graceOf(p)
	s.stopping(p, time.Now().Add(grace))
	s.signalEnd(p)
	p.grace = s.timer(p, grace, func() { s.step(p, GraceOver) })
}

// signalEnd sends what asks a process to end. Between the signal and its note a daemon
// may be killed: then the next one asks again.
func (s *Session) signalEnd(p *process) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
		if err := p.start.proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			s.log.Warn("cannot signal the process, its grace period goes on", attrProc(p.id), attrErr(err))
		}
	}
	s.rememberProcess(p, func(r *record.Process) { r.Stop.Told = true })
}

// killJob ends the whole job now: the main process with all others, or, once that
// has ended by itself, what lingers.
func (s *Session) killJob(p *process) {
	if p.state == Ending {
		p.hurry()
		return
	}
	p.killed = true
	s.killing(p)
	st := p.start
	s.wg.Go(func() { s.killCgroup(p.id, st) })
}

// killCgroup kills the job's cgroup; where that fails, PID 1 of the pen, if that is there
// still, with which the kernel ends everything inside: pid_namespaces(7).
func (s *Session) killCgroup(id string, st *started) {
	err := st.job.Kill()
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return // killed, or gone already
	}
	s.log.Error("cannot kill the process's cgroup, killing its pen", attrProc(id), attrErr(err))
	if st.proc == nil {
		return
	}
	if err := st.proc.Kill(); err != nil {
		s.log.Error("cannot kill the pen", attrProc(id), attrErr(err))
	}
}

// endRest ends what the main process left behind, drains the pipes and collects the
// figures: the process is Emptied. Once the final event has gone it records the verdict,
// which may take as long as the disk does, and takes the pen down.
func (s *Session) endRest(p *process) {
	p.unwatch()
	if p.grace != nil {
		p.grace.Stop()
	}
	st, linger := p.start, p.start.grant.Linger-time.Since(p.end.at)
	if p.cause != "" || p.end.lost {
		linger = 0
	}
	f := facts{cause: p.cause, by: p.by, scope: p.scope, end: p.end, started: st.at, shown: st.shown} // no event changes them any more
	killed := p.killed
	p.noted.hold()
	s.wg.Go(func() {
		ctx := context.WithoutCancel(p.ctx)
		lctx, cancel := context.WithTimeout(p.lingering, linger)
		if left := s.empty(ctx, lctx, p, st, f.end.at); !killed {
			f.end.survivors = left
		}
		cancel()
		if st.in != nil {
			st.in.End()
		}
		st.out.End(drainTime)
		<-st.pumped
		s.figures(p.id, st, &f.end)
		f.end.denies = s.denies(ctx, p.id, st)
		f.counts = st.out.Counts()
		v := verdict(f)
		if !s.post(func() {
			p.verdict = v
			s.step(p, Emptied)
		}) {
			return
		}
		<-p.concluded
		p.last.first() // PID 1 of the pen still knows the end, until it is dismantled
		s.noteEnd(p, f.end.at, v)
		s.noteAudit(p, v)
		s.dismantle(p.id, st)
	})
}

// figures reads what the kernel counted. A cgroup that went while there was no daemon
// has taken its figures along.
func (s *Session) figures(id string, st *started, e *ending) {
	if st.job == nil {
		return
	}
	var err error
	if e.usage, e.events, err = st.job.Figures(); err != nil {
		s.log.Warn("cannot read usage and limit events, figures and causes may be missing", attrProc(id), attrErr(err))
	}
}

// denies asks, now that nothing of the process runs any more, what became of denied
// paths that did not exist at its start.
func (s *Session) denies(ctx context.Context, id string, st *started) []sandbox.DenyEvent {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	all, err := []sandbox.DenyEvent(nil), sandbox.ErrGone
	if st.proc != nil {
		if all, err = st.proc.Denies(ctx); err == nil {
			return all
		}
	}
	s.log.Warn("cannot look for the denied paths, the verdict says unknown", attrProc(id), attrErr(err))
	for _, d := range st.proof.Denies {
		if d.Absent == sandbox.AbsentCheck || d.Absent == sandbox.AbsentPlaceholder {
			all = append(all, sandbox.DenyEvent{Path: d.Path, Change: sandbox.DenyUnknown})
		}
	}
	return all
}

// empty lets children live until linger ends, then kills the job and waits until it
// is empty. It returns the pids that were there before that kill.
func (s *Session) empty(ctx, linger context.Context, p *process, st *started, exited time.Time) []int {
	job, id := st.job, p.id
	if job == nil {
		return nil
	}
	if empty, err := job.Empty(); empty && err == nil {
		return nil // most leave nothing behind
	}
	s.rememberProcess(p, func(r *record.Process) { r.Exited = record.At(exited) })
	if linger.Err() == nil && job.WaitEmpty(linger) == nil {
		return nil
	}
	left, err := job.Pids()
	if err != nil {
		s.log.Warn("cannot list what is left of the process, ending it all the same", attrProc(id), attrErr(err))
	}
	s.killCgroup(id, st)
	ectx, cancel := context.WithTimeout(ctx, emptyTime)
	defer cancel()
	if err := job.WaitEmpty(ectx); err != nil {
		s.log.Error("the process's cgroup is not empty after a kill", attrProc(id), attrErr(err))
	}
	return left
}

// conclude lets the verdict stand: waiting requests are answered, and the place in the
// caller's quota is free. endRest goes on with the records, and the pen.
func (s *Session) conclude(p *process) {
	for _, t := range p.timers {
		t.Stop()
	}
	s.host.Registry.dropProcess(s.account())
	if s.over != "" { // its end may have taken longer than its grace period
		s.bound(cutTime)
	}
	for _, w := range p.waiters {
		w.done(p)
	}
	p.waiters = nil
	p.last = p.feed
	close(p.concluded)
	if p.feed == nil {
		s.step(p, Delivered)
		s.rest()
	}
}

// first lets a delivery come to its end, which is the final event, before what nobody
// waits for, unless its client is slow.
func (d *delivery) first() {
	if d == nil {
		return
	}
	t := time.NewTimer(finalTime)
	defer t.Stop()
	select {
	case <-d.done:
	case <-t.C:
	}
}

// dismantle removes the pen and the cgroup of an ended process. Its spool stays
// until it is forgotten.
func (s *Session) dismantle(id string, st *started) {
	laps := s.newLaps(time.Now())
	if st.proc != nil {
		s.release(id, st.proc)
	}
	laps.Lap("teardown.pen")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.base), releaseTime)
	defer cancel()
	if st.job == nil {
		return
	}
	if err := st.job.Remove(ctx); err != nil {
		s.log.Error("cannot remove the process's cgroup", attrProc(id), attrErr(err))
	}
	laps.Lap("teardown.cgroup")
	s.tellLaps(id, laps)
}

// release lets PID 1 go. One that does not, since it is stopped or frozen from
// outside, is killed.
func (s *Session) release(id string, proc *sandbox.Process) {
	try := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.base), releaseTime)
		defer cancel()
		return proc.Release(ctx)
	}
	err := try()
	if err == nil {
		return
	}
	s.log.Warn("PID 1 of the pen does not go by itself, killing it", attrProc(id), attrErr(err))
	if err := errors.Join(proc.Kill(), try()); err != nil {
		s.log.Error("cannot release the pen", attrProc(id), attrErr(err))
	}
}

// retain keeps what is known of a finished process, and its output, to be asked for.
func (s *Session) retain(p *process) {
	p.shrink()
	if s.over != "" {
		s.step(p, SessionOver)
		return
	}
	s.yield(p)
	s.timer(p, s.adm.Retention-time.Since(p.end.at), func() { s.step(p, Forgotten) })
	p.kept = true
	kept, most := 0, s.host.Registry.keep(s.account())
	for _, id := range slices.Backward(slices.Clone(s.order)) {
		if q := s.procs[id]; q != nil && q.state == Kept {
			if kept++; kept > most {
				s.step(q, Forgotten)
			}
		}
	}
}

func (s *Session) forget(p *process) {
	for _, t := range p.timers {
		t.Stop()
	}
	p.stop()
	s.forgetProcess(p)
	if p.kept {
		s.host.Registry.unkeep(s.account())
	}
	delete(s.procs, p.id)
	s.host.Registry.disown(p.id)
	s.order = slices.DeleteFunc(s.order, func(id string) bool { return id == p.id })
	s.dropSpool(p)
	s.rest()
}

func attrProc(id string) slog.Attr { return slog.String("process", id) }
func attrErr(err error) slog.Attr  { return slog.Any("error", err) }

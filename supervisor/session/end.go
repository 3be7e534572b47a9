package session

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"time"

	"pinfold/audit"
	"pinfold/proto"
	"pinfold/sandbox"
)

// term asks the main process to end and begins its grace period. A stopped
// process gets SIGCONT too: it could not act on SIGTERM otherwise.
func (s *Session) term(p *process) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
		if err := p.start.proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			s.log.Warn("cannot signal the process, its grace period goes on", attrProc(p.id), attrErr(err))
		}
	}
	p.grace = s.timer(p, s.graceOf(p), func() { s.step(p, GraceOver) })
}

func (s *Session) killJob(p *process) {
	s.wg.Go(func() {
		if err := p.start.job.Kill(); err != nil {
			s.log.Error("cannot kill the process's cgroup", attrProc(p.id), attrErr(err))
		}
	})
}

// endRest ends what the main process left behind, drains the pipes and collects
// the figures; then the process is Emptied.
func (s *Session) endRest(p *process) {
	if p.grace != nil {
		p.grace.Stop()
	}
	linger := p.start.grant.Linger
	if p.cause != "" {
		linger = 0
	}
	s.wg.Go(func() {
		ctx := context.WithoutCancel(p.ctx)
		survivors := s.empty(ctx, p, linger)
		if p.start.in != nil {
			p.start.in.End()
		}
		p.start.out.End(drainTime)
		<-p.start.pumped
		usage, err := p.start.job.Usage()
		if err != nil {
			s.log.Warn("cannot read usage, figures are missing", attrProc(p.id), attrErr(err))
		}
		events, err := p.start.job.Events()
		if err != nil {
			s.log.Warn("cannot read limit events, causes may be missing", attrProc(p.id), attrErr(err))
		}
		denies := s.denies(ctx, p)
		s.post(func() {
			p.end.usage, p.end.events, p.end.survivors, p.end.denies = usage, events, survivors, denies
			s.step(p, Emptied)
		})
	})
}

// denies asks, now that nothing of the process runs any more, what became of denied
// paths that did not exist at its start.
func (s *Session) denies(ctx context.Context, p *process) []sandbox.DenyEvent {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	all, err := p.start.proc.Denies(ctx)
	if err == nil {
		return all
	}
	s.log.Warn("cannot look for the denied paths, the verdict says unknown", attrProc(p.id), attrErr(err))
	for _, d := range p.start.enforcement.Denies {
		if d.Absent == sandbox.AbsentCheck || d.Absent == sandbox.AbsentPlaceholder {
			all = append(all, sandbox.DenyEvent{Path: d.Path, Change: sandbox.DenyUnknown})
		}
	}
	return all
}

// empty lets children live for linger, then kills the job and waits until it is
// empty. It returns the pids that were there when the main process had ended.
func (s *Session) empty(ctx context.Context, p *process, linger time.Duration) []int {
	job := p.start.job
	if linger > 0 {
		lctx, cancel := context.WithTimeout(ctx, linger)
		err := job.WaitEmpty(lctx)
		cancel()
		if err == nil {
			return nil
		}
	}
	left, err := job.Pids()
	if err != nil {
		s.log.Warn("cannot list what is left of the process, ending it all the same", attrProc(p.id), attrErr(err))
	}
	if err := job.Kill(); err != nil {
		s.log.Error("cannot kill the process's cgroup", attrProc(p.id), attrErr(err))
	}
	ectx, cancel := context.WithTimeout(ctx, emptyTime)
	defer cancel()
	if err := job.WaitEmpty(ectx); err != nil {
		s.log.Error("the process's cgroup is not empty after a kill", attrProc(p.id), attrErr(err))
	}
	return left
}

// conclude makes the verdict stand: it is recorded, waiting requests are
// answered, and pen and cgroup go.
func (s *Session) conclude(p *process) {
	for _, t := range p.timers {
		t.Stop()
	}
	p.verdict = verdict(facts{
		cause: p.cause, by: p.by, scope: p.scope, end: p.end, started: p.start.at, counts: p.start.out.Counts(),
	})
	s.live--
	s.note(audit.Ended{Process: p.id, Verdict: auditVerdict(p.verdict)})
	for _, w := range p.waiters {
		w.done(p)
	}
	p.waiters = nil
	close(p.concluded)
	s.wg.Go(func() { s.dismantle(p) })
}

// dismantle removes the pen and the cgroup of an ended process. Its spool stays
// until it is forgotten.
func (s *Session) dismantle(p *process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), releaseTime)
	defer cancel()
	if err := p.start.proc.Release(ctx); err != nil {
		s.log.Error("cannot release the pen", attrProc(p.id), attrErr(err))
	}
	if err := p.start.job.Remove(ctx); err != nil {
		s.log.Error("cannot remove the process's cgroup", attrProc(p.id), attrErr(err))
	}
	s.host.Registry.dropProcess(s.account())
}

// deliver sends the owner everything the process wrote, then the final event.
func (s *Session) deliver(p *process) {
	select {
	case <-p.told:
	case <-p.ctx.Done():
		return
	}
	st := p.start
	if err := st.out.Deliver(p.ctx, s.out.link); err != nil {
		s.out.drop()
		s.log.Info("output is not delivered, the client is gone", attrProc(p.id), attrErr(err))
		<-p.concluded
		s.later(p, Delivered)
		return
	}
	<-p.concluded
	head := st.out.Head()
	head.Stamp(time.Now())
	final := *p.verdict
	final.Output = output(st.out.Counts()) // what was dropped is known for sure once all was delivered
	line := proto.AppendFinalEvent(nil, head, st.out.NextSeq(), &final, s.opts.Form)
	if err := s.out.link.Write(line); err != nil {
		s.out.drop()
	}
	s.later(p, Delivered)
}

// retain keeps what is known of a finished process to be asked about; its output
// was delivered and goes.
func (s *Session) retain(p *process) {
	s.dropSpool(p)
	if s.over != "" {
		s.step(p, SessionOver)
		return
	}
	if s.left && s.live == 0 {
		s.end()
		return
	}
	s.timer(p, retention, func() { s.step(p, Forgotten) })
	kept := 0
	for _, id := range slices.Backward(slices.Clone(s.order)) {
		if q := s.procs[id]; q != nil && q.state == Kept {
			if kept++; kept > maxKept {
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
	delete(s.procs, p.id)
	s.host.Registry.disown(p.id)
	s.order = slices.DeleteFunc(s.order, func(id string) bool { return id == p.id })
	s.dropSpool(p)
}

// dropSpool gives back the memory of a process's output once nobody can ask for it
// any more.
func (s *Session) dropSpool(p *process) {
	if p.start == nil || p.start.spool == "" {
		return
	}
	if err := errors.Join(p.start.out.Close(), os.RemoveAll(p.start.spool)); err != nil {
		s.log.Warn("cannot remove the spool", attrProc(p.id), attrErr(err))
	}
	p.start.spool = ""
}

func attrProc(id string) slog.Attr { return slog.String("process", id) }
func attrErr(err error) slog.Attr  { return slog.Any("error", err) }

package session

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"pinfold/audit"
	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/sandbox"
	"pinfold/supervisor/record"
	"pinfold/supervisor/relay"
)

// Found is a process that an earlier daemon has left: what was known of it, and what of
// it is there still.
type Found struct {
	Record record.Process
	Mark   sandbox.Mark
	Proc   *sandbox.Process // nil: its pen is gone, or was ended since it cannot be adopted
	Job    *cgroup.Job      // nil: its cgroup is gone
	Why    error            // there is no Proc
	Ended  bool             // the audit record tells of its end
}

// takeUpProcess makes a found process one of the session's, in the state in which it is.
func (s *Session) takeUpProcess(f *Found) {
	r := &f.Record
	p := &process{
		id: r.ID, req: &proto.SpawnReq{Spawn: proto.Spawn{Cmd: r.Argv, Labels: r.Labels}}, state: Running, asked: r.Asked.Time(),
		told: make(chan struct{}), concluded: make(chan struct{}),
	}
	p.req.ID = r.Request
	if r.PTY {
		p.req.PTY = &proto.PTY{}
	}
	close(p.told) // whether it was or not: nothing is sent before somebody asks
	s.live(p)
	p.noted.r, p.noted.stored = *r, true
	p.cause, p.by, p.scope = proto.Cause(r.Stop.Cause), r.Stop.By, r.Stop.Scope
	if !r.Exited.IsZero() {
		p.end.at = r.Exited.Time()
	}
	st := &started{
		pid: r.PID, grant: grantOf(f), proc: f.Proc, job: f.Job, workspace: r.Workspace, proof: proof{Enforcement: f.Mark.Enforcement},
		at: r.Begun.Time(), shown: r.Begun.Shown(), spool: filepath.Join(s.host.State, "run", "spool", r.ID), pumped: make(chan struct{}),
		eof: r.Stdin && f.Proc != nil && f.Proc.Stdin == nil,
	}
	if err := s.reconnect(p, st); err != nil {
		s.log.Error("cannot take up the output of a process, ending it", attrProc(p.id), attrErr(err))
		s.abandon(p, st, f.Ended)
		return
	}
	p.start = st
	s.procs[p.id] = p
	s.order = append(s.order, p.id)
	s.goOn(p, f)
}

// grantOf is what of its grant a process was started with still matters.
func grantOf(f *Found) *policy.Grant {
	r := &f.Record
	g := &policy.Grant{
		Profile: r.Profile, Linger: time.Duration(r.Linger),
		Timeout: policy.Timeout{
			Wall: time.Duration(r.Timeout.Wall), CPU: time.Duration(r.Timeout.CPU),
			Idle: time.Duration(r.Timeout.Idle), Stop: time.Duration(r.Timeout.Stop),
		},
		Output: policy.Output{Keep: policy.Bytes(r.Output.Keep), Limit: policy.Bytes(r.Output.Limit), Overflow: policy.Overflow(r.Output.Overflow)},
		Quota:  policy.Quota{Output: policy.Bytes(r.Output.Quota)},
	}
	if f.Job != nil {
		l := f.Job.Limits()
		g.Cgroup.Memory, g.Cgroup.Pids = policy.Bytes(l.Memory), l.Pids
	}
	return g
}

// reconnect joins the pen's pipes to the relay again, at the byte at which it stopped. Of
// a pen that is gone there are its spools; what was in its pipes went with it.
func (s *Session) reconnect(p *process, st *started) error {
	if err := os.MkdirAll(st.spool, 0o700); err != nil {
		return err
	}
	if st.proc != nil && len(p.noted.r.Verdict) == 0 {
		if err := s.connect(p, st); err != nil {
			close(st.pumped)
			return err
		}
		s.pump(p, st)
		return nil
	}
	defer close(st.pumped)
	c := s.outputConfig(p, st)
	out, err := relay.ReopenOutput(c)
	if errors.Is(err, os.ErrNotExist) { // it ended before a byte could be taken
		out, err = relay.EmptyOutput(c)
	}
	st.out = out
	return err
}

// abandon ends a process that cannot be taken up, and tells so: nothing of it is left.
func (s *Session) abandon(p *process, st *started, audited bool) {
	p.stop()
	live := len(p.noted.r.Verdict) == 0
	if live {
		s.host.Registry.dropProcess(s.account())
	}
	s.host.Registry.disown(p.id)
	s.wg.Go(func() {
		ended := p.end.at
		if ended.IsZero() {
			ended = time.Now()
		}
		s.empty(context.WithoutCancel(s.base), p.lingering, p, st, ended) // nothing lingers: p was stopped
		v, err := stood(&p.noted.r)
		if err != nil {
			s.log.Error("cannot read the verdict of a process", attrProc(p.id), attrErr(err))
		}
		if live {
			if v.Cause == proto.CauseLost && st.proc != nil { // it is this daemon that ends it
				v.By = "daemon"
			}
			s.noteEnd(p, v.EndedAt.Time(), v)
		}
		if !audited {
			s.noteAudit(p, v)
		}
		s.dismantle(p.id, st)
		s.forgetProcess(p) // first: without its spool it would be taken up as one that wrote nothing
		if err := st.disconnect(); err != nil {
			s.log.Warn("cannot remove the spool", attrProc(p.id), attrErr(err))
		}
	})
}

// goOn enters the state in which a process is.
func (s *Session) goOn(p *process, f *Found) {
	r, state := &f.Record, "running"
	defer func() {
		e := audit.Adopted{Process: p.id, PID: r.PID, Cgroup: r.Cgroup, State: state}
		if state == "lost" && f.Why != nil {
			e.Reason = f.Why.Error()
		}
		s.note(e)
		s.log.Info("process adopted", attrProc(p.id), slog.Int("pid", r.PID), slog.String("state", state))
	}()
	switch {
	case len(r.Verdict) > 0:
		state = "kept"
		s.takeUpKept(p, f)
	case f.Proc == nil:
		state = "lost"
		p.end.lost = true
		if p.end.at.IsZero() {
			p.end.at = time.Now()
		}
		s.step(p, Exited)
	case r.Stop.Kill:
		state, p.state, p.killed = "killing", Killing, true
		s.watch(p)
		st := p.start
		s.wg.Go(func() { s.killCgroup(p.id, st) })
	case r.Stop.Cause != "":
		state, p.state = "stopping", Stopping
		s.watch(p)
		if !r.Stop.Told {
			s.signalEnd(p)
		}
		p.grace = s.timer(p, time.Until(r.Stop.Due.Time()), func() { s.step(p, GraceOver) })
	default:
		s.watch(p)
	}
}

// takeUpKept goes on with a process whose verdict stood: what was left of its pen goes,
// and it is kept for the rest of its time.
func (s *Session) takeUpKept(p *process, f *Found) {
	var err error
	if p.verdict, err = stood(&f.Record); err != nil {
		s.log.Error("cannot read the verdict of a process", attrProc(p.id), attrErr(err))
		p.verdict.Output = output(p.start.out.Counts())
	}
	p.delivered = f.Record.Told
	if !f.Ended { // the daemon was killed before it could
		s.noteAudit(p, p.verdict)
	}
	close(p.concluded)
	p.unwatch()
	st := p.start
	if st.proc != nil || st.job != nil {
		s.wg.Go(func() { s.dismantle(p.id, st) })
	}
	p.state = Ended
	s.step(p, Delivered)
}

// stood is the verdict of a process as an earlier daemon noted it. Where there is none, or it
// cannot be read, the process is lost, unless we were ending it.
func stood(r *record.Process) (*proto.Verdict, error) {
	var err error
	if len(r.Verdict) > 0 {
		v := &proto.Verdict{}
		if err = json.Unmarshal(r.Verdict, v); err == nil {
			return v, nil
		}
	}
	f := facts{
		cause: proto.Cause(r.Stop.Cause), by: r.Stop.By, scope: r.Stop.Scope,
		started: r.Begun.Time(), shown: r.Begun.Shown(), end: ending{lost: true, at: time.Now()},
	}
	if !r.Exited.IsZero() {
		f.end.at = r.Exited.Time()
	}
	return verdict(f), err
}

// End is what the audit record is to have of a process that is not taken up.
func End(r *record.Process) (audit.Ended, error) {
	v, err := stood(r)
	return audit.Ended{Process: r.ID, Verdict: auditVerdict(v)}, err
}

package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"pinfold/audit"
	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/sandbox"
)

// spawn begins one spawn: it takes a place of the quotas and lets the start run
// beside the session.
func (s *Session) spawn(r *proto.SpawnReq, c *call, answer respond) {
	refuse := func(code proto.Code, text, hint string) {
		answer(&proto.SpawnResp{Reply: proto.Refused(r, code, text, hint)}, nil)
	}
	switch {
	case r.SessionID != "" && r.SessionID != s.id:
		refuse(proto.CodeUnknownSession, fmt.Sprintf("cannot start process: session %q is not this connection's", r.SessionID), "leave session_id empty")
		return
	case s.opts.Role == proto.RoleOperator:
		refuse(proto.CodeDenied, "cannot start process: an operator's connection starts none", "connect without the role operator")
		return
	case s.over != "":
		refuse(proto.CodeShuttingDown, "cannot start process: the session is ending", "")
		return
	case s.host.Registry.denials.held(s.caller.UID, time.Now()):
		s.host.Floods.Count(s.caller.UID, audit.FloodDenied)
		refuse(proto.CodeBusy, fmt.Sprintf("cannot start process: policy has refused too many spawns of uid %d", s.caller.UID), "ask again later, and not for what was refused")
		return
	}
	if err := s.host.Registry.takeProcess(s.account(), Quota{Processes: s.adm.Quota.Processes}); err != nil {
		refuse(proto.CodeProcLimit, err.Error(), "wait for a process to end, or raise quota.processes of the caller")
		return
	}
	p := &process{id: proto.NewID(), req: r, answer: answer, client: c.from, state: Starting, asked: time.Now(), told: make(chan struct{}), concluded: make(chan struct{})}
	p.laps = s.newLaps(p.asked)
	s.live(p)
	s.procs[p.id] = p
	s.order = append(s.order, p.id)
	s.host.Registry.own(p.id, s)
	c.take = func() bool { return s.takeBack(p) }
	pol := s.host.Policy()
	s.wg.Go(func() {
		st, fail := s.launch(p, pol)
		p.cut(nil)
		s.post(func() {
			p.start, p.failure = st, fail
			if fail != nil {
				s.host.Registry.dropProcess(s.account())
				s.step(p, LaunchFailed)
				return
			}
			s.step(p, Launched)
		})
	})
}

// live gives a process the contexts of what goes on beside it.
func (s *Session) live(p *process) {
	p.ctx, p.stop = context.WithCancel(s.base)
	p.launching, p.cut = context.WithCancelCause(p.ctx)
	p.watched, p.unwatch = context.WithCancel(p.ctx)
	p.lingering, p.hurry = context.WithCancel(p.ctx)
}

// answerSpawn tells the client what became of its spawn. Output follows only
// after the answer was sent.
func (s *Session) answerSpawn(p *process) {
	if p.failure != nil {
		s.countDenial(p.failure)
		if p.begun.Load() && p.req.OpID != "" {
			uncertain(p.failure)
		}
		p.answer(p.failure, nil)
		return
	}
	st := p.start
	p.answer(&proto.SpawnResp{
		Reply: proto.Done(p.req), ProcID: p.id, PID: st.pid, Profile: st.grant.Profile,
		Workspace: st.workspace, Enforcement: st.proof.encoded, Rule: st.grant.Rule.String(),
	}, func() { close(p.told) })
}

// countDenial tells a client that asks for the same thing again so.
func (s *Session) countDenial(r *proto.SpawnResp) {
	if r.Denial == nil {
		return
	}
	key := r.Denial.Operation + "\x00" + r.Denial.Object + "\x00" + r.Denial.Rule
	if _, ok := s.denials[key]; !ok && len(s.denials) >= maxDenials {
		return
	}
	s.denials[key]++
	r.Denial.Count = s.denials[key]
	if r.Denial.Count > 1 {
		r.Denial.Final = true
	}
}

// launch walks a spawn from look to the program's exec. It runs beside the
// session and touches nothing of it that changes.
func (s *Session) launch(p *process, pol *policy.Policy) (*started, *proto.SpawnResp) {
	fail := func(err error) (*started, *proto.SpawnResp) {
		resp := p.failed(err)
		if resp.Denial == nil {
			s.log.Warn("process not started", attrProc(p.id), slog.String("code", string(resp.Code)), attrErr(err))
			s.noteFailure(p, err, resp.Code)
		}
		return nil, resp
	}
	if err := s.host.Audit.Healthy(); err != nil && pol.Audit().OnFailure == policy.FailureRefuse {
		return fail(&auditError{err})
	}
	ctx, cancel := context.WithDeadline(p.launching, p.asked.Add(startTime))
	defer cancel()
	p.laps.Lap("wait")
	f := s.foresee(p, pol)
	q := lookRequest(pol.Candidates(s.caller, request(&p.req.Spawn)))
	if st, err := s.alike(ctx, p, pol, q, f); st != nil {
		return st, nil
	} else if err != nil {
		return fail(err)
	}
	seen, g, err := s.decide(ctx, p, pol, q)
	defer func() { seen.close() }()
	p.laps.Lap("decide")
	if _, ok := errors.AsType[*policy.Denied](err); ok {
		s.host.Registry.denials.denied(s.caller.UID, time.Now())
	}
	if rerr := s.record(s.decision(p, g, err)); rerr != nil && err == nil && pol.Audit().OnFailure == policy.FailureRefuse {
		return fail(&auditError{rerr})
	}
	if err != nil {
		return fail(err)
	}
	ctx, cancel = context.WithDeadline(p.launching, p.asked.Add(g.Timeout.Start))
	defer cancel()
	if err := s.checkHost(g); err != nil {
		return fail(err)
	}
	p.laps.Lap("record")
	k, err := s.kind(ctx, p, g, seen.dir)
	if err != nil {
		return fail(err)
	}
	p.laps.Lap("plan")
	st, err := s.begin(ctx, p, pol, g, k)
	if err != nil {
		return fail(err)
	}
	if s.makeReady(p, pol, k, seen) {
		seen = nil
	}
	return st, nil
}

// checkHost says which control that a grant requires this host does not have.
func (s *Session) checkHost(g *policy.Grant) error {
	return CheckHost(g, s.host.Stage.Features().LacksWith(sandbox.NetMode(g.Net)), s.host.Cgroups.Lacks())
}

// makeReady makes a pen ready for the next spawn of a kind where one is likely, and then
// takes over what was seen.
func (s *Session) makeReady(p *process, pol *policy.Policy, k *kind, seen *seen) bool {
	if !s.ready.wants(k) {
		return false
	}
	n := &readyPen{kind: k.bare(), policy: pol, asked: bareRequest(&p.req.Spawn), seen: seen, made: make(chan struct{})} // the request goes with the end of its process
	s.wg.Go(func() {
		p.beside()
		s.prepare(n, k.files)
	})
	return true
}

// begin takes the pen that was made ready for a spawn of this kind, or a cgroup for a
// new one, and starts the process.
func (s *Session) begin(ctx context.Context, p *process, pol *policy.Policy, g *policy.Grant, k *kind) (*started, error) {
	r, err := s.ready.take(ctx, k)
	if err != nil {
		return nil, err
	}
	var job *cgroup.Job
	if r != nil {
		defer r.seen.close()
		job = r.job
		err = s.use(ctx, r)
	} else if job, err = s.makeJob(proto.NewID(), k); err != nil {
		return nil, err
	}
	p.laps.Lap("cgroup")
	var st *started
	if err == nil {
		inJob(&k.spec.Site, job.Path(), job.Join())
		st, err = s.build(ctx, p, pol, g, k, job, r)
	}
	if err != nil {
		s.removeJob(ctx, job)
		return nil, err
	}
	return st, nil
}

// use makes the pen that was ready that of a process; after an error nothing of it is left
// but its cgroup.
func (s *Session) use(ctx context.Context, r *readyPen) error {
	s.host.Registry.dropReady(s.account())
	err := r.job.Begin()
	if err != nil {
		err = errors.Join(err, r.pen.Abort(context.WithoutCancel(ctx)))
	}
	return err
}

// removeJob removes the cgroup of a process that was never started.
func (s *Session) removeJob(ctx context.Context, job *cgroup.Job) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	if err := job.Remove(ctx); err != nil {
		s.log.Error("cannot remove the cgroup of a process that was not started", slog.String("cgroup", job.Path()), attrErr(err))
	}
}

// decide looks at what the request names and asks the policy. What was seen is the
// caller's to close, also after an error.
func (s *Session) decide(ctx context.Context, p *process, pol *policy.Policy, q sandbox.LookRequest) (*seen, *policy.Grant, error) {
	l, dir, err := s.host.Stage.Look(ctx, s.conn, q)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot look at %q: %w", first(p.req.Cmd), err)
	}
	p.laps.Lap("look")
	seen := &seen{Seen: sandbox.Seen{Request: q, Looked: l}, dir: dir}
	if dir != nil {
		if seen.Mount, err = sandbox.MountOf(dir); err != nil {
			return seen, nil, fmt.Errorf("cannot look at the mount of %s: %w", dir.Name(), err)
		}
	}
	g, err := pol.Decide(s.caller, request(&p.req.Spawn), looked(l))
	return seen, g, err
}

func lookRequest(c policy.Candidates) sandbox.LookRequest {
	return sandbox.LookRequest{Programs: c.Programs, Path: c.Path, Dir: c.Dir, Under: c.Under}
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// makeJob makes a process's cgroup below those of its session and caller.
func (s *Session) makeJob(name string, k *kind) (*cgroup.Job, error) {
	s.trees.mu.Lock()
	defer s.trees.mu.Unlock()
	for try := 0; ; try++ {
		job, err := s.jobBelow(name, k.quota, k.limits)
		if errors.Is(err, cgroup.ErrGone) && try < groupTries { // the caller's last other session has just left
			continue
		}
		return job, err
	}
}

// groupTries bounds how often a cgroup is made again that another session has
// removed in between.
const groupTries = 8

func (s *Session) jobBelow(name string, quota, l cgroup.Limits) (*cgroup.Job, error) {
	caller, err := s.host.Cgroups.Caller(s.caller.UID, quota)
	if err != nil {
		return nil, fmt.Errorf("cannot make the caller's cgroup: %w", err)
	}
	group, err := caller.Session(s.id, cgroup.NoLimits())
	if err != nil {
		return nil, fmt.Errorf("cannot make the session's cgroup: %w", err)
	}
	s.trees.groups = []*cgroup.Group{group, caller}
	job, err := group.Process(name, l)
	if err != nil {
		return nil, fmt.Errorf("cannot make the process's cgroup: %w", err)
	}
	return job, nil
}

// build brings a pen to its last gate, records it, and opens that gate.
func (s *Session) build(ctx context.Context, p *process, pol *policy.Policy, g *policy.Grant, k *kind, job *cgroup.Job, ready *readyPen) (*started, error) {
	pen, shown, err := s.raise(ctx, p, k, job, ready)
	if err != nil {
		return nil, err
	}
	p.laps.Add(pen.Laps)
	p.laps.Lap("launch")
	st := newStarted(g, job, shown)
	if err = s.register(p, st, pen.Pid, pen.Mark()); err != nil {
		return nil, errors.Join(err, pen.Abort(context.WithoutCancel(ctx)), st.disconnect())
	}
	p.laps.Lap("note")
	return s.begun(ctx, p, pol, st, pen, s.encode(s.start(p, st)))
}

// raise brings a pen to its last gate: the one that is ready, where it is still what
// would be built now, else a new one.
func (s *Session) raise(ctx context.Context, p *process, k *kind, job *cgroup.Job, ready *readyPen) (*sandbox.Pen, proof, error) {
	k.spec.Command.Timed = p.laps != nil
	if ready != nil {
		err := ready.pen.Send(ctx, s.conn, k.spec.Command, sandbox.OnLook, 0)
		var pen *sandbox.Pen
		if err == nil {
			pen, err = ready.commanded(ctx)
		}
		if err == nil || ctx.Err() != nil {
			return pen, ready.shown, err
		}
		s.log.Debug("the pen that was ready cannot be used, building another", attrProc(p.id), attrErr(err))
	}
	pen, err := s.host.Stage.Launch(ctx, s.conn, k.spec, k.files)
	if err != nil {
		return nil, proof{}, err
	}
	shown, err := proofOf(pen.Enforcement, k.controls, job.Applied())
	if err != nil {
		return nil, proof{}, errors.Join(err, pen.Abort(context.WithoutCancel(ctx)))
	}
	return pen, shown, nil
}

// commanded waits until the pen that is ready has its command.
func (n *readyPen) commanded(ctx context.Context) (*sandbox.Pen, error) {
	soon, cancel := context.WithTimeout(ctx, maxReadyStart)
	defer cancel()
	return n.pen.Launch(soon)
}

// place fills in what the plan needs beside the grant, and the descriptors of its
// attaches in their order. The grant's environment gets what is in its envdir.
func (s *Session) place(ctx context.Context, p *process, g *policy.Grant, dir *os.File) (Place, []*os.File, error) {
	uid, gid, err := s.runIDs(g)
	if err != nil {
		return Place{}, nil, err
	}
	if g.Env, err = withEnvDir(g.Env, g.EnvDir); err != nil {
		return Place{}, nil, err
	}
	pl := Place{
		Name: g.RunAs.Name, UID: uid, GID: gid, DiskUID: s.caller.UID, DiskGID: s.caller.GID, Stdin: sandbox.StdinMode(p.req.StdinMode),
	}
	if p.req.PTY != nil {
		pl.Rows, pl.Cols = p.req.PTY.Rows, p.req.PTY.Cols
	}
	var files []*os.File
	if hasHome(g) {
		t, err := s.home(ctx, g, uid, gid)
		if err != nil {
			return Place{}, nil, err
		}
		pl.Home, files = t.id, append(files, t.dir)
	}
	if g.Workspace.Scratch {
		t, err := s.scratch(ctx, "work", uid, gid)
		if err != nil {
			return Place{}, nil, err
		}
		pl.Work, files = t.id, append(files, t.dir)
	} else {
		pl.Work, files = sandbox.Identity(g.Workspace.Dir.ID), append(files, dir)
	}
	return pl, files, nil
}

// listed returns every file that the grant's programs are made of.
func listed(g *policy.Grant) ([]string, error) {
	var paths []string
	for _, c := range g.Commands {
		paths = append(paths, c.Path)
	}
	files, err := sandbox.Closure(paths)
	if err != nil {
		return nil, fmt.Errorf("cannot find what the listed programs need: %w", err)
	}
	return files, nil
}

// startTime bounds what comes before the policy's own start timeout is known.
const startTime = 10 * time.Second

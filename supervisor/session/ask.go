package session

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pinfold/audit"
	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/proto"
)

// reach runs f for a process of this session, or, for an operator, of another
// session that policy lets it manage; there it runs on that session's goroutine.
func (s *Session) reach(r proto.Request, id string, answer respond, f func(*Session, *process)) {
	if p := s.procs[id]; p != nil {
		f(s, p)
		return
	}
	t := s.host.Registry.owner(id)
	if t == nil || !s.manages(t) {
		answer(proto.UnknownProc(r), nil)
		return
	}
	s.wg.Go(func() {
		s.note(operatorUse(r, id, t.id)) // before it is done
		ok := t.post(func() {
			p := t.procs[id]
			if p == nil {
				answer(proto.UnknownProc(r), nil)
				return
			}
			f(t, p)
		})
		if !ok {
			answer(proto.UnknownProc(r), nil)
		}
	})
}

// operatorUse is the record of an operator's request about another session's process.
func operatorUse(r proto.Request, process, target string) audit.OperatorUse {
	use := audit.OperatorUse{Action: string(r.Kind()), Process: process, Target: target}
	if k, ok := r.(*proto.KillReq); ok {
		use.Signal = string(k.Signal)
	}
	return use
}

// manages reports whether this connection may see and end the processes of t.
func (s *Session) manages(t *Session) bool {
	if s.opts.Role != proto.RoleOperator {
		return false
	}
	switch s.adm.Manage {
	case policy.ManageAll:
		return true
	case policy.ManageOwn:
		return t.caller.UID == s.caller.UID
	case policy.ManageNone:
	}
	return false
}

func (s *Session) status(r *proto.StatusReq, answer respond) {
	if r.ProcID == "" {
		s.gather(r, func(all []proto.ProcStatus) {
			running := 0
			for _, p := range all {
				if p.State == proto.StateRunning {
					running++
				}
			}
			shown, omitted := fit(all)
			answer(&proto.StatusResp{Reply: proto.Done(r), Status: proto.RunningStatus(running), Procs: shown, Omitted: omitted}, nil)
		})
		return
	}
	s.reach(r, r.ProcID, answer, func(t *Session, p *process) {
		st := t.procStatus(p)
		answer(&proto.StatusResp{Reply: proto.Done(r), ProcID: p.id, Status: st.Status, Proc: &st}, nil)
	})
}

func (s *Session) list(r *proto.ListReq, answer respond) {
	s.gather(r, func(all []proto.ProcStatus) {
		if r.Label != "" {
			all = slices.DeleteFunc(all, func(p proto.ProcStatus) bool { return !slices.Contains(p.Labels, r.Label) })
		}
		shown, omitted := fit(all)
		answer(&proto.ListResp{Reply: proto.Done(r), Procs: shown, Omitted: omitted}, nil)
	})
}

// gather collects the status of every process that this connection may see, by
// age, and hands it on; for an operator each session is asked in turn.
func (s *Session) gather(r proto.Request, done func([]proto.ProcStatus)) {
	own := s.statuses()
	if s.opts.Role != proto.RoleOperator {
		done(own)
		return
	}
	s.wg.Go(func() {
		s.note(operatorUse(r, "", ""))
		all := own
		for _, t := range s.host.Registry.all() {
			if t == s || !s.manages(t) {
				continue
			}
			got := make(chan []proto.ProcStatus, 1)
			if !t.post(func() { got <- t.statuses() }) {
				continue
			}
			select {
			case list := <-got:
				all = append(all, list...)
			case <-t.done:
			}
		}
		slices.SortFunc(all, func(a, b proto.ProcStatus) int { return cmp.Compare(a.StartedAt, b.StartedAt) })
		done(all)
	})
}

func (s *Session) statuses() []proto.ProcStatus {
	all := []proto.ProcStatus{}
	for _, id := range s.order {
		if p := s.procs[id]; p != nil && p.start != nil {
			all = append(all, s.procStatus(p))
		}
	}
	return all
}

func (s *Session) procStatus(p *process) proto.ProcStatus {
	uid, argv := s.caller.UID, brief(p.req.Cmd)
	st := proto.ProcStatus{
		ProcID: p.id, Cmd: proto.CommandLine(argv), State: p.verdict.State(), Status: p.verdict.Status(),
		ExitCode: p.verdict.ExitCode(), Verdict: p.verdict, Argv: argv, Labels: p.req.Labels,
		SessionID: s.id, UID: &uid,
	}
	if p.start == nil {
		return st
	}
	counts := output(p.start.out.Counts())
	st.PID, st.StartedAt, st.Profile, st.Output = p.start.pid, proto.TimestampOf(p.start.shown), p.start.grant.Profile, &counts
	st.Age = proto.SecondsOf(time.Since(p.start.at))
	if p.verdict != nil {
		u := p.verdict.Usage
		st.Usage = &u
	}
	return st
}

// stats answers with what the kernel counts now; of an ended process with what
// stood at its end.
func (s *Session) stats(p *process, r *proto.StatsReq, answer respond) {
	if p.start == nil {
		answer(proto.UnknownProc(r), nil)
		return
	}
	verdict, st := p.verdict, p.start
	s.wg.Go(func() {
		figures := proto.Stats{Output: output(st.out.Counts())}
		cur := st.out.Cursor()
		figures.Delivered = proto.Size(cur.Stdout + cur.Stderr)
		if st.in != nil {
			taken, queued := st.in.Counts()
			figures.StdinBytes, figures.StdinQueued = proto.Size(taken), proto.Size(queued)
		}
		reply := proto.Done(r)
		if verdict != nil {
			figures.Usage = verdict.Usage
		} else if err := s.liveFigures(st, &figures); err != nil {
			reply = proto.Refused(r, proto.CodeInternal, fmt.Sprintf("cannot read figures of the process: %v", err), "ask again; if the process has just ended, ask for its status")
		}
		answer(&proto.StatsResp{Reply: reply, ProcID: p.id, Status: verdict.Status(), Stats: &figures}, nil)
	})
}

// liveFigures fills in the figures of a running process.
func (s *Session) liveFigures(st *started, f *proto.Stats) error {
	if st.job == nil {
		return cgroup.ErrGone // it went with the pen while there was no daemon
	}
	u, err := st.job.Usage()
	if err != nil {
		return err
	}
	e, err := st.job.Events()
	if err != nil {
		return err
	}
	f.Usage = usage(ending{usage: u, at: time.Now()}, st.at)
	f.MemoryCurrent, f.PidsCurrent = known(u.Memory), max(u.Pids, 0)
	f.MemoryLimit, f.PidsLimit = proto.Size(max(st.grant.Cgroup.Memory, 0)), max(st.grant.Cgroup.Pids, 0)
	f.OOMKills, f.PidsRefused = e.OOMKills, e.PidsRefused
	return nil
}

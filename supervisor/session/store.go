package session

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"pinfold/audit"
	"pinfold/proto"
	"pinfold/sandbox"
	"pinfold/supervisor/record"
)

// What a next daemon needs of a session and of its processes is on disk before anything
// depends on it: the session before its client knows of it, a process before its
// program runs, the reason of an end before we bring it about, a verdict before PID 1
// of the pen is let go.

// noted is a record that is kept up to date on disk, from any goroutine: what was
// changed last is what lies there last.
type noted[R any] struct {
	mu      sync.Mutex
	r       R
	stored  bool // it is on disk
	held    bool // it stays there until letGo
	dropped bool // meanwhile
}

// begin stores the record for the first time.
func (n *noted[R]) begin(r R, put func(R) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := put(r); err != nil {
		return err
	}
	n.r, n.stored = r, true
	return nil
}

// change changes the record and stores it; one that was never begun, or was dropped, is left alone.
func (n *noted[R]) change(f func(*R), put func(R) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.stored {
		return nil
	}
	f(&n.r)
	return put(n.r)
}

// later is change for what may wait until letGo, where that is still to come.
func (n *noted[R]) later(f func(*R), put func(R) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.stored {
		return nil
	}
	f(&n.r)
	if n.held {
		return nil
	}
	return put(n.r)
}

// hold keeps the record on disk until letGo, whoever drops it.
func (n *noted[R]) hold() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = true
}

// letGo ends hold: the record is removed if it was dropped meanwhile, else changed.
func (n *noted[R]) letGo(f func(*R), put func(R) error, remove func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = false
	if !n.stored {
		return nil
	}
	if n.dropped {
		n.stored = false
		return remove()
	}
	f(&n.r)
	return put(n.r)
}

// drop removes the record.
func (n *noted[R]) drop(remove func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held {
		n.dropped = true
		return nil
	}
	if !n.stored {
		return nil
	}
	n.stored = false
	return remove()
}

// remember changes what the next daemon knows of the session.
func (s *Session) remember(f func(*record.Session)) {
	if err := s.noted.change(f, s.host.Records.PutSession); err != nil {
		s.log.Error("a next daemon would not know how the session stands", attrErr(err))
	}
}

// rememberProcess changes what the next daemon knows of a process.
func (s *Session) rememberProcess(p *process, f func(*record.Process)) {
	if err := p.noted.change(f, s.host.Records.PutProcess); err != nil {
		s.log.Error("a next daemon would not know how the process stands", attrProc(p.id), attrErr(err))
	}
}

// forgetSession and forgetProcess remove the record of what is over.
func (s *Session) forgetSession() {
	if err := s.ops.close(); err != nil {
		s.log.Warn("cannot close the record of operations", attrErr(err))
	}
	if err := s.noted.drop(func() error { return s.host.Records.DropSession(s.id) }); err != nil {
		s.log.Error("a next daemon would take up a session that has ended", attrErr(err))
	}
}

func (s *Session) forgetProcess(p *process) {
	if err := p.noted.drop(func() error { return s.host.Records.DropProcess(p.id) }); err != nil {
		s.log.Error("a next daemon would take up a process that is forgotten", attrProc(p.id), attrErr(err))
	}
}

// noteSession stores the session for the first time.
func (s *Session) noteSession() error {
	c, a := s.caller, s.adm
	return s.noted.begin(record.Session{
		ID: s.id, Boot: s.host.Boot, Opened: record.Now(),
		Caller: record.Caller{UID: c.UID, GID: c.GID, GIDs: c.GIDs, Name: c.Name, Home: c.Home, Unit: c.Unit, UnitKnown: c.UnitKnown},
		Admission: record.Admission{
			Caller: a.Caller, Rule: record.Rule(a.Rule), Profiles: a.Profiles, Manage: string(a.Manage), RunAs: a.RunAs,
			DetachTTL: record.Nanos(a.DetachTTL), Retention: record.Nanos(a.Retention), Sessions: a.Quota.Sessions, Processes: a.Quota.Processes,
		},
		Role: string(s.opts.Role), Form: string(s.opts.Form), Batch: s.opts.Batch,
	}, s.host.Records.PutSession)
}

// noteProcess stores a process whose target waits at its last gate.
func (s *Session) noteProcess(p *process, st *started, m sandbox.Mark) error {
	m.Enforcement = sandbox.Enforcement{Denies: m.Enforcement.Denies} // the audit record has the rest
	mark, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("cannot encode what finds the pen again: %w", err)
	}
	g := st.grant
	return p.noted.begin(record.Process{
		ID: p.id, Session: s.id, Boot: s.host.Boot, Mark: mark, Cgroup: st.job.Path(), PID: st.pid,
		Request: p.req.Base().ID, Op: p.req.OpID, Rule: g.Rule.String(), Argv: brief(p.req.Cmd), Labels: p.req.Labels, PTY: p.req.PTY != nil, Stdin: p.req.PTY == nil && p.req.StdinMode != proto.StdinNull,
		Profile: g.Profile, Workspace: st.workspace, Asked: record.At(p.asked), Begun: record.At(st.at),
		Timeout: record.Timeout{
			Wall: record.Nanos(g.Timeout.Wall), CPU: record.Nanos(g.Timeout.CPU),
			Idle: record.Nanos(g.Timeout.Idle), Stop: record.Nanos(g.Timeout.Stop),
		},
		Linger: record.Nanos(g.Linger),
		Output: record.Output{
			Keep: int64(g.Output.Keep), Limit: int64(g.Output.Limit), Overflow: string(g.Output.Overflow), Quota: int64(g.Quota.Output),
		},
	}, s.host.Records.PutProcess)
}

// stopping notes why we end a process, before we do; due is the end of its grace period.
func (s *Session) stopping(p *process, due time.Time) {
	s.rememberProcess(p, func(r *record.Process) {
		r.Stop = record.Stop{Cause: string(p.cause), By: p.by, Scope: p.scope, Due: record.At(due)}
	})
}

// killing notes that the job of a process is to be killed.
func (s *Session) killing(p *process) {
	s.rememberProcess(p, func(r *record.Process) {
		r.Stop.Cause, r.Stop.By, r.Stop.Scope, r.Stop.Kill = string(p.cause), p.by, p.scope, true
	})
}

// noteTold notes that the owner of a process was sent everything, once at least.
func (s *Session) noteTold(p *process) {
	if p.delivered {
		return
	}
	p.delivered = true
	if err := p.noted.later(func(r *record.Process) { r.Told = true }, s.host.Records.PutProcess); err != nil {
		s.log.Error("a next daemon would keep the output of a process in the way of others", attrProc(p.id), attrErr(err))
	}
}

// noteAudit writes the end of a process to the audit record, until which its own record
// stays: a next daemon would write what this one could not.
func (s *Session) noteAudit(p *process, v *proto.Verdict) {
	failed := s.record(audit.Ended{Process: p.id, Verdict: auditVerdict(v)})
	err := p.noted.letGo(func(r *record.Process) { r.Audited = failed == nil }, s.host.Records.PutProcess,
		func() error { return s.host.Records.DropProcess(p.id) })
	if err != nil {
		s.log.Error("a next daemon would look for the end of a process in the audit record", attrProc(p.id), attrErr(err))
	}
}

// noteEnd notes the verdict of a process, and when its end was seen.
func (s *Session) noteEnd(p *process, at time.Time, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		s.log.Error("cannot encode the verdict for a next daemon", attrProc(p.id), slog.Any("error", err))
		return
	}
	s.rememberProcess(p, func(r *record.Process) { r.Exited, r.Verdict = record.At(at), text })
}

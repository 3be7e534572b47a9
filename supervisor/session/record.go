package session

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"pinfold/audit"
	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/sandbox"
)

// record writes one audit event of this session. What cannot be written is
// logged; a start that policy does not allow unrecorded asks for the error.
func (s *Session) record(e audit.Event) error { return s.encode(e).write() }

// encoded are audit events of a session that are to be written together.
type encoded struct {
	s    *Session
	list []audit.Encoded
	err  error // of those that could not be encoded
}

// encode does ahead of its time what takes long of an audit record.
func (s *Session) encode(events ...audit.Event) encoded {
	e := encoded{s: s}
	for _, event := range events {
		c, err := audit.Encode(event)
		if err != nil {
			e.err = errors.Join(e.err, err)
			continue
		}
		e.list = append(e.list, c)
	}
	return e
}

// write writes all that it can; what the file does not take the log counts.
func (e encoded) write() error {
	err := e.err
	for _, c := range e.list {
		err = errors.Join(err, e.s.host.Audit.Write(audit.Subject{Session: e.s.id, Caller: e.s.adm.Caller, UID: e.s.caller.UID}, c))
	}
	if err != nil {
		e.s.log.Error("cannot write the audit record", attrErr(err))
	}
	return err
}

// note is record where nothing depends on it.
func (s *Session) note(e audit.Event) {
	_ = s.record(e) // record has logged it, and the log's health refuses the next start
}

// decision is what policy said to a spawn.
func (s *Session) decision(p *process, g *policy.Grant, why error) audit.Decision {
	r := p.req
	e := audit.Decision{
		Process: p.id, Request: r.ID, Allowed: why == nil, Profile: r.Profile, Argv: r.Cmd, Cwd: r.Cwd,
		TimeoutMs: r.Timeout.Duration().Milliseconds(), GIDs: s.caller.GIDs,
	}
	for k, v := range r.Env {
		e.Env = append(e.Env, k+"="+v)
	}
	var rule policy.Rule
	var denied *policy.Denied
	switch {
	case g != nil:
		rule, e.Profile, e.Program = g.Rule, g.Profile, s.host.Hasher.Lookup(file(g.Program))
	case errors.As(why, &denied):
		rule, e.Code = denied.Rule, string(denied.Code)
	default:
		e.Code = string(proto.CodeInternal)
	}
	e.Rule, e.RuleFile, e.RuleLine = rule.Text, rule.File, rule.Line
	return e
}

func file(f policy.Fact) audit.File {
	return audit.File{Path: f.Path, ID: audit.FileID{Dev: f.ID.Dev, Ino: f.ID.Ino, Size: f.Size, MtimeNs: f.MtimeNs, CtimeNs: f.CtimeNs}}
}

// proof is what the kernel showed of a pen, and the same in JSON for the answer and the
// audit file.
type proof struct {
	sandbox.Enforcement
	encoded jsontext.Value
}

// proofOf adds what the cgroup files show to what a pen showed.
func proofOf(e sandbox.Enforcement, controls []policy.Need, applied []cgroup.Setting) (r proof, err error) {
	if r.Enforcement, err = withCgroups(e, controls, applied); err != nil {
		return proof{}, err
	}
	if r.encoded, err = json.Marshal(r.Enforcement); err != nil {
		return proof{}, fmt.Errorf("cannot encode the enforcement record: %w", err)
	}
	return r, nil
}

// start tells of a pen that waits at its last gate.
func (s *Session) start(p *process, st *started) audit.Started {
	return audit.Started{
		Process: p.id, PID: st.pid, Profile: st.grant.Profile, Program: s.host.Hasher.Lookup(file(st.grant.Program)),
		RunUID: st.proof.UID, Workspace: st.workspace, Cgroup: st.job.Path(), Enforcement: st.proof.encoded,
	}
}

// noteFailure records a spawn that was allowed and did not come to run.
func (s *Session) noteFailure(p *process, why error, code proto.Code) {
	e := audit.StartFailed{Process: p.id, Code: string(code), Reason: why.Error()}
	if step, ok := errors.AsType[*sandbox.StepError](why); ok {
		e.Step = step.Where + ": " + step.Text
		if step.Errno != 0 {
			e.Errno = step.Errno.Error()
		}
	}
	s.note(e)
}

func auditVerdict(v *proto.Verdict) audit.Verdict {
	u := v.Usage
	var denies []audit.Deny
	for _, d := range v.Denies {
		denies = append(denies, audit.Deny{Path: d.Path, Change: string(d.Change)})
	}
	return audit.Verdict{
		Cause: string(v.Cause), Code: v.Code, Signal: v.Signal, Core: v.Core, Stage: v.Stage, Scope: v.Scope, By: v.By,
		Usage: audit.Usage{
			Wall: float64(u.Wall), User: float64(u.User), System: float64(u.System), MemoryPeak: int64(u.MemoryPeak),
			ReadBytes: int64(u.ReadBytes), WriteBytes: int64(u.WriteBytes),
			VoluntarySwitches: u.VoluntarySwitches, InvoluntarySwitches: u.InvoluntarySwitches, Throttled: float64(u.Throttled),
		},
		Output:    audit.Output{Stdout: int64(v.Output.Stdout), Stderr: int64(v.Output.Stderr), Dropped: int64(v.Output.Dropped), Drained: v.Output.Drained},
		Survivors: v.Survivors, Denies: denies, StartedAt: v.StartedAt.Time(), EndedAt: v.EndedAt.Time(),
	}
}

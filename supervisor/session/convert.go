package session

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/sandbox"
)

// request is a spawn as the policy sees it.
func request(r *proto.Spawn) policy.Request {
	q := policy.Request{
		Cmd: r.Cmd, Cwd: r.Cwd, Env: r.Env, Profile: r.Profile, Timeout: r.Timeout.Duration(), PTY: r.PTY != nil, Labels: r.Labels,
	}
	if l := r.Limits; l != nil {
		q.Limits = &policy.Narrow{
			Memory: policy.Bytes(l.Memory), Pids: l.Pids, CPU: l.CPU, Output: policy.Bytes(l.Output),
			CPUTime: l.TimeoutCPU.Duration(), Idle: l.TimeoutIdle.Duration(),
		}
	}
	return q
}

// looked is what was looked at, as the policy sees it.
func looked(l sandbox.Looked) policy.Facts {
	return policy.Facts{Programs: convert(l.Programs), Dir: fact(l.Dir), Under: convert(l.Under)}
}

func convert(fs []sandbox.Fact) []policy.Fact {
	out := make([]policy.Fact, len(fs))
	for i, f := range fs {
		out[i] = fact(f)
	}
	return out
}

func fact(f sandbox.Fact) policy.Fact {
	return policy.Fact{
		Name: f.Name, Path: f.Path, ID: policy.Identity(f.ID), UID: f.UID, GID: f.GID, Mode: f.Mode, Size: f.Size,
		MtimeNs: f.MtimeNs, CtimeNs: f.CtimeNs, Kind: policy.Kind(f.Kind), Interp: f.Interp, Executable: f.Executable, Err: f.Err,
	}
}

// auditError says that a start was refused because it could not be recorded.
type auditError struct{ err error }

func (e *auditError) Error() string {
	return fmt.Sprintf("cannot start process: its audit record cannot be written: %v", e.err)
}

func (e *auditError) Unwrap() error { return e.err }

// failure turns the error of a start into its answer: the wall where causes
// become codes. Nothing internal but the failed step crosses it.
func failure(r *proto.SpawnReq, err error) *proto.SpawnResp {
	resp := &proto.SpawnResp{}
	set := func(code proto.Code, hint string) { resp.Reply = proto.Refused(r, code, err.Error(), hint) }
	var denied *policy.Denied
	var lacking *LackingError
	var all lackingErrors
	var step *sandbox.StepError
	var audited *auditError
	var runAs *runAsError
	switch {
	case errors.As(err, &denied):
		set(denialCode(denied.Code), denied.Advice())
		resp.Rule = denied.Rule.String()
		resp.Denial = &proto.Denial{
			Operation: denied.Op, Object: denied.Object, Layer: "policy", Rule: denied.Rule.Text, File: denied.Rule.File,
			Line: denied.Rule.Line, Nearest: denied.Nearest, Who: denied.Who, Final: denied.Final,
		}
	case errors.As(err, &audited):
		set(proto.CodeAuditUnavailable, "free space where the audit log lies, or set audit.on_failure: continue in the policy")
	case errors.As(err, &all):
		set(proto.CodeUnsupported, all.fix())
		resp.Stage = string(all[0].Control)
	case errors.As(err, &lacking):
		set(proto.CodeUnsupported, lacking.Fix)
		resp.Stage = string(lacking.Control)
	case errors.As(err, &runAs):
		set(proto.CodeUnsupported, runAs.hint())
	case errors.As(err, &step):
		set(proto.CodeStartFailed, step.Hint)
		resp.Stage = step.Where + ": " + step.Text
	case errors.Is(err, sandbox.ErrBusy):
		set(proto.CodeBusy, "ask again: too many starts are under way")
	case errors.Is(err, sandbox.ErrUnsupported):
		set(proto.CodeUnsupported, "run pinfold doctor")
	case errors.Is(err, sandbox.ErrStageGone):
		resp.Reply = proto.Refused(r, proto.CodeShuttingDown, "cannot start process: the daemon has lost its stage and is ending", "connect again")
	case errors.Is(err, context.Canceled):
		resp.Reply = proto.Refused(r, proto.CodeShuttingDown, "cannot start process: the session ended meanwhile", "")
	case errors.Is(err, context.DeadlineExceeded):
		resp.Reply = proto.Refused(r, proto.CodeStartFailed, "cannot start process: the start took too long", "raise timeout.start of the profile, or find out what keeps this host busy")
	default:
		set(proto.CodeStartFailed, "see the daemon's log")
	}
	return resp
}

func denialCode(c policy.Code) proto.Code {
	switch c {
	case policy.CodeNotFound:
		return proto.CodeNotFound
	case policy.CodeInvalid:
		return proto.CodeSchemaViolation
	case policy.CodeUnauthorized:
		return proto.CodeUnauthorized
	case policy.CodeDenied, policy.CodeNotExecutable, policy.CodeUnknownProfile:
	}
	return proto.CodeDenied
}

// withCgroups adds what the cgroup files show to the record of a pen. A required
// limit that is not in force is an error.
func withCgroups(e sandbox.Enforcement, controls []policy.Need, applied []cgroup.Setting) (sandbox.Enforcement, error) {
	for _, n := range controls {
		name, ok := controller(n.Control)
		if !ok {
			continue
		}
		st := sandbox.ControlState{Control: sandbox.Control(n.Control), Level: sandbox.Level(n.Level), State: sandbox.StateOff}
		for _, a := range applied {
			if a.Controller != name {
				continue
			}
			switch a.State {
			case cgroup.StateApplied:
				st.State, st.ProvedBy = sandbox.StateEnforced, sandbox.ProofCgroup
				st.Detail = join(st.Detail, a.File+"="+a.Value)
			case cgroup.StateUnsupported:
				if n.Level == policy.LevelRequired {
					return e, &LackingError{Control: sandbox.Control(n.Control), Why: a.Why}
				}
				st.State = sandbox.StateUnsupported
				st.Detail = join(st.Detail, a.Why)
				e.Degraded = append(e.Degraded, string(n.Control)+": "+a.Why)
			}
		}
		e.Controls = put(e.Controls, st)
	}
	order := sandbox.Controls()
	slices.SortStableFunc(e.Controls, func(a, b sandbox.ControlState) int {
		return slices.Index(order, a.Control) - slices.Index(order, b.Control)
	})
	for _, a := range applied {
		if a.Controller == cgroup.ControllerSwap && a.State == cgroup.StateUnsupported {
			e.Degraded = append(e.Degraded, "swap: "+a.Why)
		}
		if a.Controller == cgroup.ControllerSockets && a.State == cgroup.StateUnsupported {
			e.Degraded = append(e.Degraded, "memory: buffers of sockets are not limited: "+a.Why)
		}
	}
	if e.Degraded == nil {
		e.Degraded = []string{}
	}
	return e, nil
}

// put replaces the state of a control in the record, or adds it.
func put(list []sandbox.ControlState, st sandbox.ControlState) []sandbox.ControlState {
	for i := range list {
		if list[i].Control == st.Control {
			list[i] = st
			return list
		}
	}
	return append(list, st)
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + " " + b
}

func controller(c policy.Control) (string, bool) {
	switch c {
	case policy.ControlMemory:
		return cgroup.ControllerMemory, true
	case policy.ControlPids:
		return cgroup.ControllerPids, true
	case policy.ControlCPU:
		return cgroup.ControllerCPU, true
	case policy.ControlIO:
		return cgroup.ControllerIO, true
	case policy.ControlMounts, policy.ControlLandlock, policy.ControlSeccomp, policy.ControlCaps, policy.ControlUserNS,
		policy.ControlPidNS, policy.ControlIPCNS, policy.ControlNetNS, policy.ControlRlimits:
	}
	return "", false
}

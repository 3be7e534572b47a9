package session

import (
	"bytes"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"pinfold/proto"
	"pinfold/supervisor/ops"
	"pinfold/supervisor/record"
)

// restoreOps takes up what an earlier daemon knew of the session's operations. Where that
// cannot be read, nothing is said of any operation before now.
func (s *Session) restoreOps(found []Found) {
	err := s.recall(func(e *ops.Entry) { s.settleSpawn(e, found) })
	if err == nil {
		return
	}
	s.log.Error("it is not known any more what became of the session's operations", attrErr(err))
	path, err := s.host.Records.Operations(s.id)
	if err == nil {
		s.ops.record, s.ops.file, err = ops.Reset(path, time.Now())
	}
	if err != nil {
		s.log.Error("the session's operations are not recorded", attrErr(err))
	}
}

// settleSpawn concludes a spawn that was under way. Its process is there, and then it was
// started; or that was never recorded, and then its program has not run. Of one whose pen
// is gone nobody knows whether it came to run.
func (s *Session) settleSpawn(e *ops.Entry, found []Found) {
	if e.Request != proto.TypeSpawnReq {
		return
	}
	for i := range found {
		f := &found[i]
		if f.Record.Op != e.ID {
			continue
		}
		if f.Proc == nil && len(f.Record.Verdict) == 0 {
			return
		}
		answer, err := spawnAnswer(&f.Record)
		if err != nil {
			s.log.Error("cannot encode the answer of a spawn", attrProc(f.Record.ID), attrErr(err))
			return
		}
		e.Outcome, e.At, e.Answer = proto.OutcomeApplied, proto.TimestampOf(time.Now()), answer
		return
	}
	e.Outcome = proto.OutcomeNotSent
}

// spawnAnswer is the answer that the spawn of a process would have got, without the
// enforcement, which the audit record has.
func spawnAnswer(r *record.Process) (jsontext.Value, error) {
	req := &proto.SpawnReq{}
	req.ID = r.Request
	line, err := proto.Append(nil, &proto.SpawnResp{
		Reply: proto.Done(req), ProcID: r.ID, PID: r.PID, Profile: r.Profile, Workspace: r.Workspace, Rule: r.Rule,
	})
	return jsontext.Value(bytes.TrimSuffix(line, []byte{'\n'})), err
}

package session

import (
	"log/slog"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"pinfold/proto"
	"pinfold/sandbox"
	"pinfold/supervisor/ops"
	"pinfold/supervisor/record"
)

// TestASpawnUnderWayIsKnownByItsProcess: by the process that it started, by its having
// none, and else not at all.
func TestASpawnUnderWayIsKnownByItsProcess(t *testing.T) {
	s := &Session{log: slog.New(slog.DiscardHandler)}
	lives := Found{Record: record.Process{ID: "p1", Op: "lives", PID: 7, Request: "r", Profile: "work"}, Proc: &sandbox.Process{}}
	ended := Found{Record: record.Process{ID: "p2", Op: "ended", Verdict: jsontext.Value("{}")}}
	gone := Found{Record: record.Process{ID: "p3", Op: "gone"}}
	for _, row := range []struct {
		id      string
		request proto.Type
		want    proto.Outcome
		process string
	}{
		{"lives", proto.TypeSpawnReq, proto.OutcomeApplied, "p1"},
		{"ended", proto.TypeSpawnReq, proto.OutcomeApplied, "p2"},
		{"gone", proto.TypeSpawnReq, "", ""},
		{"never", proto.TypeSpawnReq, proto.OutcomeNotSent, ""},
		{"never", proto.TypeWriteReq, "", ""},
		{"lives", proto.TypeKillReq, "", ""},
	} {
		e := ops.Entry{ID: row.id, Request: row.request}
		s.settleSpawn(&e, []Found{lives, ended, gone})
		if e.Outcome != row.want {
			t.Errorf("a %s of %q that was under way = %q; want %q", row.request, row.id, e.Outcome, row.want)
		}
		if row.process == "" {
			continue
		}
		op, err := essentials(&e)
		if err != nil || op.ProcID != row.process {
			t.Errorf("the answer to %q = %+v, %v; want process %s", row.id, op, err, row.process)
		}
	}
}

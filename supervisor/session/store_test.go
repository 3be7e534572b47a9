package session

import (
	"path/filepath"
	"testing"
	"time"

	"pinfold/audit"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/supervisor/record"
)

// TestARecordStaysUntilTheAuditHasItsEnd: a daemon may be killed in any of these moments,
// and the next one must know whether the end is still to be told.
func TestARecordStaysUntilTheAuditHasItsEnd(t *testing.T) {
	dir := t.TempDir()
	store, err := record.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	log, err := audit.Open(filepath.Join(t.TempDir(), "audit.log"), audit.Options{Sync: audit.SyncNone})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	stored := func() *record.Process {
		t.Helper()
		f, err := record.Read(dir)
		if err != nil || len(f.Broken) > 0 {
			t.Fatalf("Read() = %+v, %v; want no broken record", f, err)
		}
		if len(f.Processes) == 0 {
			return nil
		}
		return &f.Processes[0]
	}
	for _, forgotten := range []bool{false, true} {
		s, p := bare(), &process{id: "p"}
		s.host, s.adm = &Host{Records: store, Audit: log}, &policy.Admission{}
		if err := p.noted.begin(record.Process{ID: "p", Session: "s", Boot: "b"}, store.PutProcess); err != nil {
			t.Fatal(err)
		}
		p.noted.hold()
		s.noteTold(p)
		v := &proto.Verdict{Cause: proto.CauseExited}
		s.noteEnd(p, time.Now(), v)
		if r := stored(); r == nil || len(r.Verdict) == 0 || r.Audited {
			t.Errorf("record before the audit has the end = %+v; want the verdict, not audited", r)
		}
		if forgotten {
			s.forgetProcess(p)
			if stored() == nil {
				t.Error("no record of a process that was forgotten; want it until the audit has the end")
			}
		}
		s.noteAudit(p, v)
		switch r := stored(); {
		case forgotten && r != nil:
			t.Errorf("record = %+v; want none any more", r)
		case !forgotten && (r == nil || !r.Audited || !r.Told):
			t.Errorf("record = %+v; want it audited and told", r)
		}
		s.forgetProcess(p)
		if r := stored(); r != nil {
			t.Errorf("record of a process that is forgotten = %+v; want none", r)
		}
	}
}

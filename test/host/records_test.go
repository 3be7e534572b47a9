package host

import (
	"path/filepath"
	"testing"

	"pinfold/proto"
	"pinfold/supervisor/record"
)

// records reads what a next daemon would find.
func (d *daemon) records() record.Found {
	d.t.Helper()
	f, err := record.Read(filepath.Join(d.state, "run", "record"))
	if err != nil || len(f.Broken) > 0 || f.Err() != nil {
		d.t.Fatalf("records = %+v, %v; want them whole", f, err)
	}
	return f
}

// TestWhatANextDaemonWouldFind: a record of the session as long as it lasts, and one of
// each process before its program runs, with why it is being ended once it is.
func TestWhatANextDaemonWouldFind(t *testing.T) {
	t.Parallel()
	d := start(t, basic("    detach_ttl: 0s", "    timeout: { stop: 30s, wall: 1h }\n"))
	c := d.agent()
	if f := d.records(); len(f.Sessions) != 1 || f.Sessions[0].Caller.UID != 0 || f.Sessions[0].RunUID != 0 {
		t.Fatalf("records = %+v; want one session of root that has no uid yet", f)
	}
	p := spawn(t, c, shell(`trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done`))
	await(t, p, "ready\n")
	f := d.records()
	if len(f.Processes) != 1 || f.Processes[0].ID != p.ID || f.Processes[0].PID != p.PID || f.Processes[0].Stop != (record.Stop{}) {
		t.Fatalf("records = %+v; want process %s that runs", f.Processes, p.ID)
	}
	if s := f.Sessions[0]; s.RunUID == 0 || len(s.Scratch) == 0 || f.Processes[0].Session != s.ID {
		t.Errorf("session = %+v; want its uid and its scratch workspace", s)
	}
	go func() { _, _ = c.Kill(t.Context(), p.ID, proto.SigTerm) }()
	await(t, p, "asked\n")
	eventually(t, "the record says that SIGTERM was sent", func() bool {
		s := d.records().Processes[0].Stop
		return s.Cause == string(proto.CauseKilled) && s.By == "request" && s.Told && !s.Kill && !s.Due.IsZero()
	})
	if _, err := c.Kill(soon(t), p.ID, proto.SigKill); err != nil {
		t.Fatal(err)
	}
	f = d.records()
	if s := f.Processes[0]; !s.Stop.Kill || s.Exited.IsZero() || len(s.Verdict) == 0 {
		t.Errorf("record of an ended process = %+v; want its verdict", s)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is known of a session that has ended", func() bool {
		f := d.records()
		return len(f.Sessions)+len(f.Processes) == 0
	})
}

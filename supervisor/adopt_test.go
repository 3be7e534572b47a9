package supervisor

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"pinfold/audit"
	"pinfold/supervisor/record"
	"pinfold/supervisor/session"
)

// TestEndsAreFoundInAClosedFile: an end that was told right before the audit file was closed
// is not told again. An end has more than 400 bytes, and the next file begins with fewer.
func TestEndsAreFoundInAClosedFile(t *testing.T) {
	t.Parallel()
	d := &daemon{c: Config{State: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	l, err := audit.Open(d.auditFile(), audit.Options{Sync: audit.SyncInterval, Interval: time.Millisecond, Rotate: 400})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(audit.Subject{}, audit.Ended{Process: "told"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Serve(ctx) }()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if files, err := os.ReadDir(audit.Dir(d.auditFile())); err == nil && len(files) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the audit file was not closed; want it closed after one record")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	found := func(id string) session.Found {
		return session.Found{Record: record.Process{ID: id, Verdict: jsontext.Value("{}")}}
	}
	all, rest := []session.Found{found("told"), found("untold")}, []session.Found{found("told")}
	rest[0].Record.Verdict = nil
	d.findEnds(all[:1], nil)
	d.findEnds(all[1:], rest)
	if !all[0].Ended || all[1].Ended || !rest[0].Ended {
		t.Errorf("told = %v, untold = %v, told of another session = %v; want true, false, true", all[0].Ended, all[1].Ended, rest[0].Ended)
	}
}

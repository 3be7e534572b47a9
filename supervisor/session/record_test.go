package session

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pinfold/audit"
	"pinfold/policy"
)

// TestWhatCanBeRecordedIs: one event that cannot be encoded takes no other along.
func TestWhatCanBeRecordedIs(t *testing.T) {
	name := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(name, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	s := &Session{id: "s", host: &Host{Audit: log}, adm: &policy.Admission{}, log: slog.New(slog.DiscardHandler)}
	if err := s.encode(audit.StartFailed{Process: "bad\xff"}, audit.Started{Process: "good"}).write(); err == nil {
		t.Error("write() of an event that is not UTF-8 = nil; want an error")
	}
	text, err := os.ReadFile(name)
	if err != nil || !strings.Contains(string(text), `"process":"good"`) || strings.Contains(string(text), "bad") {
		t.Errorf("audit file = %q, %v; want the other event alone", text, err)
	}
}

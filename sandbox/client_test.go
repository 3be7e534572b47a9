package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStageTellsWhyItsSocketFailed has a stage that speaks no message, and one that
// ends by itself.
func TestStageTellsWhyItsSocketFailed(t *testing.T) {
	for script, want := range map[string]string{
		"printf rubbish >&3; cat <&3 >/dev/null; exit 0": "cannot decode message",
		"exit 7": "exit status 7",
	} {
		path := filepath.Join(t.TempDir(), "stage")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		s, err := StartStage(t.Context(), StageConfig{Path: path, State: t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("StartStage(%s) = %v, %v; want an error with %q", script, s, err, want)
		}
	}
}

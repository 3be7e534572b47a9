package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pinfold/test/testkit"
)

// TestUnitsVerify asks systemd itself whether the unit files are clean.
func TestUnitsVerify(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		testkit.LeaveOut(t, "systemd-analyze is not installed; apt-get install systemd")
	}
	dir := t.TempDir()
	// The program that the service names must be there to be found executable.
	program := filepath.Join(dir, "pinfoldd")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"verify", "--man=no"}
	for _, unit := range []string{"pinfoldd.socket", "pinfoldd.service", "var-lib-pinfold-run.mount"} {
		data, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("ExecStart=/usr/sbin/pinfoldd", "ExecStart="+program, "ExecReload=/usr/bin/pinfold", "ExecReload="+program).Replace(string(data))
		if err := os.WriteFile(filepath.Join(dir, unit), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, filepath.Join(dir, unit))
	}
	out, err := exec.Command(analyze, args...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze %s: %v\n%s\nwant no output", strings.Join(args, " "), err, out)
	}
}

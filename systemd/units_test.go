package systemd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	said := string(out)
	if version(t, analyze) < 254 {
		said = regexp.MustCompile(`(?m)^.*: Unknown key (name )?'DelegateSubgroup' in section .?Service.?, ignoring\.\n`).ReplaceAllString(said, "")
	}
	if err != nil || said != "" {
		t.Errorf("systemd-analyze %s: %v\n%s\nwant no output", strings.Join(args, " "), err, out)
	}
}

// version is that of systemd.
func version(t *testing.T, analyze string) int {
	t.Helper()
	out, err := exec.Command(analyze, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if _, err := fmt.Sscanf(string(out), "systemd %d", &n); err != nil {
		t.Fatalf("systemd-analyze --version = %q; want a number", out)
	}
	return n
}

package host

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// reload runs pinfold reload on a state directory.
func reload(t *testing.T, state string, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "pinfold"), append([]string{"reload", "--state", state}, args...)...)
	b, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// TestReloadCommand: the policy and the program of a daemon are taken anew where they can be, and
// whoever asks learns which it was.
func TestReloadCommand(t *testing.T) {
	t.Parallel()
	d := upgradable(t, basic("", ""))
	d.begin()
	first := d.pid()
	if out, code := reload(t, d.state); code != 0 || !strings.Contains(out, "has read its policy") {
		t.Errorf("reload = %d, %q; want 0", code, out)
	}
	good, err := os.ReadFile(d.policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.policy, []byte("nonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"--binary"}} {
		if out, code := reload(t, d.state, args...); code != 1 || !strings.Contains(out, "nonsense") || d.pid() != first {
			t.Errorf("reload %q with a bad policy = %d, %q, pid %d; want 1, why, and %d to go on", args, code, out, d.pid(), first)
		}
	}
	if err := os.WriteFile(d.policy, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := reload(t, d.state, "--binary"); code != 0 || d.pid() == first || !strings.Contains(out, "daemon "+itoa(d.pid())+" has taken over from "+itoa(first)) {
		t.Errorf("reload --binary = %d, %q, pid %d; want another daemon than %d", code, out, d.pid(), first)
	}
}

// TestReloadOfNobody: a pid that was left behind is signalled by nobody.
func TestReloadOfNobody(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	for _, name := range []string{"lock", "pinfoldd.pid"} {
		if err := os.WriteFile(state+"/"+name, []byte(itoa(os.Getpid())+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, code := reload(t, state); code != 1 || !strings.Contains(out, "none is running") {
		t.Errorf("reload = %d, %q; want 1, since nobody holds the lock", code, out)
	}
	if out, code := reload(t, t.TempDir()); code != 1 || !strings.Contains(out, "cannot find the daemon") {
		t.Errorf("reload = %d, %q; want 1", code, out)
	}
}

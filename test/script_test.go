package test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pinfold/test/testkit"

	"github.com/rogpeppe/go-internal/testscript"
)

var updateScripts = flag.Bool("update", false, "update the golden parts of scripts")

// TestScripts runs the whole-host scripts of testdata/script against the real
// programs: see testdata/script/README.
func TestScripts(t *testing.T) {
	if !rootless() {
		testkit.NeedRoot(t)
	}
	testkit.NeedCgroup(t)
	bin := binaries(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *updateScripts,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               func(env *testscript.Env) error { return setupScript(env, bin) },
		Condition:           scriptCondition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"daemon":   cmdDaemon,
			"halt":     cmdHalt,
			"wire":     cmdWire,
			"as":       cmdAs,
			"bgproc":   cmdBackground,
			"waitfile": cmdWaitFile,
			"passed":   cmdPassed,
			"pty":      cmdPTY,
		},
	})
}

// rootless says whether the tests run as an ordinary user.
func rootless() bool { return os.Getuid() != 0 }

// binaries builds the programs once for a test.
func binaries(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.Build(t.Context(), top, dir); err != nil {
		t.Fatal(err)
	}
	// Other uids run the programs too.
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// setupScript gives a script a short directory for its socket, reachable by every
// uid, and the programs in its PATH.
func setupScript(env *testscript.Env, bin string) error {
	run, err := os.MkdirTemp("", "pinfold-test-")
	if err != nil {
		return err
	}
	if err := os.Chmod(run, 0o755); err != nil {
		return err
	}
	env.Defer(func() {
		if err := os.RemoveAll(run); err != nil {
			env.T().Log(err)
		}
	})
	env.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	env.Setenv("BIN", bin)
	env.Setenv("RUN", run)
	env.Setenv("SOCK", filepath.Join(run, "s"))
	env.Setenv("STATE", filepath.Join(run, "state"))
	env.Setenv("TMPDIR", run)
	env.Setenv("HOME", run)
	env.Setenv("UID", strconv.Itoa(os.Getuid()))
	env.Values[daemonKey] = &daemons{}
	return nil
}

func scriptCondition(cond string) (bool, error) {
	switch {
	case cond == "hybrid":
		_, err := os.Stat("/sys/fs/cgroup/unified/cgroup.procs")
		return err == nil, nil
	case strings.HasPrefix(cond, "host:"):
		_, err := os.Stat(strings.TrimPrefix(cond, "host:"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		return err == nil, nil
	}
	return false, fmt.Errorf("unknown condition %q", cond)
}

package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pinfold/test/testkit"
)

// TestAPrivateDaemonOutlivesItsClientOnlyToEnd: a client that is killed takes its end of
// the daemon's log with it. The daemon ends what it runs all the same.
func TestAPrivateDaemonOutlivesItsClientOnlyToEnd(t *testing.T) {
	testkit.NeedRoot(t)
	testkit.NeedCgroup(t)
	cmd := exec.CommandContext(t.Context(), program(t, "pinfold"), "run", "--socket", filepath.Join(t.TempDir(), "none"), "--", "sleep", "1000")
	cmd.Stdin, cmd.SysProcAttr = strings.NewReader(""), &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var state string
	var daemon int
	eventually(t, "its daemon runs a pen", func() bool {
		daemon, state = privateDaemon(cmd.Process.Pid)
		return state != "" && strings.Contains(readFile(t, "/proc/self/mountinfo"), state+"/run/scratch/")
	})
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(state)) }) // the client would have
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	_ = cmd.Wait() // killed
	eventually(t, "the daemon has ended", func() bool {
		return syscall.Kill(daemon, 0) != nil
	})
	if strings.Contains(readFile(t, "/proc/self/mountinfo"), state) {
		t.Errorf("mounts are left below %s", state)
	}
	if pens, err := exec.CommandContext(t.Context(), "pgrep", "-f", "-P", "1", "^sleep 1000$").Output(); err == nil {
		t.Errorf("left of the pen: %s", pens)
	}
}

// privateDaemon finds the daemon that a client has started.
func privateDaemon(client int) (pid int, state string) {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", client, client))
	if err != nil {
		return 0, ""
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", client))
	if err != nil {
		return 0, ""
	}
	for _, f := range tasks {
		if b, err := os.ReadFile(f); err == nil {
			children = append(append(children, ' '), b...)
		}
	}
	for child := range strings.FieldsSeq(string(children)) {
		line, err := os.ReadFile("/proc/" + child + "/cmdline")
		if err != nil {
			continue
		}
		args := strings.Split(string(line), "\x00")
		for i, a := range args {
			if a == "--state" && i+1 < len(args) {
				if _, err := fmt.Sscan(child, &pid); err == nil {
					return pid, args[i+1]
				}
			}
		}
	}
	return 0, ""
}

// TestAClientEndsWhatItsDaemonLeft: no other daemon takes over what a private one that was
// killed was running.
func TestAClientEndsWhatItsDaemonLeft(t *testing.T) {
	testkit.NeedRoot(t)
	testkit.NeedCgroup(t)
	mark := filepath.Join(t.TempDir(), "none")
	cmd := exec.CommandContext(t.Context(), program(t, "pinfold"), "run", "--socket", mark, "--env", "MARK="+mark, "--", "sh", "-c", "echo up; exec sleep 1001")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	daemon, state := privateDaemon(cmd.Process.Pid)
	if err := syscall.Kill(daemon, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 125 {
		t.Errorf("run = %v; want 125", err)
	}
	if left := withEnv(t, "MARK="+mark); len(left) > 0 {
		t.Errorf("left of the pen: %v", left)
	}
	if strings.Contains(readFile(t, "/proc/self/mountinfo"), state) {
		t.Errorf("mounts are left below %s", state)
	}
	if _, err := os.Stat(filepath.Dir(state)); !os.IsNotExist(err) {
		t.Errorf("Stat(%s) = %v; want nothing there", filepath.Dir(state), err)
	}
}

// withEnv are the processes with a variable in their environment.
func withEnv(t *testing.T, kv string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), kv) {
			pids = append(pids, filepath.Base(filepath.Dir(f)))
		}
	}
	return pids
}

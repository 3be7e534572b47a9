package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"pinfold/test/testkit"
)

// TestKeepSecrets kills a process with a signal that dumps core, before and after.
func TestKeepSecrets(t *testing.T) {
	const mode = "PINFOLD_TEST_SECRETS"
	if how := os.Getenv(mode); how != "" {
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
			t.Fatal(err)
		}
		if how == "keep" {
			if err := KeepSecrets(); err != nil {
				t.Fatal(err)
			}
			var l unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil || l.Cur != 1 || l.Max != unix.RLIM_INFINITY {
				t.Fatalf("KeepSecrets(): limit of core dumps is %+v, %v; want 1 of unlimited", l, err)
			}
			if d, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || d != 0 {
				t.Fatalf("KeepSecrets(): dumpable = %d, %v; want 0", d, err)
			}
			if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil { // either must do alone
				t.Fatal(err)
			}
		}
		// A signal without a handler of Go's, on the host's terms.
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGSYS), uintptr(unsafe.Pointer(&[32]byte{})), 0, 8, 0, 0)
		_ = unix.Kill(os.Getpid(), unix.SIGSYS)
		select {}
	}
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil || l.Max != unix.RLIM_INFINITY {
		testkit.LeaveOut(t, fmt.Sprintf("needs an unlimited hard limit of core dumps: it is %d, %v", l.Max, err))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"plain", "keep"} {
		cmd := exec.Command(self, "-test.run", "^TestKeepSecrets$")
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), mode+"="+how)
		out, err := cmd.CombinedOutput()
		st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if !ok || !st.Signaled() || st.Signal() != syscall.SIGSYS {
			t.Fatalf("%s: %v, %s; want an end by SIGSYS", how, err, out)
		}
		if how == "plain" && !st.CoreDump() {
			testkit.LeaveOut(t, "this host dumps no core of anybody, so there is nothing to keep from it")
		}
		if how == "keep" && st.CoreDump() {
			t.Error("a process that keeps its secrets has dumped core; want none")
		}
	}
}

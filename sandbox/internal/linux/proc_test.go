package linux

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAThreadIsNoProcess: its number may have been that of a process which has ended.
func TestAThreadIsNoProcess(t *testing.T) {
	t.Parallel()
	tids, done := make(chan int), make(chan struct{})
	defer close(done)
	for range 2 { // one of them may have the main thread
		go func() {
			runtime.LockOSThread()
			tids <- unix.Gettid()
			<-done
		}()
	}
	tid := <-tids
	if other := <-tids; tid == os.Getpid() {
		tid = other
	}
	f, err := PidfdOpen(tid)
	if !errors.Is(err, unix.ESRCH) {
		CloseAll(f)
		t.Errorf("PidfdOpen(a thread) = %v; want ESRCH", err)
	}
	if _, err := PidfdOpen(0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("PidfdOpen(0) = %v; want EINVAL", err)
	}
	f, err = PidfdOpen(os.Getpid())
	if err != nil {
		t.Fatalf("PidfdOpen(the own process) = %v; want none", err)
	}
	CloseAll(f)
}

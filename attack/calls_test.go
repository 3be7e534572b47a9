package attack

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAnInterruptedCallIsNoAnswer: it is made again.
func TestAnInterruptedCallIsNoAnswer(t *testing.T) {
	calls := 0
	err := uninterrupted(func() error {
		if calls++; calls < 3 {
			return unix.EINTR
		}
		return unix.EPERM
	})
	if !errors.Is(err, unix.EPERM) || calls != 3 {
		t.Errorf("uninterrupted() = %v after %d calls; want EPERM after 3", err, calls)
	}
}

package linux

import (
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// WithSlack calls f on a thread whose timers may be late by slack, which what f
// starts inherits: PR_SET_TIMERSLACK(2const).
func WithSlack(slack time.Duration, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return err
	}
	set := func(d uintptr) error {
		return retry("prctl PR_SET_TIMERSLACK", func() error { return unix.Prctl(unix.PR_SET_TIMERSLACK, d, 0, 0, 0) })
	}
	if err := set(uintptr(slack.Nanoseconds())); err != nil {
		return err
	}
	err = f()
	return errors.Join(err, set(uintptr(own)))
}

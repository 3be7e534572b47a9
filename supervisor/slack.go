package supervisor

import (
	"errors"
	"os"
	"strconv"
	"time"
)

// slack is how late the daemon's timers may be. The Go runtime watches its threads
// with sleeps of 20 µs for as long as one of them works; with the kernel's own 50 µs
// that took a seventh of a spawn's processor time here.
const slack = 500 * time.Microsecond

// lazyTimers sets slack for every thread of this process; those that come later
// inherit it, and so does what the daemon starts. For a thread other than the
// caller's it takes CAP_SYS_NICE: timerslack_ns in proc(5), Linux 4.6.
func lazyTimers() error {
	threads, err := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		werr := os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", []byte(strconv.FormatInt(slack.Nanoseconds(), 10)), 0)
		if werr != nil && !errors.Is(werr, os.ErrNotExist) { // it has ended
			err = errors.Join(err, werr)
		}
	}
	return err
}

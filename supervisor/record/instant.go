package record

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Instant is a moment that the next daemon can count from: by the clock on the wall, to
// be shown, and by CLOCK_MONOTONIC, which all processes of one boot share and nobody
// sets, clock_gettime(2). The zero Instant is no moment.
type Instant struct {
	Wall int64 `json:"wall"` // nanoseconds since 1970
	Mono int64 `json:"mono"` // nanoseconds of CLOCK_MONOTONIC
}

// Now returns this moment.
func Now() Instant { return At(time.Now()) }

// At returns the moment t, which has a monotonic reading (package time).
func At(t time.Time) Instant {
	now := time.Now()
	return Instant{Wall: t.UnixNano(), Mono: monotonic() - int64(now.Sub(t))}
}

// Add returns the moment d later.
func (i Instant) Add(d time.Duration) Instant {
	return Instant{Wall: i.Wall + int64(d), Mono: i.Mono + int64(d)}
}

// IsZero reports whether i is no moment.
func (i Instant) IsZero() bool { return i == Instant{} }

// Time returns the moment with a monotonic reading: what is counted from it does not see
// a clock that was set.
func (i Instant) Time() time.Time {
	return time.Now().Add(time.Duration(i.Mono - monotonic()))
}

// Shown returns the moment as the clock on the wall had it.
func (i Instant) Shown() time.Time { return time.Unix(0, i.Wall) }

// monotonic reads CLOCK_MONOTONIC, the clock of Go's timers.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // no Linux is without it
	}
	return ts.Nano()
}

// Boot names this boot of the host (random(4)); empty where /proc is hidden.
func Boot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

package systemd

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReplacing(t *testing.T) {
	var before, after unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &before); err != nil {
		t.Fatal(err)
	}
	s, err := Replacing(17)
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &after); err != nil {
		t.Fatal(err)
	}
	var usec int64
	var pid int
	if _, serr := fmt.Sscanf(s, "RELOADING=1\nMONOTONIC_USEC=%d\nMAINPID=%d", &usec, &pid); err != nil || serr != nil || pid != 17 {
		t.Errorf("Replacing(17) = %q, %v; want three lines", s, err)
	}
	if usec < before.Nano()/1000 || usec > after.Nano()/1000 {
		t.Errorf("MONOTONIC_USEC=%d; want the time from %d to %d", usec, before.Nano()/1000, after.Nano()/1000)
	}
}

func TestHeritage(t *testing.T) {
	own := fmt.Sprintf("WATCHDOG_PID=%d", os.Getpid())
	for _, row := range []struct{ env, want []string }{
		{nil, nil},
		{[]string{"A=1", "LISTEN_PID=3", "LISTEN_FDS=1", "LISTEN_FDNAMES=x", "NOTIFY_SOCKET=/n"}, []string{"A=1", "NOTIFY_SOCKET=/n"}},
		{[]string{"WATCHDOG_USEC=60000000", own}, []string{"WATCHDOG_USEC=60000000"}},
		{[]string{"WATCHDOG_USEC=60000000"}, []string{"WATCHDOG_USEC=60000000"}},
		{[]string{"WATCHDOG_USEC=60000000", "WATCHDOG_PID=1", "B=2"}, []string{"B=2"}},
	} {
		kept := slices.Clone(row.env)
		if got := Heritage(row.env); !slices.Equal(got, row.want) || !slices.Equal(row.env, kept) {
			t.Errorf("Heritage(%q) = %q; want %q, and what it was given as it was", kept, got, row.want)
		}
	}
}

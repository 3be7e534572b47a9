package systemd

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Replacing is the state of a service whose main process another one is about to
// replace. The one that is replaced says it before it exits, the other says Ready then.
// MAINPID=, RELOADING=1, MONOTONIC_USEC=: sd_notify(3).
func Replacing(pid int) (string, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return "", os.NewSyscallError("clock_gettime", err)
	}
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d\nMAINPID=%d", now.Nano()/1000, pid), nil
}

// Heritage returns what of an environment is for the process that replaces this one:
// without passed sockets, which have been taken, and with a watchdog, if there is one for
// this process, that names none. sd_listen_fds(3), sd_watchdog_enabled(3).
func Heritage(env []string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, "LISTEN_") })
	pid, ok := lookup(env, "WATCHDOG_PID")
	if !ok {
		return out
	}
	return slices.DeleteFunc(out, func(kv string) bool {
		return strings.HasPrefix(kv, "WATCHDOG_PID=") || strings.HasPrefix(kv, "WATCHDOG_USEC=") && pid != strconv.Itoa(os.Getpid())
	})
}

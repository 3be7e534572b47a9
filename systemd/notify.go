// Package systemd speaks the service manager's small protocols: readiness and
// watchdog messages, and listening sockets passed at the start. Beside it lie the
// unit, sysusers and tmpfiles files. It never speaks D-Bus and never needs systemd
// to be there.
package systemd

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// States for Notify: sd_notify(3).
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	Alive    = "WATCHDOG=1" // at least once in each Watchdog interval
)

// Manager is a connection to the service manager's notification socket. It is made
// once, so that who holds it needs no right to make another.
type Manager struct {
	conn *net.UnixConn // nil: nobody asked
}

// Dial connects to the socket that NOTIFY_SOCKET names. Without it nobody asked, and
// Notify does nothing. A socket that is named but cannot be reached is an error, beside
// a Manager that does nothing. sd_notify(3).
func Dial(env []string) (*Manager, error) {
	addr, _ := lookup(env, "NOTIFY_SOCKET")
	if addr == "" {
		return &Manager{}, nil
	}
	if addr[0] != '/' && addr[0] != '@' {
		return &Manager{}, fmt.Errorf("cannot notify %q: neither a path nor an abstract address", addr)
	}
	// net turns a leading @ into the abstract address's NUL.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: addr, Net: "unixgram"})
	if err != nil {
		return &Manager{}, fmt.Errorf("cannot notify the service manager: %w", err)
	}
	return &Manager{conn: conn}, nil
}

// Notify tells the service manager a state (several, one a line).
func (m *Manager) Notify(state string) error {
	if m.conn == nil {
		return nil
	}
	if _, err := m.conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("cannot notify the service manager: %w", err)
	}
	return nil
}

// Watchdog returns the interval within which the service manager wants to hear
// Alive; 0 means that it does not watch this process. sd_watchdog_enabled(3).
func Watchdog(env []string) (time.Duration, error) {
	usec, ok := lookup(env, "WATCHDOG_USEC")
	if !ok {
		return 0, nil
	}
	if pid, ok := lookup(env, "WATCHDOG_PID"); ok && pid != strconv.Itoa(os.Getpid()) {
		return 0, nil
	}
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n <= 0 || n > int64(maxInterval/time.Microsecond) {
		return 0, fmt.Errorf("cannot use WATCHDOG_USEC=%q: want microseconds, more than 0", usec)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// maxInterval keeps microseconds within what a Duration can hold.
const maxInterval = 365 * 24 * time.Hour

// lookup finds the last value of a name in NAME=value strings.
func lookup(env []string, name string) (string, bool) {
	for _, kv := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

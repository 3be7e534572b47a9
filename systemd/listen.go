package systemd

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	firstListener = 3  // SD_LISTEN_FDS_START: sd_listen_fds(3)
	maxListeners  = 64 // more than any unit of ours passes
)

// Listeners returns the listening sockets that the service manager passed to this
// process, in order, named by LISTEN_FDNAMES; none if env names none or means
// another process. Each is closed on exec. A descriptor that is not a listening
// stream socket is an error: a unit that passes it is wrong. The caller closes
// them, and must not hand LISTEN_* on to children. sd_listen_fds(3).
func Listeners(env []string) ([]*os.File, error) {
	pid, ok := lookup(env, "LISTEN_PID")
	if !ok || pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	count, err := listenerCount(env)
	if err != nil {
		return nil, err
	}
	text, _ := lookup(env, "LISTEN_FDNAMES")
	return takeListeners(firstListener, count, strings.Split(text, ":"))
}

func listenerCount(env []string) (int, error) {
	text, _ := lookup(env, "LISTEN_FDS")
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxListeners {
		return 0, fmt.Errorf("cannot use LISTEN_FDS=%q: want a number from 0 to %d", text, maxListeners)
	}
	return n, nil
}

// takeListeners checks every descriptor before it takes one, so that an error
// leaves them all as they were.
func takeListeners(first, count int, names []string) ([]*os.File, error) {
	for fd := first; fd < first+count; fd++ {
		if err := checkListener(fd); err != nil {
			return nil, err
		}
	}
	files := make([]*os.File, 0, count)
	for i := range count {
		name := "listener-" + strconv.Itoa(i)
		if i < len(names) && names[i] != "" {
			name = names[i]
		}
		unix.CloseOnExec(first + i)
		files = append(files, os.NewFile(uintptr(first+i), name))
	}
	return files, nil
}

func checkListener(fd int) error {
	accepts, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return fmt.Errorf("cannot take descriptor %d from the service manager: getsockopt SO_ACCEPTCONN: %w", fd, err)
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return fmt.Errorf("cannot take descriptor %d from the service manager: getsockopt SO_TYPE: %w", fd, err)
	}
	if accepts == 0 || kind != unix.SOCK_STREAM {
		return fmt.Errorf("cannot take descriptor %d from the service manager: not a listening stream socket", fd)
	}
	return nil
}

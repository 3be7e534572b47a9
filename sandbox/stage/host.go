package stage

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
)

// host is what the stage finds once, at its start, and Programs depend on.
type host struct {
	ignored []int    // signals that it was started with ignored, and so PID 1 is
	lastCap int      // highest capability of this kernel
	closed  []string // files of /proc that root alone may open, or that are not there
}

func findHost() (host, error) {
	var h host
	var err error
	if h.ignored, err = linux.IgnoredSignals(); err != nil {
		return h, err
	}
	b, err := linux.ReadProc("/proc/sys/kernel/cap_last_cap", maxProcFile)
	if err != nil {
		return h, err
	}
	if h.lastCap, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		return h, fmt.Errorf("cannot read the last capability: %w", err)
	}
	h.closed, err = closedFiles("/proc")
	return h, err
}

// closedFiles returns those of the masked files below proc that need no mask.
func closedFiles(proc string) ([]string, error) {
	var closed []string
	for _, name := range sandbox.MaskedFiles() {
		st, err := linux.LstatAt(nil, proc+"/"+name)
		if err != nil && !gone(err) {
			return nil, errors.Join(fmt.Errorf("cannot look at %s/%s", proc, name), err)
		}
		if err != nil || st.Uid == 0 && st.Gid == 0 && st.Mode&0o007 == 0 {
			closed = append(closed, name)
		}
	}
	return closed, nil
}

package stage

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
)

// host is what the stage finds once, at its start, and Programs depend on.
type host struct {
	boot    string   // of the host: random(4)
	ignored []int    // signals that it was started with ignored, and so PID 1 is
	lastCap int      // highest capability of this kernel
	closed  []string // files of /proc that root alone may open, or that are not there

	masked   []string // paths below /proc that a pen must see covered
	readOnly []string // and those that it must not be able to write to
}

func findHost() (host, error) {
	var h host
	var err error
	if h.ignored, err = linux.IgnoredSignals(); err != nil {
		return h, err
	}
	if h.boot, err = bootID(); err != nil {
		return h, err
	}
	b, err := linux.ReadProc("/proc/sys/kernel/cap_last_cap", maxProcFile)
	if err != nil {
		return h, err
	}
	if h.lastCap, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		return h, fmt.Errorf("cannot read the last capability: %w", err)
	}
	if h.closed, err = closedFiles("/proc"); err != nil {
		return h, err
	}
	open := slices.DeleteFunc(sandbox.MaskedFiles(), func(name string) bool { return slices.Contains(h.closed, name) })
	h.masked, err = present("/proc", append(open, sandbox.MaskedDirs()...))
	if err == nil {
		h.readOnly, err = present("/proc", sandbox.ReadOnlyDirs())
	}
	return h, err
}

// present returns the paths of those names that there are in a directory.
func present(dir string, names []string) ([]string, error) {
	var out []string
	for _, name := range names {
		_, err := linux.LstatAt(nil, dir+"/"+name)
		if err == nil {
			out = append(out, dir+"/"+name)
		} else if !gone(err) {
			return nil, errors.Join(fmt.Errorf("cannot look at %s/%s", dir, name), err)
		}
	}
	return out, nil
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

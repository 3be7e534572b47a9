package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// find gives the directory, and the name below it, that has a controller's figures ("" for the v2 tree).
type find func(controller string) (dir, string, bool)

// Usage is what the job used; on v1 memory is that of the process's directory, which has the same members.
func (j *Job) Usage() (Usage, error) {
	u, err := j.group.base.usage(j.at)
	if err == nil && u.Pids < 0 {
		pids, perr := j.Pids()
		if perr != nil {
			return u, perr
		}
		u.Pids = int64(len(pids))
	}
	return u, err
}

// usage reads all figures; those whose file is missing stay −1.
func (b *Base) usage(at find) (Usage, error) {
	u := noUsage()
	err := errors.Join(u.readCPU(b, at), u.readMemory(b, at), u.readPids(b, at), u.readIO(b, at))
	return u, err
}

func noUsage() Usage {
	return Usage{CPUUser: -1, CPUSystem: -1, Throttled: -1, ThrottledRuns: -1, Memory: -1, MemoryPeak: -1, Swap: -1, Pids: -1, IORead: -1, IOWritten: -1}
}

// readCPU takes times from cpu.stat of the v2 tree, which is there without the controller too (Linux 4.15), and throttling from
// where the controller is.
func (u *Usage) readCPU(b *Base, at find) error {
	d, name, ok := at("")
	if !ok {
		return nil
	}
	text, err := optional(d, filepath.Join(name, "cpu.stat"))
	if err != nil || text == "" {
		return err
	}
	f := fields(text)
	u.CPUUser = time.Duration(f["user_usec"]) * time.Microsecond
	u.CPUSystem = time.Duration(f["system_usec"]) * time.Microsecond
	if runs, ok := f["nr_throttled"]; ok && b.host.home[ControllerCPU] == homeV2 {
		u.ThrottledRuns, u.Throttled = runs, time.Duration(f["throttled_usec"])*time.Microsecond
	}
	if b.host.home[ControllerCPU] != homeV1 {
		return nil
	}
	if d, name, ok = at(ControllerCPU); !ok {
		return nil
	}
	if text, err = optional(d, filepath.Join(name, "cpu.stat")); err != nil || text == "" {
		return err
	}
	f = fields(text)
	u.ThrottledRuns, u.Throttled = f["nr_throttled"], time.Duration(f["throttled_time"])
	return nil
}

func (u *Usage) readMemory(b *Base, at find) error {
	d, name, ok := at(ControllerMemory)
	if !ok {
		return nil
	}
	switch b.host.home[ControllerMemory] {
	case homeV2:
		return errors.Join(
			u.readPeak(b, at),
			figure(&u.Memory, d, filepath.Join(name, "memory.current")),
			figure(&u.Swap, d, filepath.Join(name, "memory.swap.current")))
	case homeV1:
		both := Bytes(-1)
		err := errors.Join(
			u.readPeak(b, at),
			figure(&u.Memory, d, filepath.Join(name, "memory.usage_in_bytes")),
			figure(&both, d, filepath.Join(name, "memory.memsw.usage_in_bytes")))
		if both >= 0 {
			u.Swap = max(both-u.Memory, 0)
		}
		return err
	case homeNone:
	}
	return nil
}

// readPeak reads the most memory that was used at once; memory.peak: Linux 5.19.
func (u *Usage) readPeak(b *Base, at find) error {
	d, name, ok := at(ControllerMemory)
	if !ok {
		return nil
	}
	switch b.host.home[ControllerMemory] {
	case homeV2:
		return figure(&u.MemoryPeak, d, filepath.Join(name, "memory.peak"))
	case homeV1:
		return figure(&u.MemoryPeak, d, filepath.Join(name, "memory.max_usage_in_bytes"))
	case homeNone:
	}
	return nil
}

func (u *Usage) readPids(b *Base, at find) error {
	d, name, ok := at(ControllerPids)
	if !ok || b.host.home[ControllerPids] == homeNone {
		return nil
	}
	return figure(&u.Pids, d, filepath.Join(name, "pids.current"))
}

// readIO sums io.stat over all devices.
func (u *Usage) readIO(b *Base, at find) error {
	d, name, ok := at(ControllerIO)
	if !ok || b.host.home[ControllerIO] != homeV2 {
		return nil
	}
	text, err := d.read(filepath.Join(name, "io.stat"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	u.IORead, u.IOWritten = ioStat(text)
	return nil
}

// ioStat sums rbytes and wbytes of all lines.
func ioStat(text string) (read, written Bytes) {
	for word := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			continue
		}
		switch key {
		case "rbytes":
			read += Bytes(n)
		case "wbytes":
			written += Bytes(n)
		}
	}
	return read, written
}

// figure reads a number; a missing file leaves it as it is.
func figure[T ~int64](to *T, d dir, name string) error {
	n, err := d.number(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		*to = T(n)
	}
	return err
}

// optional reads a file; a missing one is empty.
func optional(d dir, name string) (string, error) {
	text, err := d.read(name)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return text, err
}

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// apply writes a setting below name and reads it back. A file that is not there makes it StateUnsupported.
func apply(d dir, name string, s Setting) (Setting, error) {
	got, err := d.set(filepath.Join(name, s.File), s.Value)
	if errors.Is(err, os.ErrNotExist) && exists(d.path, filepath.Join(name, "cgroup.procs")) {
		s.State, s.Why = StateUnsupported, fmt.Sprintf("this kernel has no %s here", s.File)
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("cannot set %s to %s: %w", s.File, s.Value, err)
	}
	if !accepted(s.File, s.Value, got) {
		return s, fmt.Errorf("cannot set %s of %s to %s: the kernel shows %s", s.File, filepath.Join(d.path, name), s.Value, got)
	}
	s.State, s.Value = StateApplied, got
	return s, nil
}

// fits returns ErrInUse when more is in use than a setting allows.
func fits(d dir, name string, s Setting) error {
	var file string
	switch s.File {
	case "memory.max":
		file = "memory.current"
	case "memory.swap.max":
		file = "memory.swap.current"
	case "memory.limit_in_bytes":
		file = "memory.usage_in_bytes"
	case "memory.memsw.limit_in_bytes":
		file = "memory.memsw.usage_in_bytes"
	case "pids.max":
		file = "pids.current"
	default:
		return nil
	}
	if s.lifted() {
		return nil
	}
	used, err := d.number(filepath.Join(name, file))
	if err != nil {
		return err
	}
	var limit int64
	if _, err := fmt.Sscan(s.Value, &limit); err != nil {
		return fmt.Errorf("cannot read limit %q: %w", s.Value, err)
	}
	if used > limit {
		return fmt.Errorf("cannot set %s of %s to %d: %w: %s is %d", s.File, filepath.Join(d.path, name), limit, ErrInUse, file, used)
	}
	return nil
}

package stage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// Limits of a scratch file system.
const (
	maxScratchSize   = 1 << 40 // bytes
	maxScratchInodes = 1 << 31
	maxScratchName   = 128
)

// scratchName reports whether name names one entry of a directory of ours.
func scratchName(name string) bool {
	return name != "" && len(name) <= maxScratchName && name[0] != '.' &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
}

func (s *server) scratchPath(name string) (string, error) {
	if !scratchName(name) {
		return "", refused("cannot use scratch name %q: letters, digits, - _ and . only", name)
	}
	return filepath.Join(s.config.State, "run", "scratch", name), nil
}

// scratch mounts a memory file system, or finds the one that is mounted.
func (s *server) scratch(q stagewire.Scratch) (*os.File, sandbox.Identity, error) {
	at, err := s.scratchPath(q.Name)
	if err != nil {
		return nil, sandbox.Identity{}, err
	}
	if q.Size <= 0 || q.Size > maxScratchSize || q.Inodes <= 0 || q.Inodes > maxScratchInodes || q.Mode&^0o1777 != 0 || q.UID == 0 || q.GID == 0 {
		return nil, sandbox.Identity{}, refused("cannot make scratch %q: size, inodes, mode or owner out of bounds", q.Name)
	}
	s.scratchMu.Lock()
	defer s.scratchMu.Unlock()
	if s.ended {
		return nil, sandbox.Identity{}, refused("cannot make scratch %q: the daemon ends", q.Name)
	}
	if err := os.MkdirAll(at, 0o700); err != nil {
		return nil, sandbox.Identity{}, err
	}
	f, err := linux.OpenAt(nil, at, unix.O_PATH|unix.O_DIRECTORY, linux.Strict)
	if err != nil {
		return nil, sandbox.Identity{}, err
	}
	mounted, err := linux.IsMountRoot(f)
	if err == nil && !mounted {
		f, err = mountScratch(f, q)
	}
	if err != nil {
		linux.CloseAll(f)
		return nil, sandbox.Identity{}, fmt.Errorf("cannot make scratch %q: %w", q.Name, err)
	}
	st, err := linux.Stat(f)
	return f, idOf(st), err
}

// mountScratch mounts on the directory at, which it closes, and opens the result.
func mountScratch(at *os.File, q stagewire.Scratch) (*os.File, error) {
	defer linux.CloseAll(at)
	m, err := linux.NewMount("tmpfs", attrView, linux.Option{Key: "source", Value: "scratch"},
		linux.Option{Key: "size", Value: fmt.Sprint(q.Size)}, linux.Option{Key: "nr_inodes", Value: fmt.Sprint(q.Inodes)},
		linux.Option{Key: "mode", Value: fmt.Sprintf("%o", q.Mode)}, linux.Option{Key: "uid", Value: itoa(q.UID)},
		linux.Option{Key: "gid", Value: itoa(q.GID)})
	if err != nil {
		return nil, err
	}
	defer linux.CloseAll(m)
	if err := linux.SetMount(m, linux.One, linux.Attr{Private: true}); err != nil {
		return nil, err
	}
	if err := linux.MoveMount(m, at); err != nil {
		return nil, err
	}
	return linux.OpenAt(nil, at.Name(), unix.O_PATH|unix.O_DIRECTORY, linux.Strict)
}

// dropScratch unmounts and removes a scratch file system; none is no error.
func (s *server) dropScratch(name string) error {
	at, err := s.scratchPath(name)
	if err != nil {
		return err
	}
	s.scratchMu.Lock()
	defer s.scratchMu.Unlock()
	err = linux.Detach(at)
	if err != nil && !gone(err) && !errors.Is(err, unix.EINVAL) { // EINVAL: nothing is mounted there
		return fmt.Errorf("cannot drop scratch %q: %w", name, err)
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot drop scratch %q: %w", name, err)
	}
	return nil
}

package sandbox

import (
	"fmt"
	"os"
	"syscall"

	"pinfold/sandbox/internal/closure"
	"pinfold/sandbox/internal/linux"
)

// IdentityOf returns which file an open descriptor is.
func IdentityOf(f *os.File) (Identity, error) {
	info, err := f.Stat()
	if err != nil {
		return Identity{}, fmt.Errorf("cannot look at %s: %w", f.Name(), err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Identity{}, fmt.Errorf("cannot look at %s: %w", f.Name(), ErrUnsupported)
	}
	return Identity{Dev: st.Dev, Ino: st.Ino}, nil
}

// MountFacts are which mount a file was reached by, and what that mount lets do.
type MountFacts struct {
	ID    uint64 `json:"id"`
	Flags int64  `json:"flags"`
}

// MountOf returns the facts of an open file's mount.
func MountOf(f *os.File) (MountFacts, error) {
	m, err := linux.MountOf(f)
	return MountFacts(m), err
}

// Closure returns every file that programs need to be executed: themselves,
// interpreters, loaders and libraries, each by every path it is reached by. With
// exec: listed these are the only files that can be executed or mapped as code.
func Closure(programs []string) ([]string, error) { return closure.Of(programs) }

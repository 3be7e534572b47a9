package sandbox

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// Successor is how a stage starts the daemon that is to come after its own. It is told
// with the stage's start, and by no message: who has the daemon cannot change it.
type Successor struct {
	Path  string   `json:"path"` // absolute; as it is on disk when the successor is started
	Args  []string `json:"args"` // with the program's name
	Env   []string `json:"env"`
	Dir   string   `json:"dir"`
	Umask int      `json:"umask"`
}

// The descriptors of a successor.
const (
	SuccessorSocket = 3 // the listening socket
	SuccessorSays   = 4 // a pipe to the daemon before it
)

// File is a file that says it, which nobody can change.
func (s *Successor) File() (*os.File, error) {
	b, err := stagewire.Marshal(s)
	if err != nil {
		return nil, err
	}
	if len(b) > stagewire.MaxLarge {
		return nil, fmt.Errorf("the daemon's arguments and environment have %d bytes, more than %d", len(b), stagewire.MaxLarge)
	}
	return linux.SealedFile("pinfold-successor", b)
}

// ReadSuccessor reads what the daemon has told of its successor.
func ReadSuccessor(f *os.File) (*Successor, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !linux.IsSealed(linux.FD(f)) || st.Size() > stagewire.MaxLarge {
		return nil, fmt.Errorf("cannot take %s: not a sealed file of at most %d bytes", f.Name(), stagewire.MaxLarge)
	}
	b := make([]byte, st.Size())
	if err := linux.PreadNumber(linux.FD(f), b); err != nil {
		return nil, err
	}
	var s Successor
	if err := stagewire.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Heir is a successor that runs.
type Heir struct {
	Pid   int
	pidfd *os.File
}

// End kills it, if it has not ended, and forgets it.
func (h *Heir) End() {
	_ = linux.Kill(h.pidfd, syscall.SIGKILL) // or it has ended by itself
	linux.CloseAll(h.pidfd)
}

// Succeed starts the daemon's successor, as the stage was told at its own start. It gets
// socket, and says on the pipe whether it will take over.
func (s *Stage) Succeed(ctx context.Context, socket, pipe *os.File) (*Heir, error) {
	var a stagewire.Succeeded
	unwanted := func(a answer) { // nobody waits for it any more
		for _, f := range a.files {
			(&Heir{pidfd: f}).End()
		}
	}
	files, err := s.ask(ctx, stagewire.OpSucceed, struct{}{}, &a, unwanted, socket, pipe)
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		linux.CloseAll(files...)
		return nil, fmt.Errorf("cannot start the successor: the stage sent %d descriptors, not one", len(files))
	}
	return &Heir{Pid: a.Pid, pidfd: files[0]}, nil
}

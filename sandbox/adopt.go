package sandbox

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// Adopt takes over a pen that has outlived its daemon or its stage: its PID 1 holds a
// second descriptor of every stream and of the status socket, and what nobody has read
// yet is still in them. The Process is as the one that Pen.Start gave, and an end that
// came meanwhile is told by its Wait. Stdin is nil where it was closed before; a close
// that was asked for just before may not have been done, and asking again is no harm.
//
// ErrGone: the pen has ended, or what is there is not that pen. Any other error says
// nothing about the pen.
func (s *Stage) Adopt(ctx context.Context, m Mark) (*Process, error) {
	var l Launched
	enforcement := m.Enforcement
	m.Enforcement = Enforcement{} // the stage has no use for it
	files, err := s.ask(ctx, stagewire.OpAdopt, m, &l, dropAnswer)
	if err != nil {
		return nil, fmt.Errorf("cannot adopt the pen of process %d: %w", m.Init.Pid, err)
	}
	named, err := byName(l.Files, files, FileInit, FileStatus, FileStdout)
	if err != nil {
		linux.CloseAll(files...)
		return nil, fmt.Errorf("cannot adopt the pen of process %d: %w", m.Init.Pid, err)
	}
	p := &Pen{
		stage: s, id: l.Pen, mark: m, Enforcement: enforcement, InitPid: m.Init.Pid, Pid: m.Target.Pid,
		files: named, job: filepath.Join(s.v2(), m.Cgroup, "job"),
	}
	q, err := p.process()
	if err != nil {
		linux.CloseAll(slices.Collect(maps.Values(p.files))...)
		return nil, fmt.Errorf("cannot adopt the pen of process %d: %w", m.Init.Pid, err)
	}
	return q, nil
}

// Settle says that every pen that is to be adopted has been: placeholders that an
// earlier stage has left, and no pen needs, are removed. Before it nothing is launched.
func (s *Stage) Settle(ctx context.Context) error {
	_, err := s.ask(ctx, stagewire.OpSettle, struct{}{}, nil, dropAnswer)
	return err
}

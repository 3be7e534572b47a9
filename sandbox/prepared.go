package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"

	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// ErrStale says that a prepared pen is not what would be built now.
var ErrStale = errors.New("the prepared pen is not what would be built now")

// Prepared is a pen whose target waits for its command, with all that confines it in
// force. It ends in exactly one of Launch and Abort.
type Prepared struct {
	stage *Stage
	id    uint64
	spec  Spec // without its command
}

// Prepare builds a pen beforehand. The rules are those of Launch; spec.Command is not
// looked at.
func (s *Stage) Prepare(ctx context.Context, conn *os.File, spec Spec, attach []*os.File) (*Prepared, error) {
	spec.Command = Command{}
	var q stagewire.Pen
	files, err := s.build(ctx, stagewire.OpPrepare, spec, nil, &q, s.forsake, append([]*os.File{conn}, attach...))
	linux.CloseAll(files...)
	if err != nil {
		return nil, err
	}
	return &Prepared{stage: s, id: q.Pen, spec: spec}, nil
}

// forsake ends a pen whose preparation nobody waits for any more.
func (s *Stage) forsake(a answer) {
	defer linux.CloseAll(a.files...)
	var q stagewire.Pen
	if decodeAnswer(a.m, &q) != nil {
		return // it was not prepared
	}
	// The only failure left is a stage that is gone, and then so is the pen.
	_ = (&Prepared{stage: s, id: q.Pen}).Abort(context.Background())
}

// Launch gives p its command and brings the target to its last gate, as Stage.Launch
// does. ErrStale: what would be built now is not what was built. After any error p is
// gone.
func (p *Prepared) Launch(ctx context.Context, c Command) (*Pen, error) {
	command, err := stagewire.Marshal(c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot ask the stage to launch: %w", err), p.Abort(ctx))
	}
	defer clear(command) // may hold secrets
	var l Launched
	files, err := p.stage.ask(ctx, stagewire.OpCommand, stagewire.Command{Pen: p.id, Command: command}, &l, p.stage.abandon)
	if err != nil {
		return nil, errors.Join(err, p.Abort(context.WithoutCancel(ctx)))
	}
	spec := p.spec
	spec.Command = c
	return p.stage.pen(ctx, spec, l, files)
}

// Abort ends the pen; nothing of it is left when Abort returns nil.
func (p *Prepared) Abort(ctx context.Context) error {
	return (&Pen{stage: p.stage, id: p.id}).Abort(ctx)
}

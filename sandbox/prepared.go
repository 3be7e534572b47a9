package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// ErrStale says that a prepared pen is not what would be built now.
var ErrStale = errors.New("the prepared pen is not what would be built now")

// Prepared is a pen whose target waits for its command, with all that confines it in
// force. It ends in exactly one of Launch and Abort.
type Prepared struct {
	pen   *Pen // without its last gate
	call  call // the request that gives it its command
	looks atomic.Uint64
}

// Prepare builds a pen beforehand. The rules are those of Launch. Of spec.Command only its
// Opening is looked at: its target has that open then, and a command of another one opens
// what it needs when it comes; one without a program: nothing. seen is what its command may
// rest on; nil: nothing.
func (s *Stage) Prepare(ctx context.Context, conn *os.File, spec Spec, attach []*os.File, seen *Seen) (*Prepared, error) {
	q, err := beforehand(spec.Command.Opening(), seen)
	if err != nil {
		return nil, err
	}
	spec.Command = Command{}
	var l Launched
	files, err := s.build(ctx, stagewire.OpPrepare, spec, q, &l, s.abandon, append([]*os.File{conn}, attach...))
	if err != nil {
		return nil, err
	}
	p, err := s.pen(ctx, spec, l, files)
	if err != nil {
		return nil, err
	}
	return &Prepared{pen: p}, nil
}

// beforehand is what a request to prepare says of the command to come.
func beforehand(o Opening, seen *Seen) (q stagewire.Launch, err error) {
	if o.Program != "" {
		if q.Opening, err = stagewire.Marshal(o); err != nil {
			return q, fmt.Errorf("cannot encode what is to be opened: %w", err)
		}
	}
	if seen != nil {
		if q.Seen, err = stagewire.Marshal(seen); err != nil {
			return q, fmt.Errorf("cannot encode what a command may rest on: %w", err)
		}
	}
	return q, nil
}

// Enforcement is what the kernel showed of the pen.
func (p *Prepared) Enforcement() Enforcement { return p.pen.Enforcement }

// Pid is the target, as this process sees it.
func (p *Prepared) Pid() int { return p.pen.Pid }

// Mark is Pen.Mark.
func (p *Prepared) Mark() Mark { return p.pen.Mark() }

// Rest says what a command rests on.
type Rest string

// What a command may rest on.
const (
	OnLook Rest = "look" // one that was made for it
	OnSeen Rest = "seen" // what Prepare was told, if it is so still
)

// Look is the number of a look ahead; 0: none was made.
type Look uint64

// Ahead has the stage look, while a command of conn's client is not known yet, whether one
// that rests on what was seen may do so. Launch of the command that is sent with the number
// tells what was found.
func (p *Prepared) Ahead(conn *os.File) (Look, error) {
	n := Look(p.looks.Add(1))
	b, err := stagewire.Marshal(stagewire.Ahead{Pen: p.pen.id, Look: uint64(n)})
	if err == nil {
		err = stagewire.Send(p.pen.stage.conn, stagewire.Message{Op: stagewire.OpAhead, Body: b}, conn)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot have the stage look ahead: %w", err)
	}
	return n, nil
}

// Send gives p its command, which the client of conn asked for. Launch waits for what
// comes of it. After an error p is gone.
func (p *Prepared) Send(ctx context.Context, conn *os.File, c Command, rests Rest, look Look) error {
	q := stagewire.Command{Pen: p.pen.id, Rests: rests == OnSeen, Look: uint64(look)}
	var err error
	q.Command, err = stagewire.Marshal(c)
	defer clear(q.Command) // may hold secrets
	if err == nil {
		p.call, err = p.pen.stage.send(stagewire.OpCommand, q, conn)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot give a prepared pen its command: %w", err), p.Abort(context.WithoutCancel(ctx)))
	}
	p.pen.program = c.Program
	return nil
}

// Launch brings the target, whose command was sent, to its last gate, as Stage.Launch
// does. ErrStale: what the command rests on is not what is found now, or what would be
// built now is not what was built. After any error p is gone.
func (p *Prepared) Launch(ctx context.Context) (*Pen, error) {
	var l Launched
	files, err := p.call.wait(ctx, &l, p.pen.stage.abandon)
	if err != nil {
		return nil, errors.Join(err, p.Abort(context.WithoutCancel(ctx)))
	}
	named, err := byName(l.Files, files, FileGate)
	if err != nil || len(files) != 1 {
		linux.CloseAll(files...)
		return nil, errors.Join(fmt.Errorf("cannot launch: the stage sent %d descriptors, not the last gate", len(files)), err, p.Abort(context.WithoutCancel(ctx)))
	}
	p.pen.files[FileGate], p.pen.Laps = named[FileGate], l.Laps
	return p.pen, nil
}

// Abort ends the pen; nothing of it is left when Abort returns nil.
func (p *Prepared) Abort(ctx context.Context) error { return p.pen.Abort(ctx) }

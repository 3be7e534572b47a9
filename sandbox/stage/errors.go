package stage

import (
	"errors"
	"fmt"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// refusal is a no of the floors or of the validation.
type refusal struct{ error }

func refused(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// busy is a no that time cures.
var errBusy = errors.New("too many requests at once")

// errForgot asks for a profile that was only named.
var errForgot = errors.New("that profile is not known: it must be sent")

// errStale asks for a launch from the start.
var errStale = errors.New("the prepared pen is not what would be built now")

// failed says that the stage itself could not do a step of a launch.
func failed(what string, err error) error {
	return &sandbox.StepError{
		Step: -1, Text: what + ": " + err.Error(), Where: sandbox.WhereStage, Errno: linux.Errno(err),
		Hint: sandbox.StepHint(what, linux.Errno(err)),
	}
}

// answerOf is how err travels to the daemon.
func answerOf(err error) *stagewire.Failure {
	f := &stagewire.Failure{Kind: stagewire.KindKernel, Say: err.Error(), Errno: int(linux.Errno(err))}
	var step *sandbox.StepError
	var no refusal
	switch {
	case errors.Is(err, errBusy):
		f.Kind = stagewire.KindBusy
	case errors.Is(err, errForgot):
		f.Kind = stagewire.KindForgot
	case errors.Is(err, errStale):
		f.Kind = stagewire.KindStale
	case errors.Is(err, sandbox.ErrGone):
		f.Kind = stagewire.KindGone
	case errors.As(err, &no):
		f.Kind = stagewire.KindRefused
	case errors.As(err, &step):
		f.Kind = stagewire.KindStep
		f.Step, f.Text, f.Where, f.Errno, f.Hint = step.Step, step.Text, step.Where, int(step.Errno), step.Hint
	case errors.Is(err, sandbox.ErrUnsupported):
		f.Kind = stagewire.KindLack
	}
	return f
}

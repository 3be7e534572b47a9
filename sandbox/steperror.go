package sandbox

import (
	"errors"
	"fmt"
	"syscall"
)

// Where a step of a launch was made.
const (
	WhereStage  = "stage"  // by the stage, before PID 1
	WhereInit   = "init"   // by PID 1 of the pen
	WhereTarget = "target" // by the target, before its exec
)

// ErrLost says that PID 1 of a pen went without a record of its target's end.
var ErrLost = errors.New("PID 1 of the pen is gone without a record")

// ErrStageGone says that the stage has ended; no pen can be started any more.
var ErrStageGone = errors.New("the stage has ended")

// ErrBusy says that the stage has as many requests as it takes at once.
var ErrBusy = errors.New("the stage is busy")

// ErrUnsupported says that this host lacks something that was asked for.
var ErrUnsupported = errors.New("not supported by this host")

// StepError says which step of a launch failed. It unwraps to its Errno.
type StepError struct {
	Step  int           `json:"step"`  // number in the printed Program; -1 for a step of the stage
	Text  string        `json:"text"`  // the step as the Program prints it, or what the stage was doing
	Where string        `json:"where"` // one of the Where constants
	Errno syscall.Errno `json:"errno"` // 0: not an answer of the kernel
	Hint  string        `json:"hint,omitzero"`
	Path  string        `json:"path,omitzero"` // of the program inside the pen, where its exec failed
}

// Error names the step and its errno.
func (e *StepError) Error() string {
	s := "cannot start"
	if e.Path != "" {
		s += fmt.Sprintf(" %q", e.Path)
	}
	if e.Step >= 0 {
		s += fmt.Sprintf(": step %d %s of the %s", e.Step, e.Text, e.Where)
	} else {
		s += fmt.Sprintf(": step %q of the %s", e.Text, e.Where)
	}
	if e.Errno != 0 {
		s += ": " + e.Errno.Error()
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the errno, or nil when there is none.
func (e *StepError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// Package outcome owns the file in which a daemon tells what became of a signal that
// asked it for something. Who may send the signal may read it. It asks for nothing
// itself, and never decides what an answer is.
package outcome

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/go-json-experiment/json"
)

// Name is the file in the state directory. It is written in place, since a daemon that
// has confined itself renames nothing there.
const Name = "pinfoldd.outcome"

// maxOutcome is how many bytes of the file are read.
const maxOutcome = 16 << 10

// Of is what was asked for.
type Of string

// What can be asked for.
const (
	Policy Of = "policy" // SIGHUP: read the policy again
	Binary Of = "binary" // SIGUSR2: hand over to the program that is on disk now
)

// Outcome is what became of the last signal.
type Outcome struct {
	Count int64  `json:"count"` // grows with each answer, over daemons too
	Of    Of     `json:"of"`
	PID   int    `json:"pid"` // of the daemon that answers
	Error string `json:"error,omitzero"`
}

// Make makes the file where it is absent.
func Make(state string) error {
	f, err := os.OpenFile(filepath.Join(state, Name), os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("cannot make the file for answers: %w", err)
	}
	return f.Close()
}

// Put tells that a signal has been answered; failed is nil where it was done.
func Put(state string, of Of, failed error) error {
	last, err := Get(state)
	if err != nil && !errors.Is(err, ErrUnfinished) {
		return err
	}
	o := Outcome{Count: last.Count + 1, Of: of, PID: os.Getpid()}
	if failed != nil {
		o.Error = failed.Error()
	}
	b, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(filepath.Join(state, Name), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot write the answer: %w", err)
	}
	return nil
}

// ErrUnfinished says that the file is being written, or was cut short.
var ErrUnfinished = errors.New("the answer is unfinished")

// Get reads the last answer; none yet is the zero Outcome.
func Get(state string) (Outcome, error) {
	var o Outcome
	b, err := os.ReadFile(filepath.Join(state, Name))
	switch {
	case errors.Is(err, os.ErrNotExist) || err == nil && len(b) == 0:
		return o, nil
	case err != nil:
		return o, fmt.Errorf("cannot read the answer: %w", err)
	case len(b) > maxOutcome || json.Unmarshal(b, &o) != nil:
		return Outcome{}, ErrUnfinished
	}
	return o, nil
}

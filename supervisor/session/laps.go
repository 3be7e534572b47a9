package session

import (
	"log/slog"
	"time"

	"pinfold/sandbox"
)

// newLaps begins to time the steps of something for the log; nil unless somebody
// reads it at debug level.
func (s *Session) newLaps(at time.Time) *sandbox.Laps {
	if !s.log.Enabled(s.base, slog.LevelDebug) {
		return nil
	}
	return sandbox.NewLaps(at)
}

// tellLaps logs how long each step of a process took.
func (s *Session) tellLaps(id string, l *sandbox.Laps) {
	if l == nil {
		return
	}
	args := []any{attrProc(id)}
	for _, lap := range l.All() {
		args = append(args, slog.Duration(lap.Step, time.Duration(lap.Ns)))
	}
	s.log.Debug("steps", args...)
}

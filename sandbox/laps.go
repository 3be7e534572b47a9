package sandbox

import "time"

// Lap is how long one step took.
type Lap struct {
	Step string `json:"step"`
	Ns   int64  `json:"ns"` // nanoseconds
}

// Laps time the steps of one thing, one after the other. A nil *Laps times
// nothing and costs nothing.
type Laps struct {
	at  time.Time
	all []Lap
}

// NewLaps begins the first lap at a time.
func NewLaps(at time.Time) *Laps { return &Laps{at: at} }

// Lap ends a lap, which is that of step, and begins the next.
func (l *Laps) Lap(step string) {
	if l == nil {
		return
	}
	now := time.Now()
	l.all = append(l.all, Lap{Step: step, Ns: now.Sub(l.at).Nanoseconds()})
	l.at = now
}

// Add takes laps of somebody else's that lie within the lap that goes on.
func (l *Laps) Add(all []Lap) {
	if l != nil {
		l.all = append(l.all, all...)
	}
}

// All returns the laps so far.
func (l *Laps) All() []Lap {
	if l == nil {
		return nil
	}
	return l.all
}

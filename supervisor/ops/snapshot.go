package ops

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"pinfold/proto"
)

// Snapshot is a record in the form in which it is stored.
type Snapshot struct {
	Entries   []Entry         `json:"entries"`            // by At, the open ones last
	Forgotten []byte          `json:"forgotten,omitzero"` // names, 24 bytes each
	Horizon   proto.Timestamp `json:"horizon,omitzero"`
}

// Snapshot returns the record as it stands now.
func (r *Record) Snapshot() Snapshot {
	s := Snapshot{Entries: make([]Entry, 0, len(r.entries)), Forgotten: r.forgotten.encode(), Horizon: r.forgotten.horizon}
	for _, e := range r.concluded {
		s.Entries = append(s.Entries, *e)
	}
	open := slices.SortedFunc(maps.Values(r.entries), func(a, b *Entry) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.ID, b.ID))
	})
	for _, e := range open {
		if e.Open() {
			s.Entries = append(s.Entries, *e)
		}
	}
	return s
}

// Restore returns the record of a snapshot, or an error where that is none. What was
// under way is concluded with outcome_unknown: who knows better, because the process
// that a spawn started is there, settles that entry of the snapshot before.
func Restore(s Snapshot, j Journal, now time.Time) (*Record, error) {
	r := New(j)
	var err error
	if r.forgotten, err = decodeNames(s.Forgotten, s.Horizon); err != nil {
		return nil, err
	}
	for _, e := range s.Entries {
		if e.Outcome == proto.OutcomeNotSent {
			continue // who knows better says that nothing of it was done
		}
		switch {
		case e.ID == "" || r.entries[e.ID] != nil:
			return nil, fmt.Errorf("cannot read the record of operations: the name %q is empty or there twice", e.ID)
		case len(r.entries) >= MaxKept:
			return nil, fmt.Errorf("cannot read the record of operations: it has %d, the limit is %d", len(s.Entries), MaxKept)
		case e.Open():
			e.Outcome, e.At = proto.OutcomeUnknown, proto.TimestampOf(now)
		}
		r.entries[e.ID] = &e
		r.concluded = append(r.concluded, &e)
		r.bytes += len(e.Answer)
	}
	slices.SortStableFunc(r.concluded, func(a, b *Entry) int { return cmp.Compare(a.At, b.At) })
	r.trim(now)
	return r, nil
}

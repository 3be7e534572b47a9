// Package ops owns the record of a session's named operations: which were taken, and
// what became of each. It never carries one out, and never forgets one that is under
// way.
//
// A Record keeps the answers of the last operations, and of those before them the
// names, so that none of them is done a second time. Of what it has forgotten for good
// it knows the horizon: what was first sent after that, and is not known, was not taken.
package ops

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"pinfold/proto"
)

// Limits of one session's record.
const (
	MaxKept      = 1024      // operations that are known with their answers
	MaxBytes     = 1 << 20   // bytes of those answers
	MaxAge       = time.Hour // after its conclusion only an operation's name is known
	MaxForgotten = 16384     // operations of which the name is known
)

// Entry is one operation: what is stored of it.
type Entry struct {
	ID      string          `json:"op_id"`
	Request proto.Type      `json:"request"`
	Content proto.Digest    `json:"content"`          // what the request asks for
	At      proto.Timestamp `json:"at"`               // when it was concluded; of an open one, when it was taken
	Outcome proto.Outcome   `json:"outcome,omitzero"` // empty: under way
	Answer  jsontext.Value  `json:"answer,omitzero"`  // the response, as it was sent
}

// Open reports whether the operation is under way.
func (e *Entry) Open() bool { return e.Outcome == "" }

// Journal keeps what must outlive the daemon. Its methods are called one at a time.
type Journal interface {
	// Intend notes an operation before anything of it is done. When it returns nil, the
	// entry outlives the daemon; with an error nothing is done.
	Intend(e Entry) error
	// Settle notes what became of an operation, before that is told. The outcome not_sent
	// takes the entry away: nothing was done, and the same request may be sent again.
	Settle(e Entry) error
}

// Volatile is the Journal of a record that ends with the daemon.
type Volatile struct{}

// Intend keeps nothing.
func (Volatile) Intend(Entry) error { return nil }

// Settle keeps nothing.
func (Volatile) Settle(Entry) error { return nil }

// Record is the record of one session. It belongs to one goroutine at a time.
type Record struct {
	journal   Journal
	entries   map[string]*Entry
	concluded []*Entry // in the order of their conclusion
	bytes     int      // of the answers of all entries
	forgotten names
}

// New returns an empty record.
func New(j Journal) *Record {
	return &Record{journal: j, entries: map[string]*Entry{}, forgotten: newNames()}
}

// Standing is what a record says to a request that names an operation.
type Standing int

// The standings.
const (
	Fresh     Standing = iota // it is new, and noted as intended: do it, then call Settle
	UnderWay                  // it is being done for an earlier request
	Concluded                 // it was done, or refused: the entry has the answer
	Other                     // an operation of this name asks for something else
	Forgotten                 // it was concluded, and nothing more is known of it
	Full                      // every operation of the record is under way, and there are MaxKept
)

// Begin says what is known of the operation that a request names, with its entry where
// that is kept. A fresh one it notes in the journal; if that fails it is not taken.
func (r *Record) Begin(id string, request proto.Type, content proto.Digest, now time.Time) (Standing, Entry, error) {
	r.trim(now)
	if e := r.entries[id]; e != nil {
		switch {
		case e.Request != request || e.Content != content:
			return Other, *e, nil
		case e.Open():
			return UnderWay, *e, nil
		}
		return Concluded, *e, nil
	}
	if r.forgotten.has(id) {
		return Forgotten, Entry{}, nil
	}
	if len(r.entries) >= MaxKept {
		if len(r.concluded) == 0 {
			return Full, Entry{}, nil
		}
		r.forget()
	}
	e := &Entry{ID: id, Request: request, Content: content, At: proto.TimestampOf(now)}
	if err := r.journal.Intend(*e); err != nil {
		return Fresh, Entry{}, fmt.Errorf("cannot note the operation before it is done: %w", err)
	}
	r.entries[id] = e
	return Fresh, *e, nil
}

// errNotOpen is returned by Settle.
var errNotOpen = errors.New("no such operation is under way; this is a bug in pinfold, please report")

// Settle concludes an operation that is under way. With proto.OutcomeNotSent it is as if
// it had never been asked for. The record stands even if the journal fails.
func (r *Record) Settle(id string, o proto.Outcome, answer jsontext.Value, now time.Time) error {
	e := r.entries[id]
	if e == nil || !e.Open() {
		return fmt.Errorf("cannot settle operation %q: %w", id, errNotOpen)
	}
	e.Outcome, e.At = o, proto.TimestampOf(now)
	if o == proto.OutcomeNotSent {
		delete(r.entries, id)
	} else {
		e.Answer = answer
		r.bytes += len(answer)
		r.concluded = append(r.concluded, e)
	}
	err := r.journal.Settle(*e)
	r.trim(now)
	if err != nil {
		return fmt.Errorf("cannot note what became of operation %q: %w", id, err)
	}
	return nil
}

// Get returns what became of an operation, and its entry where that is kept.
// proto.OutcomeNotSent is said only where it is certain.
func (r *Record) Get(id string, now time.Time) (proto.Outcome, *Entry) {
	r.trim(now)
	e := r.entries[id]
	switch {
	case e != nil && !e.Open():
		known := *e
		return e.Outcome, &known
	case e != nil:
		known := *e
		return proto.OutcomeUnknown, &known
	case r.forgotten.has(id) || r.forgotten.horizon > 0:
		return proto.OutcomeUnknown, nil
	}
	return proto.OutcomeNotSent, nil
}

// Horizon returns the moment after which nothing that was concluded has been forgotten
// for good; 0: nothing ever was.
func (r *Record) Horizon() proto.Timestamp { return r.forgotten.horizon }

// trim forgets what is too much or too old.
func (r *Record) trim(now time.Time) {
	for len(r.concluded) > 0 && (r.bytes > MaxBytes || now.Sub(r.concluded[0].At.Time()) > MaxAge) {
		r.forget()
	}
}

// forget keeps only the name of the operation that was concluded first.
func (r *Record) forget() {
	e := r.concluded[0]
	r.concluded[0] = nil
	r.concluded = r.concluded[1:]
	r.bytes -= len(e.Answer)
	delete(r.entries, e.ID)
	r.forgotten.add(e.ID, e.At)
}

package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Record is one line of an audit file.
type Record struct {
	Line    int // from 1
	Seq     uint64
	Prev    string // hash of the line before; empty: written without a chain
	Time    time.Time
	Kind    Kind
	Subject Subject
	Raw     jsontext.Value // the line
}

// LineError is a line that is not a record: torn, foreign, or changed.
type LineError struct {
	Line int // from 1
	Err  error
}

// Error names the line.
func (e *LineError) Error() string {
	return fmt.Sprintf("cannot read line %d: %v", e.Line, e.Err)
}

// Unwrap returns the cause.
func (e *LineError) Unwrap() error {
	return e.Err
}

// MissingError is a jump in the sequence before a record: lines were taken out, or put in.
type MissingError struct {
	Line      int // of the record after the jump
	Want, Got uint64
}

// Error names the place.
func (e *MissingError) Error() string {
	return fmt.Sprintf("cannot account for line %d: sequence goes on with %d, want %d", e.Line, e.Got, e.Want)
}

// errTooLong is the cause of a LineError.
var errTooLong = fmt.Errorf("longer than %d bytes", maxRecord)

// Read goes through an audit file. A line that is not a record comes as a *LineError, a jump in the sequence as a *MissingError (before
// its record); reading goes on after both. Any other error is the reader's and the last. An empty line is a bad line.
func Read(r io.Reader) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		var last uint64
		for l, err := range lines(r) {
			if err == nil {
				err = l.bad
			}
			if err != nil {
				if !yield(Record{Line: l.rec.Line}, err) {
					return
				}
				continue
			}
			if last != 0 && l.rec.Seq != last+1 && !yield(Record{Line: l.rec.Line}, &MissingError{Line: l.rec.Line, Want: last + 1, Got: l.rec.Seq}) {
				return
			}
			last = l.rec.Seq
			if !yield(l.rec, nil) {
				return
			}
		}
	}
}

// line is one line of a file.
type line struct {
	rec      Record // only its Line where bad is set
	bad      error  // why it is no record
	raw      []byte // without its newline; nil: longer than maxRecord
	from, to int64  // where it stands, newline and all
}

// counter counts what was read.
type counter struct {
	in io.Reader
	n  int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.n += int64(n)
	return n, err
}

// lines goes through a file line by line. An error is the reader's and the last.
func lines(r io.Reader) iter.Seq2[line, error] {
	return func(yield func(line, error) bool) {
		count := &counter{in: r}
		in := bufio.NewReaderSize(count, tailStep)
		var from int64
		for n := 1; ; n++ {
			raw, err := readLine(in)
			if errors.Is(err, io.EOF) && len(raw) == 0 {
				return
			}
			l := line{rec: Record{Line: n}, raw: raw, from: from, to: count.n - int64(in.Buffered())}
			from = l.to
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, errTooLong) {
				yield(l, err)
				return
			}
			rec, bad := record(n, raw, err)
			if l.bad = bad; bad == nil {
				l.rec = rec
			}
			if !yield(l, nil) {
				return
			}
		}
	}
}

// record makes a Record of a line as readLine gave it.
func record(n int, line []byte, err error) (Record, error) {
	switch {
	case errors.Is(err, errTooLong):
		return Record{}, &LineError{Line: n, Err: errTooLong}
	case errors.Is(err, io.EOF):
		return Record{}, &LineError{Line: n, Err: fmt.Errorf("torn: %d bytes without an end of line", len(line))}
	}
	h, derr := decodeHead(line)
	if derr != nil {
		return Record{}, &LineError{Line: n, Err: derr}
	}
	return Record{Line: n, Seq: h.Seq, Prev: h.Prev, Time: h.Time, Kind: h.Kind, Subject: h.Subject, Raw: slices.Clone(line)}, nil
}

// readLine reads a line without its newline; of one that is too long it drops the rest and returns errTooLong, at the end io.EOF with what is
// there.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > maxRecord+1 {
			long, line = true, line[:0]
		} else if !long {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case long && (err == nil || errors.Is(err, io.EOF)):
			return nil, errTooLong
		case err != nil:
			return line, err
		}
		return bytes.TrimSuffix(line, []byte{'\n'}), nil
	}
}

// Event decodes the record into its event type; nil, nil for a kind that this version does not know.
func (r Record) Event() (Event, error) {
	e := newEvent(r.Kind)
	if e == nil {
		return nil, nil
	}
	if err := json.Unmarshal(r.Raw, e); err != nil {
		return nil, &LineError{Line: r.Line, Err: err}
	}
	event, ok := e.(Event)
	if !ok {
		return nil, fmt.Errorf("cannot read line %d: %s is no event: this is a bug in pinfold, please report", r.Line, r.Kind)
	}
	return event, nil
}

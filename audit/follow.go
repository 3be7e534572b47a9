package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"time"
)

// followWait is waited between two looks for new records.
const followWait = 250 * time.Millisecond

// beginSize is how much of a file tells it from others: seq, prev and time of its first record.
const beginSize = 256

// Entry is a record with its file.
type Entry struct {
	File string
	Record
}

// ReadLog goes through all files of a log in order. Errors are as those of Read, with the name of the file; one of a file that cannot be read is the last.
func ReadLog(path string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		names, err := Files(path)
		if err != nil {
			yield(Entry{}, err)
			return
		}
		for _, name := range names {
			if _, ok := readFile(name, spot{}, yield); !ok {
				return
			}
		}
	}
}

// Last gives the last n records of a log in order, and the errors of the files that it read for them.
func Last(path string, n int) ([]Entry, []error) {
	names, err := Files(path)
	if err != nil {
		return nil, []error{err}
	}
	var out []Entry
	var errs []error
	for _, name := range slices.Backward(names) {
		var found []Entry
		readFile(name, spot{}, func(e Entry, err error) bool {
			if err != nil {
				errs = append(errs, err)
				return len(errs) < maxProblems
			}
			if found = append(found, e); len(found) >= 2*n+1 {
				found = append(found[:0], found[len(found)-n:]...)
			}
			return true
		})
		found = found[max(0, len(found)-(n-len(out))):]
		if out = append(found, out...); len(out) >= n {
			break
		}
	}
	return out, errs
}

// spot is how far a file was read.
type spot struct {
	offset int64
	line   int
}

// readFile reads what was added to a file; false: it is over.
func readFile(name string, from spot, yield func(Entry, error) bool) (spot, bool) {
	f, err := os.Open(name)
	if err != nil {
		yield(Entry{File: name}, fmt.Errorf("cannot read the audit file: %w", err))
		return from, false
	}
	defer func() { _ = f.Close() }() // only read
	size, err := whole(f)
	if err != nil {
		yield(Entry{File: name}, fmt.Errorf("cannot read the audit file %s: %w", name, err))
		return from, false
	}
	now := from
	for l, err := range lines(io.NewSectionReader(f, from.offset, max(0, size-from.offset))) {
		rec := l.rec
		rec.Line += from.line
		if err != nil {
			yield(Entry{File: name, Record: rec}, fmt.Errorf("cannot read the audit file %s: %w", name, err))
			return now, false
		}
		if l.bad != nil {
			err = fmt.Errorf("%s: %w", name, &LineError{Line: rec.Line, Err: errors.Unwrap(l.bad)})
		}
		if !yield(Entry{File: name, Record: rec}, err) {
			return now, false
		}
		now = spot{offset: from.offset + l.to, line: rec.Line}
	}
	return now, true
}

// Follow gives the records after number seq as they are written, until ctx ends. Errors are as those of ReadLog.
func Follow(ctx context.Context, path string, seq uint64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		f := follower{path: path, seq: seq, yield: yield}
		for f.look() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(followWait):
			}
		}
	}
}

// follower is how far a log was followed.
type follower struct {
	path  string
	seq   uint64
	now   spot   // in path
	begin []byte // of path
	anew  bool   // path was closed while it was read, and begins anew
	yield func(Entry, error) bool
}

// look gives what has come; false: it is over.
func (f *follower) look() bool {
	for {
		changed, err := f.changed()
		if err != nil {
			f.yield(Entry{}, fmt.Errorf("cannot follow the audit file: %w", err))
			return false
		}
		if changed {
			f.now = spot{}
			if !readClosed(f.path, f.seq, f.add) {
				return false
			}
		}
		f.anew = false
		now, ok := readFile(f.path, f.now, func(e Entry, err error) bool {
			if err != nil || e.Seq > f.seq+1 {
				// Not what was expected: perhaps it is another file by now.
				if changed, cerr := f.changed(); changed && cerr == nil {
					f.anew, f.begin = true, nil
					return false
				}
			}
			return f.add(e, err)
		})
		if !f.anew {
			f.now = now
			return ok
		}
	}
}

// add gives a record that was not given before.
func (f *follower) add(e Entry, err error) bool {
	if err == nil && e.Seq <= f.seq {
		return true
	}
	if err == nil {
		f.seq = e.Seq
	}
	return f.yield(e, err)
}

// changed says whether path begins otherwise than before: then it was closed. No two files begin with the same record.
func (f *follower) changed() (bool, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }() // only read
	buf := make([]byte, beginSize)
	n, err := file.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	changed := len(f.begin) == 0 || !bytes.HasPrefix(buf[:n], f.begin)
	f.begin = buf[:n]
	return changed, nil
}

// readClosed reads the closed files that have records after number seq.
func readClosed(path string, seq uint64, yield func(Entry, error) bool) bool {
	firsts, err := closedFirsts(path)
	if err != nil {
		yield(Entry{}, err)
		return false
	}
	for i, n := range firsts {
		if i+1 < len(firsts) && firsts[i+1] <= seq+1 {
			continue
		}
		name := closedPath(path, n)
		last, err := endOf(name)
		if err != nil {
			yield(Entry{File: name}, fmt.Errorf("cannot read the audit file: %w", err))
			return false
		}
		if last.Seq <= seq {
			continue
		}
		if _, ok := readFile(name, spot{}, yield); !ok {
			return false
		}
	}
	return true
}

package ops

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"pinfold/proto"
)

// Version of the format of a File. A file of another version is not read.
const Version = 1

// MaxAppended is how many bytes a File takes before it is written anew.
const MaxAppended = 1 << 20

// File is a Journal in one file, for a directory in memory that outlives the daemon: a
// snapshot in its first line, and a line for each entry since. A line is there as a
// whole once write(2) has returned; what a killed daemon has left of one is as if it had
// not been begun, and nothing was done or told for it. There is no file before the first
// entry.
type File struct {
	path     string
	file     *os.File // nil: not open
	size     int64    // of the lines that are whole
	appended int64    // of those behind the first
	record   *Record  // whose snapshot a new file begins with
	closed   bool
}

// first is the first line of a file.
type first struct {
	Version int `json:"version"`
	Snapshot
}

// Open returns the record that an earlier daemon has left at path, or an empty one
// where nothing is, with a File there as its Journal; the File is the caller's to close.
// settle, if not nil, is asked for every operation that was under way, and may conclude
// it because it knows better than outcome_unknown.
func Open(path string, now time.Time, settle func(*Entry)) (*Record, *File, error) {
	f := &File{path: path}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		f.record = New(f)
		return f.record, f, nil
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read the record of operations: %w", err)
	}
	s, err := read(text)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the record of operations in %s: %w", path, err)
	}
	for i := range s.Entries {
		if e := &s.Entries[i]; e.Open() && settle != nil {
			settle(e)
		}
	}
	if f.record, err = Restore(s, f, now); err != nil {
		return nil, nil, err
	}
	return f.record, f, f.renew()
}

// Reset makes a record at path that knows of no operation before now, and says so: where
// what an earlier daemon has left cannot be read.
func Reset(path string, now time.Time) (*Record, *File, error) {
	f := &File{path: path}
	var err error
	if f.record, err = Restore(Snapshot{Horizon: proto.TimestampOf(now)}, f, now); err != nil {
		return nil, nil, err
	}
	return f.record, f, f.renew()
}

// read is the snapshot that the lines of a file come to.
func read(text []byte) (Snapshot, error) {
	lines := bytes.SplitAfter(text, []byte{'\n'})
	var head first
	if err := json.Unmarshal(lines[0], &head); err != nil {
		return Snapshot{}, err
	}
	if head.Version != Version {
		return Snapshot{}, fmt.Errorf("it has version %d, this is %d", head.Version, Version)
	}
	names, err := decodeNames(head.Forgotten, head.Horizon)
	if err != nil {
		return Snapshot{}, err
	}
	r := New(Volatile{})
	r.forgotten = names
	for _, e := range head.Entries {
		if err := r.replay(e); err != nil {
			return Snapshot{}, err
		}
	}
	for _, line := range lines[1:] {
		if !bytes.HasSuffix(line, []byte{'\n'}) {
			break // torn, or the end
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return Snapshot{}, err
		}
		if err := r.replay(e); err != nil {
			return Snapshot{}, err
		}
	}
	return r.Snapshot(), nil
}

// replay does with an entry what was done when it was written.
func (r *Record) replay(e Entry) error {
	at := e.At.Time()
	known := r.entries[e.ID]
	if known != nil && !known.Open() {
		return nil // the file was written anew, with the entry, before this line
	}
	if known == nil {
		if how, _, err := r.Begin(e.ID, e.Request, e.Content, at); err != nil || how != Fresh {
			return errors.Join(err, fmt.Errorf("operation %q comes twice", e.ID))
		}
	}
	if e.Open() {
		return nil
	}
	return r.Settle(e.ID, e.Outcome, e.Answer, at)
}

// Intend appends the entry.
func (f *File) Intend(e Entry) error { return f.add(e) }

// Settle appends the entry.
func (f *File) Settle(e Entry) error { return f.add(e) }

func (f *File) add(e Entry) error {
	if f.closed {
		return nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if f.file == nil || f.appended > max(MaxAppended, f.size-f.appended) {
		if err := f.renew(); err != nil {
			return err
		}
	}
	line = append(line, '\n')
	if _, err := f.file.WriteAt(line, f.size); err != nil {
		err = errors.Join(err, f.file.Close())
		f.file = nil // what a full file system took of the line goes with the next entry
		return err
	}
	f.size += int64(len(line))
	f.appended += int64(len(line))
	return nil
}

// renew writes the file anew under another name, and renames it.
func (f *File) renew() error {
	line, err := json.Marshal(first{Version, f.record.Snapshot()})
	if err != nil {
		return err
	}
	line = append(line, '\n')
	fresh := f.path + ".new"
	file, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(line)
	if err == nil {
		err = os.Rename(fresh, f.path)
	}
	if err != nil {
		return errors.Join(err, file.Close(), os.Remove(fresh))
	}
	old := f.file
	f.file, f.size, f.appended = file, int64(len(line)), 0
	if old != nil {
		return old.Close()
	}
	return nil
}

// Close closes the file and leaves it where it is. What comes later is not kept: nobody
// will ask for it.
func (f *File) Close() error {
	f.closed = true
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

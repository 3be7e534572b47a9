package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// rotateRetryTime is waited after a file could not be closed.
const rotateRetryTime = time.Minute

// rotation is what Serve knows of closing files.
type rotation struct {
	retry time.Time // not before
	off   bool      // the file cannot be emptied: not in this run
}

// rotateFull closes the file if it is large. What it holds is copied to Dir, and it is emptied: a daemon that gave up its rights holds the file open, and can neither
// rename it nor make another in its place.
func (l *Log) rotateFull() {
	l.mu.Lock()
	size, err := l.wholeSize()
	due := err == nil && size >= l.opts.Rotate && !l.rotation.off && time.Now().After(l.rotation.retry)
	first := l.first
	l.mu.Unlock()
	if !due {
		return
	}
	// Most of the copy is made while others go on writing: whole records never change.
	part, err := l.copyWhole(size)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		err = l.close(part, size, first)
	}
	if err != nil {
		l.rotation.retry = time.Now().Add(rotateRetryTime)
		l.opts.Warn(fmt.Errorf("cannot close the audit file, it goes on: %w", err))
	}
}

// wholeSize is the size of the file, all of it whole records. The caller holds the lock.
func (l *Log) wholeSize() (int64, error) {
	if l.file == nil || l.gap != nil || l.fresh || l.first == 0 {
		return 0, ErrUnavailable
	}
	return l.file.Seek(0, io.SeekEnd)
}

// partPath is the copy while it is made.
func (l *Log) partPath() string { return filepath.Join(Dir(l.path), "part") }

// copyWhole begins the copy with the first size bytes.
func (l *Log) copyWhole(size int64) (*os.File, error) {
	part, err := os.OpenFile(l.partPath(), os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = io.Copy(part, io.NewSectionReader(l.file, 0, size)); err == nil {
		err = part.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, part.Close(), os.Remove(l.partPath()))
	}
	return part, nil
}

// close seals the file, of which size bytes are copied to part, and begins the next. The caller holds the lock.
func (l *Log) close(part *os.File, size int64, first uint64) error {
	undo := func(err error) error {
		if err = errors.Join(err, part.Close()); err != nil {
			err = errors.Join(err, os.Remove(l.partPath()))
		}
		return err
	}
	if _, err := l.wholeSize(); err != nil {
		return undo(err)
	}
	told, err := l.tell(Sealed{Records: l.head.Seq - first + 1, First: first, Last: l.head.Seq})
	l.fresh = told
	if err != nil {
		return undo(err)
	}
	end, err := l.file.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = io.Copy(part, io.NewSectionReader(l.file, size, end-size))
	}
	if err = undo(errors.Join(err, part.Sync())); err == nil {
		err = l.swap(first)
	}
	return errors.Join(err, l.heal())
}

// swap gives the whole copy its name, and empties the file.
func (l *Log) swap(first uint64) error {
	name := closedPath(l.path, first)
	if err := unix.Renameat2(unix.AT_FDCWD, l.partPath(), unix.AT_FDCWD, name, unix.RENAME_NOREPLACE); err != nil {
		return errors.Join(&os.PathError{Op: "rename", Path: name, Err: err}, os.Remove(l.partPath()))
	}
	if err := syncDir(Dir(l.path)); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return l.empty(name)
}

// empty empties the file, whose copy has this name.
func (l *Log) empty(name string) error {
	if err := l.file.Truncate(0); err != nil {
		l.rotation.off = true
		return errors.Join(err, os.Remove(name))
	}
	l.first, l.after = 0, filepath.Base(name)
	return nil
}

// finish closes a file that an earlier run has sealed. If it cannot, the file goes on.
func (l *Log) finish() {
	name := closedPath(l.path, l.first)
	size, err := l.file.Seek(0, io.SeekEnd)
	if err != nil {
		l.opts.Warn(err)
		return
	}
	have, n, err := sumFile(name)
	if err == nil {
		var want string
		want, _, err = sumReader(io.NewSectionReader(l.file, 0, size))
		if err == nil && (n != size || have != want) {
			err = fmt.Errorf("%s is there and is another file", name)
		}
		if err == nil { // the earlier run came so far
			err = l.empty(name)
		}
	} else if errors.Is(err, os.ErrNotExist) {
		var part *os.File
		if part, err = l.copyWhole(size); err == nil {
			if err = part.Close(); err == nil {
				err = l.swap(l.first)
			}
		}
	}
	if err != nil {
		l.opts.Warn(fmt.Errorf("cannot close the audit file, it goes on: %w", err))
	}
}

// Package audit owns the record of what was decided, started and ended: typed events, one JSON line each, chained by
// hashes and appended to one file, with secrets taken out before they are written; and the reader and verifier of such
// files. It never decides, never logs, and never rewrites or drops what is in a file: what is torn is set aside, and what is full is closed.
package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
)

// ErrUnavailable is what Append and Healthy return while records cannot be written. What the kernel said is wrapped beside it.
var ErrUnavailable = errors.New("audit file cannot be written")

// Sync says when records are forced to the disk by fsync(2).
type Sync string

// Ways to sync.
const (
	SyncNone     Sync = "none"     // by the kernel, when it likes
	SyncInterval Sync = "interval" // by Serve, every Options.Interval
	SyncEach     Sync = "each"     // before Append returns
)

// DefaultInterval is the interval of SyncInterval when none is given.
const DefaultInterval = time.Second

// maxRecord bounds one line; an event that is longer is refused. (Redaction bounds all that callers can make long.)
const maxRecord = 1 << 20

// DefaultRotate is the size at which a file is closed when none is given.
const DefaultRotate = 64 << 20

// Options of a Log.
type Options struct {
	Sync     Sync          // empty: SyncNone
	Interval time.Duration // of SyncInterval; 0: DefaultInterval
	Rotate   int64         // size at which Serve closes a file; 0: DefaultRotate
	Warn     func(error)   // told that a file could not be closed, and goes on; nil: nobody
}

// Log appends to one audit file. Its methods may be called from several goroutines.
type Log struct {
	path string
	opts Options

	mu    sync.Mutex
	file  *os.File
	head  Head
	first uint64 // seq of the first record in the file; 0: it has none
	dirty bool   // written since the last fsync
	gap   *gap   // nil: healthy
	fresh bool   // a continued record comes before anything else
	after string // that it names

	rotation rotation
}

// gap is what has gone wrong and is not yet told in the file.
type gap struct {
	Gap
	torn bool // the file has bytes from Offset on that are no record
	err  error
}

// Open opens or makes the audit file (0600) and finds where its chain goes on. A torn last line, as a kill or a power cut leaves it, is set aside in
// Dir, and told by a gap record. While that cannot be written, the log is open and not healthy.
func Open(path string, o Options) (*Log, error) {
	switch o.Sync {
	case "":
		o.Sync = SyncNone
	case SyncNone, SyncInterval, SyncEach:
	default:
		return nil, fmt.Errorf("cannot open audit file %s: unknown sync %q: use none, interval or each", path, o.Sync)
	}
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	if o.Rotate <= 0 {
		o.Rotate = DefaultRotate
	}
	if o.Warn == nil {
		o.Warn = func(error) {}
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open audit file: %w: %w", ErrUnavailable, err)
	}
	l := &Log{path: path, opts: o, file: file}
	if err := l.resume(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return l, nil
}

// resume looks at what is in the file, and finishes what was begun.
func (l *Log) resume() error {
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("cannot open audit file %s: not a regular file but %s", l.path, info.Mode().Type())
	}
	if err := os.Mkdir(Dir(l.path), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot make the directory of closed audit files: %w: %w", ErrUnavailable, err)
	}
	end, err := findEnd(l.file, info.Size())
	if err != nil {
		return fmt.Errorf("cannot read audit file %s: %w", l.path, err)
	}
	if err := l.findStart(end); err != nil {
		return err
	}
	if end.kind == KindSealed {
		l.fresh = true
		if end.torn == 0 {
			l.finish()
		}
	}
	if err := l.findTorn(info.Size(), end.torn); err != nil {
		return err
	}
	if err := l.heal(); err != nil && !errors.Is(err, ErrUnavailable) {
		return err
	}
	return nil
}

// findStart finds the head of the chain and the first record of the file. In a file without records the chain goes on from the last one that was closed.
func (l *Log) findStart(e end) error {
	if e.SHA256 != "" {
		l.head = e.Head
		size, err := l.file.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		for r, err := range Read(io.NewSectionReader(l.file, 0, size)) {
			if err == nil {
				l.first = r.Seq
				break
			}
		}
		return nil
	}
	l.head = Head{SHA256: Genesis}
	closed, err := closedFirsts(l.path)
	if err != nil || len(closed) == 0 {
		return err
	}
	name := closedPath(l.path, closed[len(closed)-1])
	last, err := endOf(name)
	if err != nil {
		return fmt.Errorf("cannot read the closed audit file: %w", err)
	}
	if last.SHA256 != "" {
		l.head, l.fresh, l.after = last.Head, true, filepath.Base(name)
	}
	return nil
}

// endOf is findEnd of a file by name.
func endOf(path string) (end, error) {
	f, err := os.Open(path)
	if err != nil {
		return end{}, err
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return end{}, err
	}
	return findEnd(f, info.Size())
}

// Head is where the chain is now.
func (l *Log) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// Append writes one event as one line by one write(2) and, with SyncEach, waits until it is on the disk. It returns ErrUnavailable when the
// record is not surely in the file; the log then tells of the gap in the file as soon as it can be written again.
func (l *Log) Append(s Subject, e Event) error {
	c, err := Encode(e)
	if err != nil {
		return err
	}
	return l.Write(s, c)
}

// Encoded is an event that was redacted and encoded ahead of its time.
type Encoded struct {
	kind Kind
	body []byte
}

// Encode does for Write what does not depend on the file.
func Encode(e Event) (Encoded, error) {
	if r, ok := e.(redacter); ok {
		e = r.redact()
	}
	body, err := json.Marshal(e)
	if err != nil {
		return Encoded{}, fmt.Errorf("cannot encode audit event %s: %w", e.kind(), err)
	}
	return Encoded{e.kind(), body}, nil
}

// Write is Append of an event that was encoded before; its time is now.
func (l *Log) Write(s Subject, e Encoded) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.heal(); err != nil {
		if l.gap != nil {
			l.gap.Lost++
		}
		return err
	}
	return l.append(s, e.kind, e.body)
}

// append writes a line for the marshalled event; the caller holds the lock and the log is healthy.
func (l *Log) append(s Subject, k Kind, body []byte) error {
	line, err := encode(l.head, time.Now(), k, s, body)
	if err != nil {
		return err
	}
	if len(line) > maxRecord {
		return fmt.Errorf("cannot write audit event %s: %d bytes, the limit is %d", k, len(line), maxRecord)
	}
	if _, err := l.write(line); err != nil {
		l.gap.Lost++
		return err
	}
	return nil
}

// write makes one write(2) and says whether the whole line is in the file (an error then comes from fsync(2)). The kernel takes only a part of a line on a
// disk that just became full: that part is cut off again, for the file to end in a whole line.
func (l *Log) write(line []byte) (bool, error) {
	if l.file == nil {
		l.fail(os.ErrClosed)
		return false, l.unavailable()
	}
	n, err := l.writeOnce(line)
	if n == len(line) && err == nil {
		l.dirty = true
		l.head = l.head.next(line)
		if l.first == 0 {
			l.first = l.head.Seq
		}
		if l.opts.Sync == SyncEach {
			return true, l.sync()
		}
		return true, nil
	}
	if err == nil {
		err = unix.ENOSPC // the one reason for which a regular file takes less, write(2)
	}
	l.fail(os.NewSyscallError("write", err))
	if n > 0 {
		l.cut(int64(n))
	}
	return false, l.unavailable()
}

// writeOnce calls write(2), again only if a signal came before the first byte.
func (l *Log) writeOnce(line []byte) (int, error) {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	var werr error
	err = raw.Write(func(fd uintptr) bool {
		for {
			n, werr = unix.Write(int(fd), line)
			if !errors.Is(werr, unix.EINTR) {
				return true
			}
		}
	})
	return max(n, 0), errors.Join(err, werr)
}

// fail notes that writing failed.
func (l *Log) fail(err error) {
	if l.gap == nil {
		l.gap = &gap{Gap: Gap{Reason: "unavailable", Since: time.Now()}}
	}
	l.gap.err, l.gap.Cause = err, err.Error()
}

// unavailable is the error of an unhealthy log.
func (l *Log) unavailable() error {
	return fmt.Errorf("cannot write %s: %w: %w", l.path, ErrUnavailable, l.gap.err)
}

// heal sets aside what is torn, and tries to write what there is to tell; nil: the log is healthy.
func (l *Log) heal() error {
	if l.gap == nil && !l.fresh {
		return nil
	}
	if l.gap != nil && l.gap.torn && l.file != nil {
		if err := l.setAside(); err != nil {
			l.fail(err)
			return l.unavailable()
		}
	}
	if l.fresh {
		told, err := l.tell(Continued{File: l.after})
		if told {
			l.fresh, l.after = false, ""
		}
		if err != nil {
			return err
		}
	}
	if l.gap == nil {
		return nil
	}
	told, err := l.tell(l.gap.Gap)
	if told {
		l.gap = nil
	}
	if told && err != nil { // this gap is told, but not surely on the disk
		l.fail(err)
	}
	return err
}

// tell writes an event of the log itself.
func (l *Log) tell(e Event) (bool, error) {
	body, err := json.Marshal(e)
	if err != nil {
		return false, err
	}
	line, err := encode(l.head, time.Now(), e.kind(), Subject{}, body)
	if err != nil {
		return false, err
	}
	return l.write(line)
}

// Healthy returns nil while records can be written, else ErrUnavailable: no spawn may begin then. After a failure it tries to write by itself, so
// that the log heals once the disk has room.
func (l *Log) Healthy() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heal()
}

// sync forces the file to the disk. After a failed fsync(2) the kernel may have dropped the pages: the log is unhealthy until a write
// and its fsync work again.
func (l *Log) sync() error {
	if !l.dirty || l.file == nil {
		return nil
	}
	if err := l.file.Sync(); err != nil {
		l.fail(err)
		return l.unavailable()
	}
	l.dirty = false
	return nil
}

// Serve forces records to the disk every interval with SyncInterval, closes the file once it is large, and returns nil when ctx ends. A failure to sync
// makes the log unhealthy; a file that cannot be closed goes on.
func (l *Log) Serve(ctx context.Context) error {
	every := DefaultInterval
	if l.opts.Sync == SyncInterval {
		every = l.opts.Interval
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if l.opts.Sync == SyncInterval {
				l.syncAside()
			}
			l.rotateFull()
		}
	}
}

// syncAside is sync while others go on writing: nobody waits for the disk but who asked for SyncEach. A failure makes the log unhealthy.
func (l *Log) syncAside() {
	l.mu.Lock()
	file, dirty := l.file, l.dirty
	l.dirty = false // what is written from here on is not surely in this fsync(2)
	l.mu.Unlock()
	if file == nil || !dirty {
		return
	}
	if err := file.Sync(); err != nil && !errors.Is(err, os.ErrClosed) { // Close syncs by itself
		l.mu.Lock()
		defer l.mu.Unlock()
		l.dirty = true
		l.fail(err)
	}
}

// Close forces what was written to the disk and closes the file; a gap that could not be told is returned.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := errors.Join(l.heal(), l.sync(), l.file.Close())
	l.file = nil
	return err
}

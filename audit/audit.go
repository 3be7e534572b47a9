// Package audit owns the record of what was decided, started and ended: typed events, one JSON line each, appended to
// one file, with secrets taken out before they are written; and the reader of such files. It never
// decides, never logs, and never rewrites or removes what is in a file.
package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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

// Options of a Log.
type Options struct {
	Sync     Sync          // empty: SyncNone
	Interval time.Duration // of SyncInterval; 0: DefaultInterval
}

// Log appends to one audit file. Its methods may be called from several goroutines.
type Log struct {
	path string
	opts Options

	mu    sync.Mutex
	file  *os.File
	seq   uint64
	dirty bool // written since the last fsync
	gap   *gap // nil: healthy
}

// gap is what has gone wrong and is not yet told in the file.
type gap struct {
	Gap
	torn bool // the file does not end in a newline
	err  error
}

// Open opens or makes the audit file (0600) and finds where its sequence goes on. A torn last line, as a power cut leaves it, is set aside as
// a line of its own, followed by a gap event that gives its offset and length. ErrUnavailable if even that
// cannot be written; the Log is then not open.
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

// resume looks at what is in the file.
func (l *Log) resume() error {
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("cannot open audit file %s: not a regular file but %s", l.path, info.Mode().Type())
	}
	end, err := findEnd(l.file, info.Size())
	if err != nil {
		return fmt.Errorf("cannot read audit file %s: %w", l.path, err)
	}
	l.seq = end.seq
	if end.torn == 0 {
		return nil
	}
	l.gap = &gap{Gap: Gap{Reason: "torn", Offset: info.Size() - end.torn, Bytes: end.torn}, torn: true}
	return l.heal()
}

// Append writes one event as one line by one write(2) and, with SyncEach, waits until it is on the disk. It returns ErrUnavailable when the
// record is not surely in the file; the log then tells of the gap in the file as soon as it can be written again.
func (l *Log) Append(s Subject, e Event) error {
	if r, ok := e.(redacter); ok {
		e = r.redact()
	}
	body, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("cannot encode audit event %s: %w", e.kind(), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.heal(); err != nil {
		l.gap.Lost++
		return err
	}
	return l.append(s, e.kind(), body)
}

// append writes a line for the marshalled event; the caller holds the lock and the log is healthy.
func (l *Log) append(s Subject, k Kind, body []byte) error {
	line, err := encode(l.seq+1, time.Now(), k, s, body)
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

// write makes one write(2) and says whether the whole line is in the file (an error then comes from fsync(2)). The kernel takes only a part of a line on a disk that just became full: that part stays, as torn.
func (l *Log) write(line []byte) (bool, error) {
	if l.file == nil {
		l.fail(os.ErrClosed, 0)
		return false, l.unavailable()
	}
	n, err := l.writeOnce(line)
	if n == len(line) && err == nil {
		l.dirty = true
		l.seq++
		if l.opts.Sync == SyncEach {
			return true, l.sync()
		}
		return true, nil
	}
	if err == nil {
		err = unix.ENOSPC // the one reason for which a regular file takes less, write(2)
	}
	l.fail(os.NewSyscallError("write", err), n)
	if n == len(line)-1 { // its newline alone is missing: once that comes it is a record, and has spent its number
		l.seq++
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

// fail notes that writing failed after n bytes of a line.
func (l *Log) fail(err error, n int) {
	if l.gap == nil {
		l.gap = &gap{Gap: Gap{Reason: "unavailable", Since: time.Now()}}
	}
	l.gap.err, l.gap.Cause = err, err.Error()
	if n == 0 || l.file == nil {
		return
	}
	end, serr := l.file.Seek(0, io.SeekEnd)
	if serr != nil {
		l.gap.err = errors.Join(err, serr)
	}
	if !l.gap.torn {
		l.gap.torn, l.gap.Offset, l.gap.Bytes = true, end-int64(n), 0
	}
	l.gap.Bytes = end - l.gap.Offset
}

// unavailable is the error of an unhealthy log.
func (l *Log) unavailable() error {
	return fmt.Errorf("cannot write %s: %w: %w", l.path, ErrUnavailable, l.gap.err)
}

// heal tries to write of a gap what there is to tell; nil: the log is healthy.
func (l *Log) heal() error {
	if l.gap == nil {
		return nil
	}
	g := *l.gap
	body, err := json.Marshal(g.Gap)
	if err != nil {
		return err
	}
	line, err := encode(l.seq+1, time.Now(), KindGap, Subject{}, body)
	if err != nil {
		return err
	}
	if g.torn {
		line = append([]byte{'\n'}, line...)
	}
	told, err := l.write(line)
	if told {
		l.gap = nil
	}
	if told && err != nil { // this gap is told, but not surely on the disk
		l.fail(err, 0)
	}
	return err
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
		l.fail(err, 0)
		return l.unavailable()
	}
	l.dirty = false
	return nil
}

// Serve forces records to the disk every interval with SyncInterval, and returns nil when ctx ends. A failure makes the log unhealthy.
func (l *Log) Serve(ctx context.Context) error {
	if l.opts.Sync != SyncInterval {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(l.opts.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			l.syncAside()
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
		l.fail(err, 0)
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

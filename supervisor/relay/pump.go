package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

var (
	errLimit = errors.New("output limit reached")
	errHung  = errors.New("no process has the terminal open")
	errRoom  = errors.New("cannot make room for output") // for now: it is tried again
)

// pump moves one stream from its pipe into its spool until the pipe ends.
func (o *Output) pump(ctx context.Context, s *stream) error {
	if s.ended.Load() {
		return nil
	}
	warned := false
	for {
		room, err := o.waitRoom(ctx, s)
		if err == nil {
			err = o.takeSome(ctx, s, room)
		}
		if errors.Is(err, errRoom) {
			if !warned && o.c.Warn != nil {
				o.c.Warn(err)
			}
			warned = true
			err = o.pause(ctx, hungRetry)
		}
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil && !errors.Is(err, io.EOF):
			return context.Cause(ctx)
		case errors.Is(err, errLimit), errors.Is(err, os.ErrDeadlineExceeded):
			o.cut.Store(true)
			err = nil
		case errors.Is(err, io.EOF):
			err = nil
		default:
			o.cut.Store(true)
		}
		s.ended.Store(true)
		o.subs.wake()
		return err
	}
}

// takeSome moves at most room bytes, and frees what is old enough.
func (o *Output) takeSome(ctx context.Context, s *stream, room int) error {
	n, err := o.take(s, room)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		o.full.Store(true)
		if freed, err := o.relieve(s); freed > 0 || err != nil {
			return noRoom(err)
		}
		return o.pause(ctx, hungRetry)
	}
	if errors.Is(err, errHung) {
		return o.pauseHung(ctx)
	}
	if err != nil {
		return err
	}
	o.full.Store(false)
	if n == 0 {
		return io.EOF
	}
	s.last.Store(int64(time.Since(o.start)))
	s.spool.size.Add(int64(n))
	o.c.Budget.take(int64(n))
	o.subs.wake()
	_, err = s.spool.free(o.old(s), punchStep)
	return noRoom(err)
}

// noRoom marks an error of freeing, which has taken nothing from the stream: a daemon that
// has no descriptor left for a moment cannot note what it frees.
func noRoom(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errRoom, err)
}

// old returns the offset below which s needs no byte any more. The last Keep bytes
// stay. Under block so does what the owner has not got, and a sink that took a byte
// does not prove that: it may lie in the buffer of a socket whose client will come back
// on another one and ask for it. That is inFlight bytes at most.
func (o *Output) old(s *stream) int64 {
	old := s.spool.size.Load() - o.c.Keep
	if o.c.Overflow == Block {
		old = min(old, s.delivered.Load()-inFlight)
	}
	return max(old, 0)
}

// relieve makes room on a file system that is full: s's old bytes go, then a finished
// spool, then what was delivered in all streams. It returns how many bytes that were.
func (o *Output) relieve(s *stream) (int64, error) {
	freed, err := s.spool.free(o.old(s), 1)
	if freed > 0 || err != nil {
		return freed, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.spool.path, &fs); err != nil {
		return 0, os.NewSyscallError("statfs", err)
	}
	return o.c.Budget.relieve(int64(fs.Blocks) * fs.Bsize)
}

// waitRoom returns how many bytes may be taken now, and waits while it is none.
func (o *Output) waitRoom(ctx context.Context, s *stream) (int, error) {
	gone, late := o.gone, (<-chan time.Time)(nil)
	for {
		room, short, err := o.room(s)
		if room > 0 || err != nil {
			return room, noRoom(err)
		}
		freed := short.watch()
		if short != nil { // freed before we watched
			if room, _, err := o.room(s); room > 0 || err != nil {
				return room, noRoom(err)
			}
		}
		select {
		case <-s.room:
		case <-freed:
		case <-gone:
			gone = nil
			t := time.NewTimer(time.Duration(o.deadline.Load()) - time.Since(o.start))
			defer t.Stop()
			late = t.C
		case <-late:
			return 0, os.ErrDeadlineExceeded
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// room returns how many bytes of s may be taken before the owner has more of it, and
// which budget, if one, is the reason that it is none.
func (o *Output) room(s *stream) (int, *Budget, error) {
	size := s.spool.size.Load()
	select {
	case <-o.gone: // what the pipe still holds is taken in any case
		if o.c.Overflow == Drop {
			return spliceMax, nil, nil
		}
		return int(min(o.c.Keep+drainMax-(size-s.delivered.Load()), spliceMax)), nil, nil
	default:
	}
	if o.c.Overflow == Drop {
		left, _, err := o.c.Budget.left(MinKeep)
		if left < MinKeep && err == nil {
			_, err = s.spool.free(size-MinKeep, 1)
		}
		return max(int(min(left, spliceMax)), MinKeep), nil, err
	}
	room := min(o.c.Keep-(size-s.delivered.Load()), spliceMax)
	if room <= 0 {
		return 0, nil, nil
	}
	left, short, err := o.c.Budget.left(room)
	if size == s.delivered.Load() {
		// Pages are freed whole: without this the rests of pages that many streams
		// hold could use the budget up with nothing left to deliver.
		left = max(left, leastRoom)
	}
	return int(min(room, left)), short, err
}

// blocked reports whether s is not read until the owner has more of it.
func (o *Output) blocked(s *stream) bool {
	if o.c.Overflow == Drop {
		return false
	}
	return s.spool.size.Load()-s.delivered.Load() >= o.c.Keep || o.c.Budget.spent()
}

// pause waits for d, or until ctx or the time after End is over.
func (o *Output) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-o.gone:
		if time.Since(o.start) > time.Duration(o.deadline.Load()) {
			return os.ErrDeadlineExceeded
		}
	default:
	}
	return nil
}

// pauseHung waits a little for a process to open the terminal again; once the process
// is gone nobody will.
func (o *Output) pauseHung(ctx context.Context) error {
	t := time.NewTimer(hungRetry)
	defer t.Stop()
	select {
	case <-o.gone:
		return io.EOF
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

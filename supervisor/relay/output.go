package relay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"pinfold/proto"
)

// Output takes what one process writes into spools (Serve) and hands it to the owner
// (Deliver). The two run beside each other; each may be stopped and begun again.
type Output struct {
	c       OutputConfig
	streams []*stream
	start   time.Time // of the monotonic times below

	subs       subscribers
	head       *proto.EventHead // used by the one that has set delivering
	delivering atomic.Bool
	seq        atomic.Uint64 // of the last event delivered to the owner
	dropped    atomic.Int64  // told to the owner in gap events
	untold     atomic.Int64  // in gap events that are made and not sent

	limitMu  sync.Mutex // held while bytes are taken near the limit
	taken    atomic.Int64
	limitHit chan struct{}
	hitOnce  sync.Once

	gone     chan struct{} // closed by End
	goneOnce sync.Once
	deadline atomic.Int64 // nanoseconds after start at which End gives up
	cut      atomic.Bool  // a stream was stopped before its end
	full     atomic.Bool  // the file system of the spool is full
}

// stream is one of the outputs on its way from pipe to owner.
type stream struct {
	kind      proto.Stream
	in        *os.File
	spool     *spool
	delivered atomic.Int64  // the owner's cursor
	high      atomic.Int64  // the farthest that the cursor ever was
	held      atomic.Int64  // up to here the owner gets every byte: it is in Deliver's memory
	last      atomic.Int64  // when the last byte came, nanoseconds after start
	ended     atomic.Bool   // no byte will come any more
	room      chan struct{} // capacity 1: delivered has moved
	budget    *Budget
}

// NewOutput opens or creates the spool files stdout and stderr in c.Dir. It fails if
// c makes no sense or a file cannot be used. The caller runs Serve and, at last, Close.
func NewOutput(c OutputConfig) (*Output, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Quiet == 0 {
		c.Quiet = DefaultQuiet
	}
	if c.Buffers == nil {
		c.Buffers = NewBuffers()
	}
	o := &Output{c: c, start: time.Now(), limitHit: make(chan struct{}), gone: make(chan struct{})}
	o.head = proto.NewEventHead(c.ProcID, c.ReqID, o.start)
	o.seq.Store(c.From.Seq)
	ins, names := []*os.File{c.Stdout}, []proto.Stream{proto.Stdout, proto.Stderr}
	if c.Stderr != nil {
		ins = append(ins, c.Stderr)
	}
	for i, in := range ins {
		s, err := newStream(c, names[i], in)
		if err != nil {
			for _, earlier := range o.streams {
				c.Budget.leave(earlier)
				err = errors.Join(err, earlier.spool.file.Close())
			}
			return nil, err
		}
		c.Budget.join(s)
		o.streams = append(o.streams, s)
		o.taken.Add(s.spool.size.Load())
	}
	return o, nil
}

func newStream(c OutputConfig, kind proto.Stream, in *os.File) (*stream, error) {
	sp, err := openSpool(c.Dir, string(kind))
	if err != nil {
		return nil, err
	}
	from := c.From.Stdout
	if kind == proto.Stderr {
		from = c.From.Stderr
	}
	if size := sp.size.Load(); from > size {
		return nil, errors.Join(
			fmt.Errorf("cannot continue %s at byte %d of %d: %w", kind, from, size, ErrRange), sp.file.Close())
	}
	for _, f := range []*os.File{in, c.PTY} {
		if f == nil {
			continue
		}
		if err := f.SetReadDeadline(time.Time{}); err != nil {
			return nil, errors.Join(fmt.Errorf("cannot relay %s: not a nonblocking pipe: %w", kind, err), sp.file.Close())
		}
	}
	s := &stream{kind: kind, in: in, spool: sp, budget: c.Budget, room: make(chan struct{}, 1)}
	s.delivered.Store(from)
	s.high.Store(from)
	return s, nil
}

func (c *OutputConfig) check() error {
	switch {
	case c.Stdout == nil:
		return errors.New("cannot relay output: no stdout")
	case (c.PTY == nil) != (c.Relay == nil):
		return errors.New("cannot relay a terminal: master and relay pipe come together")
	case c.PTY != nil && c.Stderr != nil:
		return errors.New("cannot relay a terminal: it has no stderr")
	case c.Keep < MinKeep:
		return fmt.Errorf("cannot keep %d bytes of output: at least %d are needed", c.Keep, MinKeep)
	case c.Limit < 0 || c.Quiet < 0 || c.From.Stdout < 0 || c.From.Stderr < 0:
		return errors.New("cannot relay output: a negative limit, time or offset")
	}
	return nil
}

// End says that the process and all that could write are gone, so that end of file
// is near. What a pipe still holds is taken even if the owner is Keep behind; after
// deadline the rest is given up and Counts.Drained is false. Only the first call counts.
func (o *Output) End(deadline time.Duration) {
	o.goneOnce.Do(func() {
		at := time.Now().Add(deadline)
		o.deadline.Store(int64(at.Sub(o.start)))
		close(o.gone)
		for _, s := range o.streams {
			o.setDeadline(s, at)
		}
	})
}

// Counts returns how many bytes came, went and were lost up to now.
func (o *Output) Counts() Counts {
	c := Counts{Dropped: o.dropped.Load() + o.untold.Load(), Drained: !o.cut.Load(), Full: o.full.Load()}
	for _, s := range o.streams {
		n := s.spool.size.Load()
		if s.kind == proto.Stdout {
			c.Stdout = n
		} else {
			c.Stderr = n
		}
		c.Drained = c.Drained && s.ended.Load()
		c.Dropped += max(0, s.spool.low.Load()-max(s.high.Load(), s.held.Load())) // lost, not told yet
	}
	return c
}

// Cursor returns where the owner stands: what a later Output of the same spool needs
// as From.
func (o *Output) Cursor() Cursor {
	c := Cursor{Seq: o.seq.Load(), Stdout: o.streams[0].delivered.Load()}
	if len(o.streams) > 1 {
		c.Stderr = o.streams[1].delivered.Load()
	}
	return c
}

// SetCursor moves the owner's cursor to these offsets; numbers of events go on. An offset
// whose bytes are freed already gives a gap event at the next Deliver. It fails with
// ErrRange past the end and with ErrDelivering while Deliver runs. Nothing calls it yet: it
// is for an owner that comes back (attach).
func (o *Output) SetCursor(stdout, stderr int64) error {
	if !o.delivering.CompareAndSwap(false, true) {
		return ErrDelivering
	}
	defer o.delivering.Store(false)
	to := []int64{stdout, stderr}
	for i, s := range o.streams {
		if size := s.spool.size.Load(); to[i] < 0 || to[i] > size {
			return fmt.Errorf("cannot move %s to byte %d of %d: %w", s.kind, to[i], size, ErrRange)
		}
	}
	for i, s := range o.streams {
		s.move(to[i])
	}
	return nil
}

// Retained returns the offset of the first byte of stream that can still be read, and
// the offset after the last.
func (o *Output) Retained(stream proto.Stream) (low, size int64) {
	for _, s := range o.streams {
		if s.kind == stream {
			return s.spool.low.Load(), s.spool.size.Load()
		}
	}
	return 0, 0
}

// SetFormat changes how the owner's events look, for an owner on a new connection. It
// fails with ErrDelivering while Deliver runs. Nothing calls it yet: it is for attach.
func (o *Output) SetFormat(f Format) error {
	if !o.delivering.CompareAndSwap(false, true) {
		return ErrDelivering
	}
	defer o.delivering.Store(false)
	o.c.Format = f
	return nil
}

// Head returns what the process's events have in common, for its final event. It is
// free to use once Deliver has returned.
func (o *Output) Head() *proto.EventHead { return o.head }

// LimitHit is closed when the process has written more than Limit bytes; exactly Limit
// of them were taken, and no more will be.
func (o *Output) LimitHit() <-chan struct{} { return o.limitHit }

// LastActivity returns when the last byte came, or when the Output was made.
func (o *Output) LastActivity() time.Time {
	var last int64
	for _, s := range o.streams {
		last = max(last, s.last.Load())
	}
	return o.start.Add(time.Duration(last))
}

// NextSeq returns the number that the next event gets: once Deliver has returned nil,
// that of the final event.
func (o *Output) NextSeq() uint64 { return o.seq.Load() + 1 }

// Close removes the spool files. Serve, Deliver and Follow must have returned.
func (o *Output) Close() error {
	var err error
	for _, s := range o.streams {
		o.c.Budget.leave(s)
		err = errors.Join(err, s.spool.remove())
	}
	return err
}

// Detach closes the spool files and leaves them in place, for the next daemon. Serve,
// Deliver and Follow must have returned. Nothing calls it yet: it is for processes that
// outlive the daemon (adoption).
func (o *Output) Detach() error {
	var err error
	for _, s := range o.streams {
		o.c.Budget.leave(s)
		err = errors.Join(err, s.spool.file.Close())
	}
	return err
}

// move sets the owner's cursor and wakes the pump, which may have waited for it.
func (s *stream) move(to int64) {
	s.delivered.Store(to)
	s.high.Store(max(s.high.Load(), to))
	s.budget.wake()
	select {
	case s.room <- struct{}{}:
	default:
	}
}

// Serve takes what comes from the pipes into the spools until both have ended, or ctx
// is done. It returns once its goroutines have; the error is ctx's, or says which
// stream could not be taken. The pipes stay open.
func (o *Output) Serve(ctx context.Context) error {
	defer o.subs.wake()
	select {
	case <-o.gone:
	default:
		for _, s := range o.streams {
			o.setDeadline(s, time.Time{})
		}
	}
	ran := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ran)
		for _, s := range o.streams {
			o.setDeadline(s, time.Unix(1, 0))
		}
	})
	defer func() {
		if !stop() {
			<-ran // else it could cut short a later Serve of the same pipes
		}
	}()
	errs := make([]error, len(o.streams))
	var wg sync.WaitGroup
	for i, s := range o.streams {
		wg.Go(func() { errs[i] = o.pump(ctx, s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

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
// (Deliver) and to other readers (Follow). All run beside each other; each may be
// stopped and begun again.
type Output struct {
	c       OutputConfig
	streams []*stream
	start   time.Time // of the monotonic times below

	subs       subscribers
	head       *proto.EventHead // used by the one that has set delivering
	delivering atomic.Bool
	seq        atomic.Uint64 // of the last event made for the owner

	marks   marksFile
	marking sync.Mutex // held while the marks are written
	mu      sync.Mutex // guards reserved, and high, lost, gap, held and untold of the streams
	// reserved is what the marks say: a daemon that is killed has given no number above.
	reserved uint64

	limitMu  sync.Mutex // held while bytes are taken near the limit
	taken    atomic.Int64
	limitHit chan struct{}
	hitOnce  sync.Once

	gone     chan struct{} // closed by End
	goneOnce sync.Once
	deadline atomic.Int64 // nanoseconds after start at which End gives up
	cut      atomic.Bool  // a stream was stopped before its end
	full     atomic.Bool  // the file system of the spool is full

	lifeMu   sync.Mutex // guards retained and left
	retained bool
	left     bool
	closed   chan struct{} // closed by Close and Detach: readers end
}

// stream is one of the outputs on its way from pipe to owner.
type stream struct {
	kind      proto.Stream
	in        *os.File // nil: its process is finished
	spool     *spool
	delivered atomic.Int64  // the owner's cursor
	last      atomic.Int64  // when the last byte came, nanoseconds after start
	ended     atomic.Bool   // no byte will come any more
	room      chan struct{} // capacity 1: delivered has moved
	budget    *Budget

	high   int64    // the farthest that the cursor ever was
	lost   int64    // bytes below high that were told as a gap
	gap    *gapMark // the last gap made, until it is known to have arrived
	untold int64    // dropped bytes of a gap that is made and not sent
	held   int64    // up to here the owner gets every byte: it is in Deliver's memory
}

// NewOutput opens or creates the spool files stdout and stderr, and marks, in c.Dir.
// What an earlier daemon has left there is gone on with, at the same byte. It fails if
// c makes no sense or a file cannot be used. The caller runs Serve, and, at last, Close
// or Detach.
func NewOutput(c OutputConfig) (*Output, error) {
	if c.Stdout == nil {
		return nil, errors.New("cannot relay output: no stdout")
	}
	ins := []*os.File{c.Stdout}
	if c.Stderr != nil {
		ins = append(ins, c.Stderr)
	}
	o, err := newOutput(c)
	if err != nil {
		return nil, err
	}
	m, err := o.marks.read()
	if errors.Is(err, os.ErrNotExist) { // no byte was taken and no number given before
		m = marks{Seq: 0, Streams: make([]streamMarks, len(ins))}
		err = o.marks.write(marks{Seq: seqStep, Streams: m.Streams}, os.O_CREATE)
		o.reserved = seqStep
	} else {
		o.reserved = m.Seq
	}
	if err == nil {
		err = o.open(ins, m, os.O_CREATE)
	}
	if err != nil {
		return nil, err
	}
	return o, nil
}

func newOutput(c OutputConfig) (*Output, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Quiet == 0 {
		c.Quiet = DefaultQuiet
	}
	if c.Buffers == nil {
		c.Buffers = NewBuffers()
	}
	o := &Output{c: c, start: time.Now(), marks: marksIn(c.Dir), limitHit: make(chan struct{}), gone: make(chan struct{}), closed: make(chan struct{})}
	o.head = proto.NewEventHead(c.ProcID, c.ReqID, o.start)
	return o, nil
}

// open makes the streams: one for each of ins, as m says they were left.
func (o *Output) open(ins []*os.File, m marks, flags int) error {
	if len(m.Streams) != len(ins) {
		return fmt.Errorf("cannot go on with output in %q: it has %d streams, the process %d", o.c.Dir, len(m.Streams), len(ins))
	}
	o.seq.Store(m.Seq)
	o.cut.Store(m.Cut)
	for i, in := range ins {
		s, err := o.newStream([]proto.Stream{proto.Stdout, proto.Stderr}[i], in, m.Streams[i], flags)
		if err != nil {
			for _, earlier := range o.streams {
				o.c.Budget.leave(earlier)
				err = errors.Join(err, earlier.spool.close())
			}
			return err
		}
		o.c.Budget.join(s)
		o.streams = append(o.streams, s)
		o.taken.Add(s.spool.size.Load())
	}
	return nil
}

func (o *Output) newStream(kind proto.Stream, in *os.File, m streamMarks, flags int) (*stream, error) {
	for _, f := range []*os.File{in, o.c.PTY} {
		if f == nil {
			continue
		}
		if err := f.SetReadDeadline(time.Time{}); err != nil {
			return nil, fmt.Errorf("cannot relay %s: not a nonblocking pipe: %w", kind, err)
		}
	}
	sp, err := openSpool(o.c.Dir, string(kind), flags)
	if err != nil {
		return nil, err
	}
	size, low := sp.size.Load(), sp.low.Load()
	if most := max(m.Delivered, m.High, m.Lost); most > size {
		return nil, errors.Join(fmt.Errorf("cannot continue %s at byte %d of %d: %w", kind, most, size, ErrRange), sp.close())
	}
	s := &stream{kind: kind, in: in, spool: sp, budget: o.c.Budget, room: make(chan struct{}, 1), high: m.High, lost: m.Lost, gap: m.Gap}
	s.delivered.Store(m.Delivered)
	if o.c.Overflow == Block && low < size { // not evicted: what is freed was delivered
		s.delivered.Store(max(m.Delivered, low))
		s.high = max(m.High, low)
	}
	if o.c.Overflow == Drop {
		sp.ahead = o.remember
	}
	return s, nil
}

func (c *OutputConfig) check() error {
	switch {
	case (c.PTY == nil) != (c.Relay == nil):
		return errors.New("cannot relay a terminal: master and relay pipe come together")
	case c.PTY != nil && c.Stderr != nil:
		return errors.New("cannot relay a terminal: it has no stderr")
	case c.Keep < MinKeep:
		return fmt.Errorf("cannot keep %d bytes of output: at least %d are needed", c.Keep, MinKeep)
	case c.Limit < 0 || c.Quiet < 0:
		return errors.New("cannot relay output: a negative limit or time")
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
	o.mu.Lock()
	defer o.mu.Unlock()
	c := Counts{Drained: !o.cut.Load(), Full: o.full.Load()}
	for _, s := range o.streams {
		n := s.spool.size.Load()
		if s.kind == proto.Stdout {
			c.Stdout = n
		} else {
			c.Stderr = n
		}
		c.Drained = c.Drained && s.ended.Load()
		c.Dropped += s.lost + s.untold + max(0, s.spool.low.Load()-max(s.high, s.held))
	}
	return c
}

// Cursor returns where the owner stands.
func (o *Output) Cursor() Cursor {
	c := Cursor{Seq: o.seq.Load(), Stdout: o.streams[0].delivered.Load()}
	if len(o.streams) > 1 {
		c.Stderr = o.streams[1].delivered.Load()
	}
	return c
}

// SetCursor moves the owner's cursor to the offsets that an owner who comes back
// names: it has all before them and wants all from there. Numbers of events go on. An
// offset whose bytes are freed already gives a gap event at the next Deliver. It fails
// with ErrRange past the end and with ErrDelivering while Deliver runs.
func (o *Output) SetCursor(stdout, stderr int64) error {
	if !o.delivering.CompareAndSwap(false, true) {
		return ErrDelivering
	}
	defer o.delivering.Store(false)
	to := []int64{stdout, stderr}
	if err := o.inRange(to); err != nil {
		return fmt.Errorf("cannot move cursor: %w", err)
	}
	for i, s := range o.streams {
		o.mu.Lock()
		if s.gap != nil && to[i] >= s.gap.To { // it had arrived
			s.lost += s.gap.Lost
		}
		s.gap = nil
		s.high = max(s.high, to[i])
		o.mu.Unlock()
		s.move(to[i])
	}
	return o.remember()
}

// inRange says which offset, if any, no byte of its stream has or will have next.
func (o *Output) inRange(at []int64) error {
	for i, s := range o.streams {
		if size := s.spool.size.Load(); at[i] < 0 || at[i] > size {
			return fmt.Errorf("byte %d of %s, which has %d: %w", at[i], s.kind, size, ErrRange)
		}
	}
	if len(o.streams) == 1 && at[1] != 0 {
		return fmt.Errorf("byte %d of stderr, which is no stream of a terminal: %w", at[1], ErrRange)
	}
	return nil
}

// SetFormat changes how the owner's events look, for an owner on a new connection. It
// fails with ErrDelivering while Deliver runs.
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

// TakeSeq returns the number of the final event, which no other event gets. Deliver
// must have returned.
func (o *Output) TakeSeq() (uint64, error) {
	seq := o.seq.Add(1)
	return seq, o.reserve(seq)
}

// move sets the owner's cursor and wakes the pump, which may have waited for it.
func (s *stream) move(to int64) {
	s.delivered.Store(to)
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
	errs := make([]error, len(o.streams), len(o.streams)+1)
	var wg sync.WaitGroup
	for i, s := range o.streams {
		wg.Go(func() { errs[i] = o.pump(ctx, s) })
	}
	wg.Wait()
	if o.ended() {
		errs = append(errs, o.remember())
	}
	return errors.Join(errs...)
}

// ended reports whether no byte will come any more.
func (o *Output) ended() bool {
	for _, s := range o.streams {
		if !s.ended.Load() {
			return false
		}
	}
	return true
}

package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pinfold/proto"
)

// Deliver sends the owner all it has not got yet, and what comes while it runs, and
// returns nil once both streams have ended and are sent. An error is the sink's, ctx's
// or ErrForgotten: the cursor then stands behind the last byte that Sink.Write took, and
// a later Deliver goes on there, with no gap and no repeat. ctx does not interrupt
// Sink.Write. After ReopenOutput, and after NewOutput with files of an earlier daemon,
// SetCursor comes first: only the owner knows what it got from a daemon that was killed.
func (o *Output) Deliver(ctx context.Context, to Sink) error {
	if !o.delivering.CompareAndSwap(false, true) {
		return ErrDelivering
	}
	defer o.delivering.Store(false)
	d := newDelivery(o, to, o.c.Format, o.Cursor())
	d.head, d.owner = o.head, true
	return d.run(ctx)
}

// Follow sends a reader that is not the owner everything from a cursor on, then what
// comes, until both streams have ended. Any number of readers follow at once. None slows
// the process or another reader: one that falls behind what is kept, or begins there,
// gets a gap event with the range. Its events are numbered from.Seq+1 on, and have ids
// of their own. It returns the cursor behind the last byte that the sink took, and
// ErrRange if an offset is past the end, ErrForgotten if the output is closed meanwhile.
func (o *Output) Follow(ctx context.Context, to Sink, f Format, from Cursor) (Cursor, error) {
	if err := o.inRange([]int64{from.Stdout, from.Stderr}); err != nil {
		return from, fmt.Errorf("cannot follow output: %w", err)
	}
	d := newDelivery(o, to, f, from)
	d.head = proto.NewEventHead(o.c.ProcID, o.c.ReqID, time.Now())
	err := d.run(ctx)
	return d.done, err
}

// delivery is one Deliver or Follow.
type delivery struct {
	o     *Output
	to    Sink
	f     Format
	head  *proto.EventHead
	owner bool
	feeds []*feed
	out   *events // nil while idle
	seq   uint64  // of the last event made
	done  Cursor  // what the sink has taken
}

// feed is one stream of a delivery.
type feed struct {
	s    *stream
	at   int64           // offset of the next byte to make an event of
	mem  *[inBuffer]byte // nil while idle
	r, w int             // mem[r:w] is read and starts at offset at
	seen int             // bytes of mem[r:w] without a newline
	end  bool            // everything is made
}

func newDelivery(o *Output, to Sink, f Format, from Cursor) *delivery {
	if f.Form == "" {
		f.Form = proto.DataString
	}
	d := &delivery{o: o, to: to, f: f, seq: from.Seq, done: from}
	for i, s := range o.streams {
		d.feeds = append(d.feeds, &feed{s: s, at: []int64{from.Stdout, from.Stderr}[i]})
	}
	return d
}

func (d *delivery) run(ctx context.Context) error {
	for i, f := range d.feeds {
		if err := f.s.spool.open(); err != nil {
			for _, earlier := range d.feeds[:i] {
				err = errors.Join(err, earlier.s.spool.close())
			}
			return err
		}
	}
	news := d.o.subs.add()
	err := d.loop(ctx, news)
	d.o.subs.remove(news)
	d.release()
	for _, f := range d.feeds {
		err = errors.Join(err, f.s.spool.close())
	}
	select {
	case <-d.o.closed:
		if err != nil {
			return fmt.Errorf("cannot deliver output: %w", ErrForgotten)
		}
	default:
	}
	return err
}

func (d *delivery) loop(ctx context.Context, news <-chan struct{}) error {
	for ctx.Err() == nil {
		moved, ended := false, true
		for _, f := range d.feeds {
			m, err := d.step(f)
			if err != nil {
				return err
			}
			moved, ended = moved || m, ended && f.end
		}
		if moved {
			continue
		}
		if err := d.flush(); err != nil || ended {
			return err
		}
		select {
		case <-d.o.closed:
			return ErrForgotten
		default:
		}
		d.wait(ctx, news)
	}
	if err := d.flush(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// step reads one chunk of f, makes its events and reports whether it got on.
func (d *delivery) step(f *feed) (bool, error) {
	if f.end {
		return false, nil
	}
	over := f.s.ended.Load() // before the size is looked at
	if size := f.s.spool.size.Load(); size == f.at+int64(f.w-f.r) && f.r == f.w {
		f.end = over
		return false, nil
	}
	n, err := d.fill(f)
	if err != nil {
		return false, err
	}
	h := patient
	if f.at+int64(f.w-f.r) == f.s.spool.size.Load() {
		switch {
		case over:
			h = last
		case d.due(f) <= 0:
			h = quiet
		}
	}
	made, err := d.cut(f, h)
	return n > 0 || made, err
}

// fill reads what the spool has next, up to MaxPiece bytes, and returns how many. A
// range that is freed already becomes a gap event.
func (d *delivery) fill(f *feed) (int, error) {
	if f.mem == nil {
		f.mem = d.o.c.Buffers.takeIn()
	}
	if len(f.mem)-f.w < MaxPiece {
		f.w = copy(f.mem[:], f.mem[f.r:f.w])
		f.r = 0
	}
	from := f.at + int64(f.w-f.r)
	n, low, err := f.s.spool.readAt(f.mem[f.w:][:MaxPiece], from)
	if err != nil {
		return 0, err
	}
	if low <= from {
		f.w += n
		d.hold(f)
		return n, nil
	}
	// What is read already was good when it was read; the gap comes after it.
	if _, err := d.cut(f, last); err != nil {
		return 0, err
	}
	if err := d.flush(); err != nil {
		return 0, err
	}
	return int(low - from), d.gap(f, f.s.spool.low.Load())
}

// gap tells that the bytes of f below to are gone. All before them is sent. The owner's
// gap is noted first: if we are killed now, the next daemon learns from where the owner
// comes back whether it has arrived.
func (d *delivery) gap(f *feed, to int64) error {
	from := f.at
	if d.owner {
		d.o.mu.Lock()
		f.s.untold = max(0, to-max(from, f.s.high))
		f.s.gap = &gapMark{From: from, To: to, Lost: f.s.untold}
		f.s.held = to
		d.o.mu.Unlock()
		if err := d.o.remember(); err != nil {
			return err
		}
	}
	d.prepare()
	d.seq++
	d.out.b = proto.AppendGapEvent(d.out.b, d.head, f.s.kind, d.seq, from, to, d.f.Form)
	f.at, f.r, f.w, f.seen = to, 0, 0, 0
	return d.flush()
}

// hold notes that the owner gets every byte that f has in memory, though the spool
// may lose it meanwhile.
func (d *delivery) hold(f *feed) {
	if d.owner {
		d.o.mu.Lock()
		f.s.held = f.at + int64(f.w-f.r)
		d.o.mu.Unlock()
	}
}

// cut makes events of all whole pieces in f's memory and reports whether it made any.
func (d *delivery) cut(f *feed, h hurry) (bool, error) {
	made := false
	for f.r < f.w {
		b := f.bytes()
		n := nextPiece(b, f.seen, d.f.Grouping, h)
		if n == 0 {
			f.seen = len(b)
			break
		}
		d.prepare()
		d.seq++
		d.out.b = proto.AppendReadEvent(d.out.b, d.head, f.s.kind, d.seq, f.at, b[:n], d.f.Form)
		f.at, f.r, f.seen, made = f.at+int64(n), f.r+n, 0, true
		if len(d.out.b) >= flushAt {
			if err := d.flush(); err != nil {
				return made, err
			}
		}
	}
	return made, nil
}

// prepare sees to a buffer for events.
func (d *delivery) prepare() {
	if d.out == nil {
		d.out = d.o.c.Buffers.takeOut()
	}
	if len(d.out.b) == 0 {
		d.head.Stamp(time.Now())
	}
}

// flush hands the events made to the sink, and then moves the cursor. Their numbers are
// used up even if the sink fails: it may have sent some of them.
func (d *delivery) flush() error {
	if d.out == nil || len(d.out.b) == 0 {
		return nil
	}
	if d.owner {
		d.o.seq.Store(d.seq)
		if err := d.o.reserve(d.seq); err != nil {
			return err
		}
	}
	if err := d.to.Write(d.out.b); err != nil {
		return fmt.Errorf("cannot deliver output: %w", err)
	}
	d.out.b = d.out.b[:0]
	d.done.Seq = d.seq
	for i, f := range d.feeds {
		*[]*int64{&d.done.Stdout, &d.done.Stderr}[i] = f.at
	}
	if d.owner {
		d.account()
	}
	return nil
}

// account notes what the owner has got.
func (d *delivery) account() {
	for _, f := range d.feeds {
		d.o.mu.Lock()
		f.s.lost += f.s.untold
		f.s.untold, f.s.gap = 0, nil
		f.s.high = max(f.s.high, f.at)
		d.o.mu.Unlock()
		f.s.move(f.at)
	}
}

// due returns how long f's unfinished line may still wait. It may not when the pump
// waits for its delivery.
func (d *delivery) due(f *feed) time.Duration {
	if d.owner && d.o.blocked(f.s) {
		return 0
	}
	return time.Duration(f.s.last.Load()) + d.o.c.Quiet - time.Since(d.o.start)
}

// wait returns when there is something new, when an unfinished line has waited long
// enough, or when ctx is done. Memory that holds no unfinished line is given back.
func (d *delivery) wait(ctx context.Context, news <-chan struct{}) {
	sooner := time.Duration(-1)
	for _, f := range d.feeds {
		// At most 3 bytes of a character are not worth memory: they are read again.
		if unfinished(f.bytes()) == f.w-f.r {
			d.forget(f)
			continue
		}
		if t := max(d.due(f), 0); sooner < 0 || t < sooner {
			sooner = t
		}
	}
	var timer <-chan time.Time
	if sooner >= 0 {
		t := time.NewTimer(sooner)
		defer t.Stop()
		timer = t.C
	}
	if d.out != nil {
		d.o.c.Buffers.giveOut(d.out)
		d.out = nil
	}
	select {
	case <-news:
	case <-timer:
	case <-d.o.closed:
	case <-ctx.Done():
	}
}

// bytes returns what is read and not yet made an event.
func (f *feed) bytes() []byte {
	if f.mem == nil {
		return nil
	}
	return f.mem[f.r:f.w]
}

// forget gives f's memory back; what it held is read from the spool again.
func (d *delivery) forget(f *feed) {
	if f.mem != nil {
		d.o.c.Buffers.giveIn(f.mem)
	}
	f.mem, f.r, f.w, f.seen = nil, 0, 0, 0
	d.hold(f)
}

// release gives all memory back.
func (d *delivery) release() {
	for i, f := range d.feeds {
		f.at = []int64{d.done.Stdout, d.done.Stderr}[i] // what the sink did not take is not held either
		if d.owner {
			d.o.mu.Lock()
			f.s.untold = 0
			d.o.mu.Unlock()
		}
		d.forget(f)
	}
	if d.out != nil {
		d.o.c.Buffers.giveOut(d.out)
		d.out = nil
	}
}

package relay

import (
	"context"
	"fmt"
	"time"

	"pinfold/proto"
)

// Deliver sends the owner all it has not got yet, and what comes while it runs, and
// returns nil once both streams have ended and are sent. An error is the sink's or
// ctx's: the cursor then stands behind the last byte that Sink.Write took, and a later
// Deliver goes on there, with no gap and no repeat. ctx does not interrupt Sink.Write.
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
// comes, until both streams have ended. It never slows the process: a reader that
// falls behind what is kept gets a gap event with the range. It returns the cursor
// behind the last byte that the sink took. Nothing calls it yet: it is for readers beside
// the owner (attach).
func (o *Output) Follow(ctx context.Context, to Sink, f Format, from Cursor) (Cursor, error) {
	at := []int64{from.Stdout, from.Stderr}
	for i, s := range o.streams {
		if size := s.spool.size.Load(); at[i] < 0 || at[i] > size {
			return from, fmt.Errorf("cannot follow %s from byte %d of %d: %w", s.kind, at[i], size, ErrRange)
		}
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
	lost  int64   // bytes in gap events that are made and not sent
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
	news := d.o.subs.add()
	defer d.o.subs.remove(news)
	defer d.release()
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
	d.prepare()
	d.seq++
	d.out.b = proto.AppendGapEvent(d.out.b, d.head, f.s.kind, d.seq, from, low, d.f.Form)
	d.lost += max(0, low-max(from, f.s.high.Load()))
	f.at, f.r, f.w, f.seen = low, 0, 0, 0
	if d.owner {
		d.o.untold.Store(d.lost)
	}
	d.hold(f)
	return int(low - from), nil
}

// hold notes that the owner gets every byte that f has in memory, though the spool
// may lose it meanwhile.
func (d *delivery) hold(f *feed) {
	if d.owner {
		f.s.held.Store(f.at + int64(f.w-f.r))
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

// flush hands the events made to the sink, and then moves the cursor.
func (d *delivery) flush() error {
	if d.out == nil || len(d.out.b) == 0 {
		return nil
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
		d.o.seq.Store(d.seq)
		d.o.dropped.Add(d.lost)
		d.o.untold.Store(0)
		for _, f := range d.feeds {
			f.s.move(f.at)
		}
	}
	d.lost = 0
	return nil
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
	if d.owner {
		d.o.untold.Store(0)
	}
	for i, f := range d.feeds {
		f.at = []int64{d.done.Stdout, d.done.Stderr}[i] // what the sink did not take is not held either
		d.forget(f)
	}
	if d.out != nil {
		d.o.c.Buffers.giveOut(d.out)
		d.out = nil
	}
}

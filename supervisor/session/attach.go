package session

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"pinfold/proto"
	"pinfold/supervisor/relay"
)

// delivery is the output of one process on its way to one client.
type delivery struct {
	stop  context.CancelFunc
	done  chan struct{} // closed when nothing more is sent
	moved atomic.Bool   // another takes its place, over the same connection
}

// end stops a delivery and waits for it, at most until ctx ends.
func (d *delivery) end(ctx context.Context) error {
	if d == nil {
		return nil
	}
	d.stop()
	select {
	case <-d.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// await waits for a delivery to which end was said. It ends at once, or with the deadline
// of its connection.
func (d *delivery) await() {
	if d != nil {
		<-d.done
	}
}

// over reports whether a delivery has ended.
func (d *delivery) over() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// finish stops the delivery to an owner, gives readers a little time to come to the end,
// and stops them too. One whose client does not take what is being written is left behind:
// it finds the spool closed.
func finish(ctx context.Context, feed *delivery, readers []*delivery) {
	ctx, cancel := context.WithTimeout(ctx, cutTime)
	defer cancel()
	for _, d := range readers {
		awaits(ctx, d.done)
		d.stop()
	}
	// It ends at once, or with the deadline of its connection.
	_ = feed.end(context.WithoutCancel(ctx))
}

// attach begins to send the output of a process from the offsets that the request
// names: to its owner in place of what is sent now, to an operator beside it. It runs
// on the goroutine of the process's session, s.
func (s *Session) attach(p *process, r *proto.AttachReq, c *Client, answer respond) {
	if p.start == nil {
		answer(proto.UnknownProc(r), nil)
		return
	}
	from := relay.Cursor{Stdout: int64(r.StdoutFrom), Stderr: int64(r.StderrFrom)}
	resp := &proto.AttachResp{
		Reply: proto.Done(r), ProcID: p.id, PID: p.start.pid, Status: p.verdict.Status(), Owner: c.s == s, PTY: p.req.PTY != nil,
		Stdout: p.retained(proto.Stdout), Stderr: p.retained(proto.Stderr),
	}
	for _, o := range []struct {
		name string
		from proto.Size
		have *proto.Range
	}{{"stdout", r.StdoutFrom, resp.Stdout}, {"stderr", r.StderrFrom, resp.Stderr}} {
		if o.from > o.have.To {
			text := fmt.Sprintf("cannot attach at byte %d of %s: it has %d", o.from, o.name, o.have.To)
			answer(proto.Answer(r, proto.Refused(r, proto.CodeOutOfRange, text, "attach at an offset that an event told, plus the length of its text")), nil)
			return
		}
	}
	// The answer parts what was sent before from what is sent from now on.
	begin := func(ctx context.Context, err error) bool {
		if err != nil {
			answer(proto.UnknownProc(r), nil) // it was forgotten in this moment, or nobody reads this
			return false
		}
		answered := make(chan struct{})
		answer(resp, func() { close(answered) })
		return awaits(ctx, answered)
	}
	if c.s == s {
		s.feed(p, c, &from, begin)
	} else if !s.follow(p, c, from, begin) {
		text := fmt.Sprintf("cannot attach: this connection reads %d processes already, or all of its caller's read %d", maxReaders, maxReadersOfOne)
		answer(proto.Answer(r, proto.Refused(r, proto.CodeBusy, text, "read fewer processes at a time")), nil)
	}
}

// awaitTold waits for the answer to the spawn, which comes before all output.
func (p *process) awaitTold(ctx context.Context, _ error) bool { return awaits(ctx, p.told) }

// retained is what can be read of a stream now.
func (p *process) retained(stream proto.Stream) *proto.Range {
	low, size := p.start.out.Retained(stream)
	return &proto.Range{From: proto.Size(low), To: proto.Size(size)}
}

// feed sends the owner, over c, what it has not got of a process, or all from a cursor
// on, then the final event. What was sent until now ends first: there is one stream,
// never two. Then begin says whether to go on; it is told what failed by then.
func (s *Session) feed(p *process, c *Client, from *relay.Cursor, begin func(context.Context, error) bool) {
	before, st := p.feed, p.start
	ctx, stop := c.during(p.ctx)
	d := &delivery{stop: stop, done: make(chan struct{})}
	p.feed = d
	s.wg.Go(func() {
		defer stop()
		sent := false
		defer func() { //nolint:contextcheck // what follows outlives this delivery
			before.await() // who comes next waits for us alone
			close(d.done)
			s.post(func() { s.fed(p, d, sent) })
		}()
		err := before.end(ctx)
		if err == nil {
			err = place(st.out, c.f, from)
		}
		if !begin(ctx, err) {
			return
		}
		if sent = s.send(ctx, p, st.out, c); sent && from == nil {
			s.tellLaps(p.id, p.laps)
		}
	})
}

// place sets where and how the owner's next delivery begins.
func place(out *relay.Output, f relay.Format, from *relay.Cursor) error {
	if err := out.SetFormat(f); err != nil || from == nil {
		return err
	}
	return out.SetCursor(from.Stdout, from.Stderr)
}

// awaits reports whether ch was closed before ctx ended.
func awaits(ctx context.Context, ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-ctx.Done():
		return false
	}
}

// send sends the owner everything, then the final event; false: it did not come to that.
func (s *Session) send(ctx context.Context, p *process, out *relay.Output, c *Client) bool {
	if err := out.Deliver(ctx, c); err != nil {
		if ctx.Err() == nil {
			s.log.Info("output is not delivered, the client is gone", attrProc(p.id), attrErr(err))
		}
		return false
	}
	if !awaits(ctx, p.concluded) {
		return false
	}
	p.laps.Lap("verdict")
	head := out.Head()
	head.Stamp(time.Now())
	seq, err := out.TakeSeq()
	if err != nil {
		s.log.Error("the number of the final event may be given again after a crash", attrProc(p.id), attrErr(err))
	}
	return c.Write(proto.AppendFinalEvent(nil, head, seq, p.final(out), c.f.Form)) == nil
}

// final is the verdict as the final event has it: once all was delivered, what was
// dropped is known for sure.
func (p *process) final(out *relay.Output) *proto.Verdict {
	v := *p.verdict
	v.Output = output(out.Counts())
	return &v
}

// fed is the end of a feed. A process that ended is kept from now on: its owner has
// every byte, or is not there to take them and may come back.
func (s *Session) fed(p *process, d *delivery, sent bool) {
	if p.feed != d {
		return // another goes on
	}
	p.feed = nil
	if sent {
		s.noteTold(p)
	}
	if p.verdict != nil {
		s.yield(p)
		s.step(p, Delivered)
		s.rest()
	}
}

// yield lets the output of a finished process make way for others, the oldest first,
// when its caller's quota is used up: once its owner was sent all of it, never before.
func (s *Session) yield(p *process) {
	if p.state != Kept || !p.delivered || p.start == nil {
		return
	}
	if err := p.start.out.Retain(); err != nil {
		s.log.Error("the output of a finished process stays in the way of others", attrProc(p.id), attrErr(err))
	}
}

// follow begins a reader of an operator, which never counts as the owner: it has event
// numbers of its own, and where it falls behind it is told the gap. false: the operator
// has too many.
func (s *Session) follow(p *process, c *Client, from relay.Cursor, begin func(context.Context, error) bool) bool {
	ctx, stop := c.during(s.base)
	d := &delivery{stop: stop, done: make(chan struct{})}
	out, head := p.start.out, proto.NewEventHead(p.id, p.req.ID, time.Now())
	ok := c.begin(p.id, d, func(before *delivery) {
		defer stop()
		if !begin(ctx, before.end(ctx)) {
			return
		}
		at, err := out.Follow(ctx, c, c.f, from)
		if !d.moved.Load() && !c.gone() && p.finished(ctx, err) {
			p.farewell(c, out, head, at)
		}
	})
	if !ok {
		stop()
		return false
	}
	p.readers = append(slices.DeleteFunc(p.readers, (*delivery).over), d)
	return true
}

// finished reports whether a reader that got so far is to be told the verdict: it has all,
// or was stopped since the output is forgotten. Of a process that lives there is nothing to
// tell: then it is its connection that failed.
func (p *process) finished(ctx context.Context, got error) bool {
	if got == nil {
		return awaits(ctx, p.concluded)
	}
	select {
	case <-p.concluded:
		return true
	default:
		return false
	}
}

// farewell ends what a reader gets with the final event. What it did not get, since the
// process is forgotten meanwhile, it is told as gaps.
func (p *process) farewell(c *Client, out *relay.Output, head *proto.EventHead, at relay.Cursor) {
	var b []byte
	head.Stamp(time.Now())
	counts := out.Counts()
	for _, g := range []struct {
		stream   proto.Stream
		from, to int64
	}{{proto.Stdout, at.Stdout, counts.Stdout}, {proto.Stderr, at.Stderr, counts.Stderr}} {
		if g.from < g.to {
			at.Seq++
			b = proto.AppendGapEvent(b, head, g.stream, at.Seq, g.from, g.to, c.f.Form)
		}
	}
	// A client that is gone is told nothing; Write has noted it.
	_ = c.Write(proto.AppendFinalEvent(b, head, at.Seq+1, p.final(out), c.f.Form))
}

// dropSpool gives back the memory of a process's output once nobody can ask for it
// any more, and nobody is sent it.
func (s *Session) dropSpool(p *process) {
	st := p.start
	if st == nil || st.spool == "" {
		return
	}
	dir, feed, readers := st.spool, p.feed, slices.DeleteFunc(p.readers, (*delivery).over)
	st.spool = ""
	drop := func() {
		finish(s.base, feed, readers)
		if err := st.out.Close(); err != nil {
			s.log.Warn("cannot close the spool", attrProc(p.id), attrErr(err))
		}
		if err := os.RemoveAll(dir); err != nil {
			s.log.Warn("cannot remove the spool", attrProc(p.id), attrErr(err))
		}
	}
	if feed == nil && len(readers) == 0 {
		drop()
		return
	}
	s.wg.Go(drop)
}

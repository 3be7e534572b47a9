package session

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"pinfold/proto"
	"pinfold/supervisor/relay"
)

// Limits of one connection.
const (
	maxReaders = 64          // processes of others that one operator's connection reads at once
	takenTime  = time.Second // for a client to be told that its session goes on elsewhere
)

// errGone is a write to a client whose connection is over.
var errGone = errors.New("the connection is over")

// Client is one connection of a session. A session has one at a time, the last that
// resumed it; between two it has one that is over.
type Client struct {
	s     *Session
	out   *outbox
	ids   *idRing
	calls calls
	waits counter
	f     relay.Format
	ctx   context.Context // of all that is sent over it
	stop  context.CancelFunc
	left  atomic.Bool // the client sends no more

	mu      sync.Mutex
	over    bool
	work    sync.WaitGroup       // readers
	readers map[string]*delivery // by process, of other sessions' processes
}

// newClient is a connection of s; its handshake's id cannot be used again on it.
func newClient(s *Session, o Options, l Link) *Client {
	c := &Client{s: s, out: newOutbox(l), ids: newIDRing(maxIDs), calls: newCalls(), readers: map[string]*delivery{}}
	c.f.Form = o.Form
	if o.Batch {
		c.f.Grouping = relay.Batch
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.ids.use(o.Handshake)
	c.ids.answered(o.Handshake)
	return c
}

// Session returns the session that the connection is of.
func (c *Client) Session() *Session { return c.s }

// Serve sends answers until the connection is over for the session: it has ended, goes
// on over another connection, or has nothing more to say to a client that left. The
// caller then closes the connection, and waits for Wait.
func (c *Client) Serve() { c.out.serve() }

// Wait returns when nothing writes to the connection any more.
func (c *Client) Wait() { c.work.Wait() }

// Handle takes one request of the client. It blocks while the client has maxOpen
// requests open, and reports false when the session takes no more over this connection.
func (c *Client) Handle(r proto.Request) bool {
	if !c.out.take() {
		return false
	}
	return c.s.post(func() { c.s.handle(c, r) })
}

// reply sends the answer of a call.
func (c *Client) reply(to *call, m proto.Message, sent func()) {
	c.calls.close(to)
	c.out.answer(m, func() {
		c.ids.answered(to.id)
		if sent != nil {
			sent()
		}
		if c.left.Load() {
			c.s.post(c.s.rest)
		}
	})
}

// Refuse answers a frame that could not be understood.
func (c *Client) Refuse(e *proto.ErrorMsg) bool {
	if !c.out.take() {
		return false
	}
	return c.s.post(func() { c.out.answer(e, nil) })
}

// Left tells the session that its client sends no more; it may still read.
func (c *Client) Left() { c.s.post(func() { c.s.clientLeft(c) }) }

// Gone tells the session that its client neither sends nor reads any more.
func (c *Client) Gone() {
	c.s.post(func() {
		c.end()
		c.s.clientLeft(c)
	})
}

// Write sends whole lines: it makes the client the sink of its deliveries.
func (c *Client) Write(lines []byte) error {
	if c.ctx.Err() != nil {
		return errGone
	}
	err := c.out.link.Write(lines)
	if err != nil {
		c.out.drop()
	}
	return err
}

// end makes Serve return once it has sent what is in its queue, and ends all deliveries.
// Little is left of the connection: what it asked for may go on for long and points to it.
func (c *Client) end() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.stop()
	c.out.end()
	c.ids.drop()
	c.calls.drop()
}

// replaced ends a connection whose session goes on over another one, and says so there.
func (c *Client) replaced() {
	c.stop()
	if err := c.out.link.SetWriteDeadline(time.Now().Add(takenTime)); err != nil {
		c.out.drop() // only a closed connection has no deadline
	}
	c.out.last(proto.NewError("", proto.CodeSessionTaken, "the session goes on over another connection"))
	c.end()
}

// gone reports, to any goroutine, whether nobody reads answers any more.
func (c *Client) gone() bool { return c.ctx.Err() != nil }

// during is ctx as long as the connection lasts.
func (c *Client) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// reading reports whether the client reads processes of other sessions.
func (c *Client) reading() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.readers) > 0
}

// busy reports whether an answer is still owed.
func (c *Client) busy() bool { return len(c.out.slots) > 0 }

// begin starts a reader of a process in place of an earlier one, which it gets to wait
// for, and reports false where the connection or its caller has too many, or it is over.
func (c *Client) begin(process string, d *delivery, read func(before *delivery)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.readers[process]
	if c.over || before == nil && len(c.readers) >= maxReaders || !c.s.host.Registry.takeReader(c.s.account()) {
		return false
	}
	if before != nil {
		before.moved.Store(true)
	}
	c.readers[process] = d
	c.work.Go(func() {
		defer c.done(process, d)
		read(before)
	})
	return true
}

// done takes a reader off.
func (c *Client) done(process string, d *delivery) {
	c.mu.Lock()
	if c.readers[process] == d {
		delete(c.readers, process)
	}
	c.mu.Unlock()
	c.s.host.Registry.dropReader(c.s.account())
	close(d.done)
	if c.left.Load() {
		c.s.post(c.s.rest)
	}
}

// Package client is a small client of the wire: it matches answers to requests
// and hands out the events of each process in order. It never starts a daemon,
// never retries and never decides anything.
//
// One goroutine reads the connection. It puts the events of a process into that
// process's queue; when a queue holds QueueLimit bytes the reader stops until
// they are taken with Process.Next, and so does everything else that would come
// over this connection, answers too, and in the end the process itself. So take
// events in another goroutine than the one that waits for answers, or call
// Process.Discard.
package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"pinfold/proto"
)

// QueueLimit is how many bytes of output one process's queue holds before the
// reader waits: enough that a short delay of the taker goes unnoticed.
const QueueLimit = 4 << 20

// eventCost is what an event in a queue counts beside its bytes.
const eventCost = 256

// ErrRepeated is returned by Process.Next where a spawn was answered from the record of
// its op_id, and the events of the process went to the spawn that started it.
var ErrRepeated = errors.New("the events of the process went to an earlier spawn")

// ErrClosed is returned for what was waiting when the connection ended.
var ErrClosed = errors.New("connection closed")

// ErrAttached is returned by Process.Next when a later Attach over the same connection
// takes the output.
var ErrAttached = errors.New("a later attach takes the output")

// Client is one connection. Its methods may be called from any goroutine.
type Client struct {
	conn   io.ReadWriteCloser
	write  chan struct{} // holds one token: the right to write
	done   chan struct{} // closed when the reader has ended
	closed chan struct{} // closed by Close
	once   sync.Once
	clean  sync.WaitGroup // kills of processes whose spawn was given up

	mu     sync.Mutex
	calls  map[string]*call
	procs  map[string]*Process
	notice *Error // the last error message that answered no request
	err    error  // why the connection ended
}

// call is one request that waits for its answer.
type call struct {
	answer  chan proto.Message // holds one
	givenUp bool               // its caller has gone
	from    *Offsets           // of an attach
	proc    *Process           // of a spawn or an attach that succeeded, once answered
	op      string             // op_id of a spawn
}

// Dial connects to a daemon's socket. A shake of hands is still to come.
func Dial(ctx context.Context, path string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", path, err)
	}
	return New(conn), nil //nolint:contextcheck // ctx is for the dialing alone; the client lives until Close
}

// New is a client over a connection, which it closes.
func New(conn io.ReadWriteCloser) *Client {
	c := &Client{
		conn:   conn,
		write:  make(chan struct{}, 1),
		done:   make(chan struct{}),
		closed: make(chan struct{}),
		calls:  make(map[string]*call),
		procs:  make(map[string]*Process),
	}
	c.write <- struct{}{}
	go c.read()
	return c
}

// Done is closed when the connection has ended; Err then says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is nil while the connection lasts.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close closes the connection and waits for the reader. The daemon ends the
// session's processes some time after; Shutdown does so at once.
func (c *Client) Close() error {
	var err error
	c.once.Do(func() {
		close(c.closed)
		if err = c.conn.Close(); errors.Is(err, net.ErrClosed) {
			err = nil // a cut message closed it before
		}
	})
	<-c.done
	c.clean.Wait()
	return err
}

// Do sends any request and waits for its answer: a proto.Response, or a
// *proto.Pong. An answer with ok false is returned together with an *Error, an
// error message as an *Error alone. When ctx ends first, what became of the
// request is not known. Spawn with Spawn, which knows the new process.
func (c *Client) Do(ctx context.Context, req proto.Request) (proto.Message, error) {
	return c.do(ctx, req, &call{answer: make(chan proto.Message, 1)})
}

func (c *Client) do(ctx context.Context, req proto.Request, waiting *call) (proto.Message, error) {
	base := req.Base()
	if base.ID == "" {
		base.ID = proto.NewID()
	}
	if err := c.enter(base.ID, waiting); err != nil {
		return nil, err
	}
	if err := c.send(ctx, req); err != nil {
		c.leave(base.ID) // it did not go out as a whole
		return nil, err
	}
	select {
	case m := <-waiting.answer:
		return settle(req, m)
	case <-ctx.Done():
		c.giveUp(waiting) //nolint:contextcheck // ctx is over; what ends the process has a time of its own
		return nil, fmt.Errorf("cannot wait for the answer to %s: %w", req.Kind(), ctx.Err())
	case <-c.done:
	}
	select { // the answer may have been the last thing that came
	case m := <-waiting.answer:
		return settle(req, m)
	default:
		return nil, fmt.Errorf("cannot get the answer to %s: %w", req.Kind(), c.Err())
	}
}

// settle turns a refusal into an error.
func settle(req proto.Request, m proto.Message) (proto.Message, error) {
	if m, ok := m.(*proto.ErrorMsg); ok {
		return nil, errorOf(req, m)
	}
	if r, ok := m.(proto.Response); ok && !r.Result().OK {
		return m, refusal(req, r)
	}
	return m, nil
}

func (c *Client) enter(id string, waiting *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if c.calls[id] != nil {
		return fmt.Errorf("cannot send a request with id %q: one with this id has no answer yet", id)
	}
	c.calls[id] = waiting
	return nil
}

func (c *Client) leave(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, id)
}

// giveUp says that nobody takes this call's answer. The call stays known, so
// that a process that it starts after all is ended, and one to which it attaches read.
func (c *Client) giveUp(waiting *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting.givenUp = true
	switch p := waiting.proc; {
	case p == nil:
	case waiting.from != nil:
		p.Discard()
	default:
		p.holders--
		c.endUnwanted(p, waiting.op)
	}
}

// takeBack tells the daemon, where that knows how to, that nobody waits for a request
// any more. What comes of it does not matter.
func (c *Client) takeBack(req proto.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.calls[req.Base().ID] == nil {
		return // answered
	}
	c.clean.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = c.Cancel(ctx, req.Base().ID) // refused: it was answered meanwhile, or cannot be taken back
	})
}

// patience is how long a request of the client's own may take.
const patience = 10 * time.Second

// endUnwanted, under mu, ends a process whose spawn was given up, unless another call
// has it, or waits for it by the same op_id. If that fails the connection is closed, and
// the daemon ends it with the session.
func (c *Client) endUnwanted(p *Process, op string) {
	if c.err != nil || p.holders > 0 {
		return
	}
	for _, other := range c.calls {
		if op != "" && other.op == op && !other.givenUp {
			return
		}
	}
	p.Discard()
	c.clean.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := p.Kill(ctx, proto.SigKill)
		var refused *Error // it is no more
		if err != nil && !errors.As(err, &refused) {
			c.fail(errors.Join(fmt.Errorf("cannot end process %s, whose spawn was given up: %w", p.ID, err), c.conn.Close()))
		}
	})
}

// send writes one message. A message that ctx cut in its middle ends the
// connection: nothing after it could be understood.
func (c *Client) send(ctx context.Context, m proto.Message) error {
	line, err := proto.Append(nil, m)
	if err != nil {
		return err
	}
	select {
	case <-c.write:
	case <-c.done:
		return c.Err()
	case <-ctx.Done():
		return fmt.Errorf("cannot send %s: %w", m.Kind(), ctx.Err())
	}
	defer func() { c.write <- struct{}{} }()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cannot send %s: %w", m.Kind(), err)
	}
	release := c.boundWrite(ctx)
	n, err := c.conn.Write(line)
	release()
	if err == nil {
		return nil
	}
	if n > 0 {
		err = errors.Join(err, c.conn.Close())
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return fmt.Errorf("cannot send %s: %w", m.Kind(), err)
}

// boundWrite makes a write end with ctx, where the connection can do that.
func (c *Client) boundWrite(ctx context.Context) (release func()) {
	conn, ok := c.conn.(interface{ SetWriteDeadline(t time.Time) error })
	if !ok {
		return func() {}
	}
	cut := func() {
		if err := conn.SetWriteDeadline(time.Unix(1, 0)); err != nil {
			c.fail(fmt.Errorf("cannot bound a write: %w", err))
		}
	}
	ran := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { cut(); close(ran) })
	return func() {
		if stop() {
			return
		}
		<-ran
		if err := conn.SetWriteDeadline(time.Time{}); err != nil {
			c.fail(fmt.Errorf("cannot unbound a write: %w", err))
		}
	}
}

// read is the one reader of the connection.
func (c *Client) read() {
	err := c.readLines(bufio.NewReaderSize(c.conn, 64<<10))
	c.fail(err)
	c.mu.Lock()
	procs := make([]*Process, 0, len(c.procs))
	for _, p := range c.procs {
		procs = append(procs, p)
	}
	err = c.err
	c.mu.Unlock()
	for _, p := range procs {
		p.end(err)
	}
	close(c.done)
}

// fail notes the first reason for the end of the connection.
func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	switch {
	case isClosed(c.closed), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		err = ErrClosed
	default:
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	if c.notice != nil {
		err = fmt.Errorf("%w: %w", err, c.notice)
	}
	c.err = err
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func (c *Client) readLines(r *bufio.Reader) error {
	var long []byte // of a line that does not fit into r
	for {
		part, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) || err == nil && len(long) > 0 {
			long = append(long, part...)
			part = long
		}
		switch {
		case len(part) > proto.MaxFrame+1:
			return fmt.Errorf("cannot read a line of more than %d bytes: %w", proto.MaxFrame, proto.ErrFrameTooLarge)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(part)+len(long) > 0:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
		if len(bytes.TrimSpace(part)) > 0 {
			if err := c.take(part); err != nil {
				return err
			}
		}
		long = long[:0]
	}
}

// take gives one line to whom it is for.
func (c *Client) take(line []byte) error {
	m, err := proto.DecodeAnswer(line)
	switch {
	case errors.Is(err, proto.ErrUnknownType):
		return nil // an extension that this client does not know
	case err != nil:
		return err
	}
	switch m := m.(type) {
	case *proto.ReadEvent:
		c.deliver(m)
	case *proto.Pong:
		c.answer(m.ReqID, m)
	case *proto.ErrorMsg:
		if !c.answer(m.ReqID, m) {
			c.mu.Lock()
			c.notice = errorOf(nil, m)
			c.mu.Unlock()
		}
	case proto.Response:
		c.answer(m.Result().ReqID, m)
	}
	return nil
}

// answer settles the call with this id; false: there is none.
func (c *Client) answer(id string, m proto.Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := c.calls[id]
	if waiting == nil {
		return false
	}
	delete(c.calls, id)
	switch m := m.(type) {
	case *proto.SpawnResp:
		if !m.OK {
			break
		}
		waiting.proc = c.processOf(m)
		if waiting.givenUp {
			c.endUnwanted(waiting.proc, waiting.op)
		} else {
			waiting.proc.holders++
		}
	case *proto.AttachResp:
		if m.OK {
			c.attached(waiting, m)
		}
	}
	waiting.answer <- m
	return true
}

// processOf, under mu, is the process of an answer. It is known before the next line is
// read: its events follow at once.
func (c *Client) processOf(r *proto.SpawnResp) *Process {
	p := c.procs[r.ProcID]
	switch {
	case p != nil:
		return p
	case r.Repeated:
		p = newProcess(c, r.ProcID, r.PID)
		p.Spawned = r
		p.holders, p.err = 1, ErrRepeated // whoever has its events keeps it
		return p
	}
	p = newProcess(c, r.ProcID, r.PID)
	p.Spawned = r
	c.procs[p.ID] = p
	return p
}

// attached, under mu, makes the process of an attach, in place of what took its events
// until now.
func (c *Client) attached(waiting *call, m *proto.AttachResp) {
	if before := c.procs[m.ProcID]; before != nil {
		before.end(ErrAttached)
	}
	waiting.proc = newProcess(c, m.ProcID, m.PID)
	waiting.proc.Attached, waiting.proc.at, waiting.proc.holders = m, *waiting.from, 1 // a repeated spawn does not end it
	if waiting.givenUp {
		waiting.proc.Discard()
	}
	c.procs[m.ProcID] = waiting.proc
}

func (c *Client) deliver(e *proto.ReadEvent) {
	c.mu.Lock()
	p := c.procs[e.ProcID]
	if p != nil && e.Final() {
		delete(c.procs, e.ProcID)
	}
	c.mu.Unlock()
	if p != nil {
		p.put(e)
	}
}

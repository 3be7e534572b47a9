package client

import (
	"context"
	"fmt"
	"io"
	"sync"
	"unicode/utf8"

	"pinfold/proto"
)

// Process is a process whose output comes over this connection: it was spawned here, or
// attached to.
type Process struct {
	ID       string
	PID      int
	Spawned  *proto.SpawnResp  // all that the answer said; nil: it was not spawned here
	Attached *proto.AttachResp // likewise

	client  *Client
	holders int // calls that have it; under the client's mu

	mu      sync.Mutex
	queue   []*proto.ReadEvent
	held    int // what the queue counts
	discard bool
	at      Offsets
	err     error         // after the last event: io.EOF, or why the connection ended
	came    chan struct{} // holds one: there is something to take
	room    chan struct{} // holds one: there is room again
}

// Offsets are places in the two streams of a process, in bytes.
type Offsets struct{ Stdout, Stderr int64 }

// Offsets returns how far Next and Copy have come: where an attach goes on with no gap
// and no repeat.
func (p *Process) Offsets() Offsets {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at
}

// passed, under mu, notes an event that was taken, or thrown away.
func (p *Process) passed(e *proto.ReadEvent) {
	next := e.Offset + int64(len(e.Data.Text))
	if e.Gap != nil {
		next = e.Gap.To
	}
	switch {
	case e.Final():
	case e.StreamType == proto.Stdout:
		p.at.Stdout = max(p.at.Stdout, next)
	case e.StreamType == proto.Stderr:
		p.at.Stderr = max(p.at.Stderr, next)
	}
}

func newProcess(c *Client, id string, pid int) *Process {
	return &Process{
		ID: id, PID: pid, client: c,
		came: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
}

// Next waits for the next event. After the final event it returns io.EOF, after
// the end of the connection an error that is ErrClosed. One goroutine at a time
// may call it.
func (p *Process) Next(ctx context.Context) (*proto.ReadEvent, error) {
	for {
		if e, err := p.pop(); e != nil || err != nil {
			return e, err
		}
		select {
		case <-p.came:
		case <-ctx.Done():
			return nil, fmt.Errorf("cannot wait for output of %s: %w", p.ID, ctx.Err())
		}
	}
}

func (p *Process) pop() (*proto.ReadEvent, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		return nil, p.err
	}
	e := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	p.held -= len(e.Data.Text) + eventCost
	p.passed(e)
	signal(p.room)
	return e, nil
}

// Copy writes the output to two writers until the final event, whose verdict it
// returns; a final event without one (another daemon's) gives nil.
func (p *Process) Copy(ctx context.Context, stdout, stderr io.Writer) (*proto.Verdict, error) {
	for {
		e, err := p.Next(ctx)
		switch {
		case err != nil:
			return nil, err
		case e.Final():
			return e.Verdict, nil
		}
		w := stdout
		if e.StreamType == proto.Stderr {
			w = stderr
		}
		if _, err := w.Write(e.Data.Text); err != nil {
			return nil, fmt.Errorf("cannot write output of %s: %w", p.ID, err)
		}
	}
}

// Discard drops all events but the final one, those in the queue too. The
// process's output is then read and thrown away.
func (p *Process) Discard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.discard = true
	kept := p.queue[:0]
	p.held = 0
	for _, e := range p.queue {
		if e.Final() {
			kept = append(kept, e)
			p.held += eventCost
		}
		p.passed(e)
	}
	p.queue = kept
	signal(p.room)
}

// put is the reader's: it waits while the queue is full.
func (p *Process) put(e *proto.ReadEvent) {
	for !p.tryPut(e) {
		select {
		case <-p.room:
		case <-p.client.closed:
			return
		}
	}
}

func (p *Process) tryPut(e *proto.ReadEvent) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.discard && !e.Final():
		p.passed(e)
		return true
	case p.held >= QueueLimit && !e.Final():
		return false
	}
	p.queue = append(p.queue, e)
	p.held += len(e.Data.Text) + eventCost
	if e.Final() {
		p.err = io.EOF
	}
	signal(p.came)
	return true
}

// end says that nothing comes any more.
func (p *Process) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	signal(p.came)
}

func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Write feeds standard input and returns when the kernel's pipe has taken every
// byte. More than one message's worth is sent in pieces, each waited for.
func (p *Process) Write(ctx context.Context, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), proto.MaxEventText)
		if err := p.client.Write(ctx, writeOf(p.ID, data[:n])); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// CloseStdin closes standard input after all that was written.
func (p *Process) CloseStdin(ctx context.Context) error {
	return p.client.Write(ctx, &proto.WriteReq{ProcID: p.ID, EOF: true})
}

func writeOf(id string, data []byte) *proto.WriteReq {
	if utf8.Valid(data) {
		return &proto.WriteReq{ProcID: id, Data: string(data)}
	}
	return proto.NewBinaryWrite(id, data)
}

// Kill signals the process; see Client.Kill.
func (p *Process) Kill(ctx context.Context, sig proto.Signal) (proto.Status, error) {
	return p.client.Kill(ctx, p.ID, sig)
}

// Resize sets the size of the process's terminal.
func (p *Process) Resize(ctx context.Context, size proto.PTY) error {
	return p.client.Resize(ctx, p.ID, size)
}

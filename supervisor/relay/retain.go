package relay

import (
	"errors"
	"fmt"
	"os"

	"pinfold/proto"
)

// ReopenOutput opens what is left of a finished process: its files alone, as Retain
// leaves them, or a daemon that was killed. It fails with os.ErrNotExist if there is
// nothing in c.Dir. Serve is not called; everything else works. Outputs are evicted in
// the order in which they were retained or reopened.
func ReopenOutput(c OutputConfig) (*Output, error) {
	c.Stdout, c.Stderr, c.PTY, c.Relay = nil, nil, nil, nil
	o, err := newOutput(c)
	if err != nil {
		return nil, err
	}
	m, err := o.marks.read()
	if err != nil {
		return nil, err
	}
	if n := len(m.Streams); n < 1 || n > 2 {
		return nil, fmt.Errorf("cannot reopen output in %q: it has %d streams", c.Dir, n)
	}
	o.reserved = m.Seq
	for _, s := range m.Streams {
		m.Cut = m.Cut || !s.Ended // and nobody can take the rest
	}
	if err := o.open(make([]*os.File, len(m.Streams)), m, 0); err != nil {
		return nil, err
	}
	for _, s := range o.streams {
		s.ended.Store(true)
	}
	return o, o.Retain()
}

// EmptyOutput is ReopenOutput for a finished process of which nothing was taken: a pen
// that ended while there was no daemon, right after its start.
func EmptyOutput(c OutputConfig) (*Output, error) {
	m := marks{Cut: true, Streams: []streamMarks{{}, {}}}
	if err := marksIn(c.Dir).write(m, os.O_CREATE); err != nil {
		return nil, err
	}
	for _, name := range []proto.Stream{proto.Stdout, proto.Stderr} {
		sp, err := openSpool(c.Dir, string(name), os.O_CREATE)
		if err == nil {
			err = sp.close()
		}
		if err != nil {
			return nil, err
		}
	}
	return ReopenOutput(c)
}

// Retain says that Serve has returned for good and that the owner has everything or
// will not come. The output can be read as before, by the owner too. It holds no open
// file while nobody reads, and is evicted when its Budget needs the room: then every
// byte is gone, and a reader gets a gap.
func (o *Output) Retain() error {
	o.lifeMu.Lock()
	defer o.lifeMu.Unlock()
	if o.retained || o.left {
		return nil
	}
	if !o.ended() {
		return errors.New("cannot retain output: it has not ended")
	}
	o.retained = true
	err := o.settle()
	for _, s := range o.streams {
		s.spool.freeing.Lock()
		s.spool.ahead = o.remember
		s.spool.freeing.Unlock()
		err = errors.Join(err, s.spool.close())
	}
	o.c.Budget.retain(o)
	return err
}

// evict frees all bytes of a retained output and returns how many that were.
func (o *Output) evict() (int64, error) {
	var freed int64
	var err error
	for _, s := range o.streams {
		n, eerr := s.spool.evict()
		freed, err = freed+n, errors.Join(err, eerr)
	}
	o.subs.wake()
	return freed, err
}

// Detach leaves the files to a next daemon, which goes on with the next number. Serve
// and Deliver must have returned; Follow ends with ErrForgotten.
func (o *Output) Detach() error { return o.leave(o.settle) }

// Close removes the files. Serve must have returned; Deliver and Follow end with
// ErrForgotten. A second call does nothing.
func (o *Output) Close() error {
	return o.leave(func() error {
		err := os.Remove(o.marks.path)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		for _, s := range o.streams {
			err = errors.Join(err, s.spool.remove())
		}
		return err
	})
}

// leave ends all use of the files, having done last.
func (o *Output) leave(last func() error) error {
	o.lifeMu.Lock()
	defer o.lifeMu.Unlock()
	if o.left {
		return nil
	}
	o.left = true
	close(o.closed)
	for _, s := range o.streams {
		s.spool.leave()
	}
	o.c.Budget.forget(o) // waits for who frees; one who chose o before finds it left
	err := last()
	for _, s := range o.streams {
		if !o.retained {
			err = errors.Join(err, s.spool.close())
		}
	}
	return err
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

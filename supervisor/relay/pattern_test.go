package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"pinfold/proto"
)

// pattern is what streams carry in tests where every byte is checked by its offset: a
// byte is a function of stream and offset, never zero, and a line is 1 to 64 bytes.
func pattern(kind proto.Stream, at int64) byte {
	x := uint64(at)*0x9e3779b97f4a7c15 + uint64(len(kind))<<7 + uint64(kind[3])
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 32
	if x&31 == 0 || at&63 == 63 {
		return '\n'
	}
	return byte('!' + x>>8%90)
}

func fill(kind proto.Stream, b []byte, at int64) []byte {
	for i := range b {
		b[i] = pattern(kind, at+int64(i))
	}
	return b
}

// writePattern writes the bytes from up to to, in chunks.
func writePattern(w *os.File, kind proto.Stream, from, to int64, chunk func() int) error {
	buf := make([]byte, 128<<10)
	for from < to {
		if err := w.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, err := w.Write(fill(kind, buf[:min(int64(chunk()), to-from, int64(len(buf)))], from))
		if err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

// checker is a client that checks each byte by its offset, that nothing is repeated or
// missing but in a gap event, and that numbers only grow. It can be read while events
// come.
type checker struct {
	mu    sync.Mutex
	at    map[proto.Stream]int64
	gaps  map[proto.Stream][]proto.Gap
	seq   uint64
	bytes int64
	err   error
	moved chan struct{} // capacity 1
}

func newChecker(from Cursor) *checker {
	return &checker{
		at: map[proto.Stream]int64{proto.Stdout: from.Stdout, proto.Stderr: from.Stderr}, gaps: map[proto.Stream][]proto.Gap{},
		seq: from.Seq, moved: make(chan struct{}, 1),
	}
}

func (c *checker) Write(frames []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for line := range bytes.Lines(frames) {
		c.take(line)
	}
	select {
	case c.moved <- struct{}{}:
	default:
	}
	return c.err
}

// take checks one event.
func (c *checker) take(line []byte) {
	e, err := parseEvent(line)
	if err != nil {
		c.err = errors.Join(c.err, err)
		return
	}
	kind := proto.Stream(e.Stream)
	at := c.at[kind]
	switch {
	case e.Seq <= c.seq:
		err = fmt.Errorf("number %d after %d", e.Seq, c.seq)
	case e.Offset != at:
		err = fmt.Errorf("%s goes on at %d after %d", kind, e.Offset, at)
	case e.Gap != nil && (e.Gap.From != at || e.Gap.To <= at || len(e.Text) > 0):
		err = fmt.Errorf("gap %+v of %s at %d", *e.Gap, kind, at)
	case e.Gap == nil && len(e.Text) == 0:
		err = errors.New("an event of nothing")
	}
	for i, b := range e.Text {
		if want := pattern(kind, at+int64(i)); b != want && err == nil {
			err = fmt.Errorf("byte %d of %s is %q; want %q", at+int64(i), kind, b, want)
		}
	}
	c.err = errors.Join(c.err, err)
	c.seq = e.Seq
	c.bytes += int64(len(e.Text))
	c.at[kind] = at + int64(len(e.Text))
	if e.Gap != nil {
		c.at[kind] = e.Gap.To
		c.gaps[kind] = append(c.gaps[kind], *e.Gap)
	}
}

// cursor is where the client stands.
func (c *checker) cursor() Cursor {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Cursor{Stdout: c.at[proto.Stdout], Stderr: c.at[proto.Stderr], Seq: c.seq}
}

// missing is how many bytes were told as gaps.
func (c *checker) missing() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var n int64
	for _, gaps := range c.gaps {
		for _, g := range gaps {
			n += g.To - g.From
		}
	}
	return n
}

// want fails the test unless the client stands there and has seen nothing wrong.
func (c *checker) want(tb testing.TB, stdout, stderr int64) {
	tb.Helper()
	at := c.cursor()
	if c.err != nil {
		tb.Fatalf("events = %v; want each byte once, in its place", c.err)
	}
	if at.Stdout != stdout || at.Stderr != stderr {
		tb.Errorf("client has come to %d and %d; want %d and %d", at.Stdout, at.Stderr, stdout, stderr)
	}
}

// readEvents gives a client what comes out of r, until its end; a torn last line is
// none.
func (c *checker) readEvents(r io.Reader) error {
	var rest []byte
	buf := make([]byte, 256<<10)
	for {
		n, err := r.Read(buf)
		rest = append(rest, buf[:n]...)
		if i := bytes.LastIndexByte(rest, '\n'); i >= 0 {
			if cerr := c.Write(rest[:i+1]); cerr != nil {
				return cerr
			}
			rest = append(rest[:0], rest[i+1:]...)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

package socket

import (
	"bytes"
	"errors"
	"io"
	"os"

	"pinfold/proto"
)

const (
	smallBuffer = 4 << 10 // what a connection holds while its frames are small
	// frameBuffer is the most that it holds: a frame and its line end.
	frameBuffer = proto.MaxFrame + 2
)

// frames cuts a stream of bytes into lines. It never holds more than frameBuffer.
type frames struct {
	read func([]byte) (int, error)
	buf  []byte
	r, w int // buf[r:w] is read and not yet handed out
	seen int // bytes of buf[r:w] without a newline
	skip bool
	err  error // of read, after which there is nothing more
}

func newFrames(read func([]byte) (int, error)) *frames { return &frames{read: read} }

// next is Conn.ReadFrame.
func (f *frames) next() ([]byte, error) {
	for {
		line, err := f.line()
		if err != nil {
			return nil, err
		}
		if line = bytes.TrimSuffix(line, []byte{'\r'}); len(line) > proto.MaxFrame {
			return nil, ErrTooLong
		}
		if len(line) > 0 {
			return line, nil
		}
	}
}

// line returns the next line without its newline.
func (f *frames) line() ([]byte, error) {
	for {
		if i := bytes.IndexByte(f.buf[f.r+f.seen:f.w], '\n'); i >= 0 {
			line := f.buf[f.r : f.r+f.seen+i]
			f.r, f.seen = f.r+f.seen+i+1, 0
			if !f.skip {
				return line, nil
			}
			f.skip = false
			continue
		}
		f.seen = f.w - f.r
		if f.skip {
			f.r, f.w, f.seen = 0, 0, 0
		}
		if f.seen == frameBuffer {
			f.r, f.w, f.seen, f.skip = 0, 0, 0, true
			return nil, ErrTooLong
		}
		if f.err == nil {
			if err := f.more(); errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, err // what is read stays for a later call
			} else if err != nil {
				f.err = err
			}
			continue
		}
		if errors.Is(f.err, io.EOF) && (f.seen > 0 || f.skip) {
			f.r, f.w, f.seen, f.skip = 0, 0, 0, false
			return nil, io.ErrUnexpectedEOF
		}
		return nil, f.err
	}
}

// more reads once behind what is there. An empty buffer that a large frame has grown
// is given up first.
func (f *frames) more() error {
	if f.r > 0 { // else a frame that dribbles in would be moved onto itself at each read
		f.w = copy(f.buf, f.buf[f.r:f.w])
		f.r = 0
	}
	switch {
	case f.w == 0 && len(f.buf) != smallBuffer && !f.skip:
		f.buf = make([]byte, smallBuffer)
	case f.w == len(f.buf):
		grown := make([]byte, min(2*len(f.buf), frameBuffer))
		copy(grown, f.buf[:f.w])
		f.buf = grown
	}
	n, err := f.read(f.buf[f.w:])
	f.w += n
	return err
}

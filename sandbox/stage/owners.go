package stage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// owners asks the stage outside of the user namespace who owns a file: inside,
// every uid but its own looks like nobody's. nil asks the kernel alone, whose
// answer is whole outside of a user namespace.
type owners struct {
	mu   sync.Mutex
	conn *os.File // pollable; one question at a time
}

// uid returns who owns the file that f is open on; st is what fstat said of it.
func (o *owners) uid(f *os.File, st unix.Stat_t) (uint32, error) {
	if o == nil || st.Uid != overflowID {
		return st.Uid, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := linux.Send(o.conn, []byte{askOwner}, f); err != nil {
		return 0, fmt.Errorf("cannot ask who owns %s: %w", f.Name(), err)
	}
	buf := make([]byte, 4)
	m, err := linux.Receive(o.conn, buf)
	if err != nil {
		return 0, fmt.Errorf("cannot ask who owns %s: %w", f.Name(), err)
	}
	linux.CloseNumbers(m.FDs...)
	if len(m.Data) != len(buf) {
		return 0, fmt.Errorf("cannot ask who owns %s: %d bytes in answer", f.Name(), len(m.Data))
	}
	return binary.NativeEndian.Uint32(m.Data), nil
}

// Questions to the stage outside: the first byte of each.
const (
	askOwner = 1 // with a file: four bytes, its owner's uid
	askPen   = 2 // with a sandbox.Mark: a stagewire.Message with what finder found
	askHeir  = 3 // with what OpSucceed has: a stagewire.Message, the answer to that
)

// serveOutside answers the stage in the user namespace until its end closes. A file that
// cannot be looked at gets no answer of four bytes.
func serveOutside(ctx context.Context, conn *os.File, c *Config) {
	p, err := linux.Pollable(conn)
	if err != nil {
		return // it is closed: the stage inside sees the end
	}
	defer linux.CloseAll(p)
	buf := make([]byte, stagewire.MaxInline)
	var h heirs
	for {
		m, err := linux.Receive(p, buf)
		if err != nil {
			return
		}
		files := linux.Files(m.FDs)
		switch {
		case len(m.Data) > 0 && m.Data[0] == askPen:
			err = answerPen(ctx, p, c, m.Data[1:])
		case len(m.Data) > 0 && m.Data[0] == askHeir:
			err = h.answer(p, c.Successor, linux.Numbers(files))
		default:
			answer := []byte{0}
			if uid, err := ownerOf(files); err == nil {
				answer = binary.NativeEndian.AppendUint32(nil, uid)
			}
			err = linux.Send(p, answer)
		}
		linux.CloseAll(files...)
		if err != nil {
			return
		}
	}
}

func ownerOf(files []*os.File) (uint32, error) {
	if len(files) != 1 {
		return 0, errors.New("not one file")
	}
	st, err := linux.Stat(files[0])
	return st.Uid, err
}

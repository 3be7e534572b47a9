package stage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/linux"
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
	if err := linux.Send(o.conn, []byte{1}, f); err != nil {
		return 0, fmt.Errorf("cannot ask who owns %s: %w", f.Name(), err)
	}
	buf := make([]byte, 4)
	m, err := linux.Receive(o.conn, buf)
	if err != nil {
		return 0, fmt.Errorf("cannot ask who owns %s: %w", f.Name(), err)
	}
	linux.CloseAll(m.Files...)
	if len(m.Data) != len(buf) {
		return 0, fmt.Errorf("cannot ask who owns %s: %d bytes in answer", f.Name(), len(m.Data))
	}
	return binary.NativeEndian.Uint32(m.Data), nil
}

// serveOwners answers owners until its end closes. A file that cannot be looked at
// gets no answer of four bytes.
func serveOwners(conn *os.File) {
	p, err := linux.Pollable(conn)
	if err != nil {
		return // it is closed: the stage inside sees the end
	}
	defer linux.CloseAll(p)
	buf := make([]byte, 1)
	for {
		m, err := linux.Receive(p, buf)
		if err != nil {
			return
		}
		answer := []byte{0}
		if uid, err := ownerOf(m.Files); err == nil {
			answer = binary.NativeEndian.AppendUint32(nil, uid)
		}
		linux.CloseAll(m.Files...)
		if linux.Send(p, answer) != nil {
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

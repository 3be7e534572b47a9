package relay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// spool is one stream's file. One goroutine appends (the pump); any number read, and
// any may free. size and low only grow.
type spool struct {
	file *os.File
	path string
	size atomic.Int64 // bytes appended
	low  atomic.Int64 // bytes below it are freed or being freed; a multiple of the page

	freeing sync.Mutex
	onFree  func(n int64) // told of bytes that were freed; nil: nobody is
}

// openSpool creates the file name in dir, or opens the one that an earlier daemon
// has left there: its size is the cursor, its first byte that is no hole the
// low-water mark.
func openSpool(dir, name string) (*spool, error) {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open spool %q: %w", path, err)
	}
	s := &spool{file: f, path: path}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot use spool %q: %w", path, err), f.Close())
	}
	s.size.Store(info.Size())
	low, err := firstData(f, info.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot use spool %q: %w", path, err), f.Close())
	}
	s.low.Store(low)
	return s, nil
}

// firstData returns the offset of the first byte that is not in a hole; SEEK_DATA
// works on tmpfs since Linux 3.8, lseek(2).
func firstData(f *os.File, size int64) (int64, error) {
	if size == 0 {
		return 0, nil
	}
	off, err := f.Seek(0, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // holes only
		return size, nil
	}
	return off, err
}

// readAt fills p from offset off and returns how many bytes it got. Bytes below the
// returned mark low may be zeros of a hole: it is loaded after the read, and the
// pump raises it before it frees.
func (s *spool) readAt(p []byte, off int64) (n int, low int64, err error) {
	if room := s.size.Load() - off; int64(len(p)) > room {
		p = p[:max(room, 0)]
	}
	if len(p) == 0 {
		return 0, s.low.Load(), nil
	}
	n, err = s.file.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		return n, s.low.Load(), fmt.Errorf("cannot read spool %q: it is shorter than %d bytes", s.path, off+int64(len(p)))
	}
	return n, s.low.Load(), err
}

// free gives the pages below offset back to the file system, in steps of at least
// step bytes. The size stays. fallocate(2): FALLOC_FL_PUNCH_HOLE, tmpfs since Linux 3.5.
func (s *spool) free(offset, step int64) error {
	page := int64(os.Getpagesize())
	offset -= offset % page
	s.freeing.Lock()
	defer s.freeing.Unlock()
	low := s.low.Load()
	if offset-low < step {
		return nil
	}
	s.low.Store(offset) // before the hole: see readAt
	err := control(s.file, func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, low, offset-low)
	})
	if err != nil {
		return fmt.Errorf("cannot free spool %q: fallocate: %w", s.path, err)
	}
	if s.onFree != nil {
		s.onFree(offset - low)
	}
	return nil
}

// settle ends the telling of freed bytes and returns how many are still held.
func (s *spool) settle() int64 {
	s.freeing.Lock()
	defer s.freeing.Unlock()
	s.onFree = nil
	return s.size.Load() - s.low.Load()
}

// remove deletes and closes the file.
func (s *spool) remove() error {
	err := os.Remove(s.path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, s.file.Close())
}

// control runs f on the descriptor of file without changing its blocking mode, and
// again as long as a signal interrupts it.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		for {
			if inner = f(int(fd)); !errors.Is(inner, unix.EINTR) {
				return
			}
		}
	})
	return errors.Join(err, inner)
}

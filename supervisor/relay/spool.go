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
// any may free. size and low only grow. Who uses file is between open and close.
type spool struct {
	path string
	size atomic.Int64 // bytes appended
	low  atomic.Int64 // bytes below it are freed or being freed; a multiple of the page, or size

	mu    sync.Mutex
	users int
	file  *os.File // nil while there are no users
	gone  bool     // the file is not ours any more: nobody opens it again

	freeing sync.Mutex
	ahead   func() error  // called before bytes are freed; nil: nothing is to be done
	onFree  func(n int64) // told of bytes that were freed; nil: nobody is
}

// openSpool creates the file name in dir, or opens the one that an earlier daemon
// has left there: its size is the cursor, its first byte that is no hole the
// low-water mark. The caller is its first user.
func openSpool(dir, name string, flags int) (*spool, error) {
	s := &spool{path: filepath.Join(dir, name)}
	if err := s.openFile(flags); err != nil {
		return nil, err
	}
	s.users = 1
	info, err := s.file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot use spool %q: %w", s.path, err), s.close())
	}
	s.size.Store(info.Size())
	low, err := firstData(s.file, info.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot use spool %q: %w", s.path, err), s.close())
	}
	s.low.Store(low)
	return s, nil
}

// openRegular opens a file that is no pipe or terminal: os.OpenFile first tries, with five
// calls more, whether the runtime could wait for it.
func openRegular(path string, flags int) (*os.File, error) {
	for {
		n, err := unix.Open(path, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return os.NewFile(uintptr(n), path), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

func (s *spool) openFile(flags int) error {
	f, err := openRegular(s.path, unix.O_RDWR|flags)
	if err != nil {
		return fmt.Errorf("cannot open spool %q: %w", s.path, err)
	}
	s.file = f
	return nil
}

// open adds a user; it fails with ErrForgotten once the spool is left.
func (s *spool) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return ErrForgotten
	}
	if s.users == 0 {
		if err := s.openFile(0); err != nil {
			return err
		}
	}
	s.users++
	return nil
}

// close takes a user off; the last one closes the file.
func (s *spool) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users > 0 {
		return nil
	}
	f := s.file
	s.file = nil
	return f.Close()
}

// leave lets nobody open the spool any more.
func (s *spool) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
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
// returned mark low may be zeros of a hole: it is loaded after the read, and who
// frees raises it before.
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
// step bytes, and returns how many bytes that were. The size stays.
func (s *spool) free(offset, step int64) (int64, error) {
	offset -= offset % int64(os.Getpagesize())
	s.freeing.Lock()
	defer s.freeing.Unlock()
	if offset-s.low.Load() < step {
		return 0, nil
	}
	return s.punch(offset)
}

// evict gives all bytes back; nothing is appended any more.
func (s *spool) evict() (int64, error) {
	s.freeing.Lock()
	defer s.freeing.Unlock()
	if s.size.Load() == s.low.Load() {
		return 0, nil
	}
	return s.punch(s.size.Load())
}

// punch frees what lies below offset. A page is freed only as a whole, so the last
// one of the file is punched beyond its end. fallocate(2): FALLOC_FL_PUNCH_HOLE,
// tmpfs since Linux 3.5.
func (s *spool) punch(offset int64) (int64, error) {
	err := s.open()
	if errors.Is(err, ErrForgotten) {
		return 0, nil
	}
	if err == nil && s.ahead != nil {
		if err = s.ahead(); err != nil {
			err = errors.Join(err, s.close())
		}
	}
	if err != nil {
		return 0, fmt.Errorf("cannot free spool %q: %w", s.path, err)
	}
	low, page := s.low.Load(), int64(os.Getpagesize())
	end := (offset + page - 1) / page * page
	s.low.Store(offset) // before the hole: see readAt
	err = control(s.file, func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, low, end-low)
	})
	if err = errors.Join(err, s.close()); err != nil {
		return 0, fmt.Errorf("cannot free spool %q: fallocate: %w", s.path, err)
	}
	if s.onFree != nil {
		s.onFree(offset - low)
	}
	return offset - low, nil
}

// settle ends the telling of freed bytes and returns how many are still held.
func (s *spool) settle() int64 {
	s.freeing.Lock()
	defer s.freeing.Unlock()
	s.onFree = nil
	return s.size.Load() - s.low.Load()
}

// remove deletes the file; its memory is free once its last user has closed it.
func (s *spool) remove() error {
	err := os.Remove(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
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

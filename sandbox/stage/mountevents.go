package stage

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/linux"
)

// mountEvents counts the changes of a mount table: the kernel tells of them by poll(2) on
// mountinfo, proc(5). What was read of it is read again only after one.
type mountEvents struct {
	file int // a bare number: package os would have the runtime poll it, which takes the events

	mu    sync.Mutex
	count uint64
}

// watchMounts begins with firstCount.
func watchMounts(path string) (*mountEvents, error) {
	n, err := linux.OpenNumber(nil, path, unix.O_RDONLY, linux.Plain)
	if err != nil {
		return nil, err
	}
	return &mountEvents{file: n, count: firstCount}, nil
}

const firstCount = 1

// now returns a number that is another after each change; 0 where nobody counts.
func (e *mountEvents) now() (uint64, error) {
	if e == nil {
		return 0, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	p := []unix.PollFd{{Fd: int32(e.file), Events: unix.POLLPRI}}
	for {
		_, err := unix.Poll(p, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, os.NewSyscallError("poll mountinfo", err)
		}
		if p[0].Revents != 0 {
			e.count++
		}
		return e.count, nil
	}
}

func (e *mountEvents) close() {
	if e != nil {
		linux.CloseNumbers(e.file)
	}
}

// sameMounts reports whether every source is still reached by the mount that it was, with
// the flags that it had: what was bound before a remount keeps the old ones.
func (v *view) sameMounts() bool {
	now, err := v.events.now()
	if err != nil {
		return false
	}
	if now != 0 && now == v.seen {
		return true
	}
	for _, s := range v.sources {
		if s.mount == (linux.Mount{}) {
			continue // it was absent, or what it held was copied
		}
		m, err := s.mountNow()
		if err != nil || m != s.mount {
			return false
		}
	}
	v.seen = now
	return true
}

func (s source) mountNow() (linux.Mount, error) {
	flags := unix.O_PATH | unix.O_NOFOLLOW
	if s.follow {
		flags = unix.O_PATH
	}
	f, err := linux.OpenAt(nil, s.path, flags, linux.Plain)
	if err != nil {
		return linux.Mount{}, err
	}
	defer linux.CloseAll(f)
	return linux.MountOf(f)
}

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// waitEvent returns once the key of <name>/cgroup.events has the value. The kernel notifies changes of that file
// by poll(2) (POLLPRI, which an epoll set with edges sees too), cgroups(7); so a wait costs no thread and no timer.
func waitEvent(ctx context.Context, d dir, name, key string, value int64) error {
	file := filepath.Join(name, "cgroup.events")
	err := watchFile(ctx, d, file, func(text string) bool {
		got, ok := fields(text)[key]
		return ok && got == value
	})
	if err != nil {
		return fmt.Errorf("cannot wait for %s %d of %s: %w", key, value, filepath.Join(d.path, name), err)
	}
	return nil
}

// watchFile returns once done accepts the text of a file; it looks at once, then at each notification.
func watchFile(ctx context.Context, d dir, name string, done func(string) bool) error {
	fd, err := d.file(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return gone(err)
	}
	text, err := readFD(fd)
	if err != nil || done(text) || ctx.Err() != nil {
		err = errors.Join(gone(wrap(err, d, "read", name)), wrap(unix.Close(fd), d, "close", name))
		if err == nil && !done(text) {
			err = ctx.Err()
		}
		return err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.path, name))
	err = waitReadable(ctx, f, func(fd uintptr) (bool, error) {
		text, err = readFD(int(fd))
		return err == nil && done(text), err
	})
	return errors.Join(gone(wrap(err, d, "read", name)), f.Close())
}

// waitReadable calls look at each readiness of f until it says that it is done.
func waitReadable(ctx context.Context, f *os.File, look func(fd uintptr) (bool, error)) error {
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("cannot poll %s: %w", f.Name(), err)
	}
	ran := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ran)
		_ = f.SetReadDeadline(time.Unix(1, 0)) // fails only when f is closed already, and then nobody waits
	})
	defer func() {
		if !stop() {
			<-ran // else it could cut short a later wait
		}
	}()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Read(func(fd uintptr) bool {
		var done bool
		done, inner = look(fd)
		return done || inner != nil
	})
	if inner != nil {
		return inner
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// gone marks the errors that a removed cgroup gives.
func gone(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}

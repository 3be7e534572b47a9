package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pinfold/supervisor/outcome"
)

// stateLock is the hold on a state directory: one daemon at a time.
type stateLock struct {
	file *os.File
	pid  string
}

// pidName is the file of the state directory with the pid of its daemon.
const pidName = "pinfoldd.pid"

// lockState creates dir (mode 0700) where it is absent and takes its lock,
// STATE/lock, by flock(2). The kernel drops the lock when the daemon ends, however
// it ends. For one that is held it waits as long as wait says. The holder's pid stands in
// STATE/pinfoldd.pid.
func lockState(dir string, wait time.Duration) (*stateLock, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("cannot create state directory %q: %w", dir, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("cannot create state directory %q: %w", dir, err)
	}
	if err := checkState(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock of state directory %q: %w", dir, err)
	}
	pidFile := filepath.Join(dir, pidName)
	if err := flock(int(f.Fd()), wait); err != nil {
		closeErr := f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("cannot use state directory %q: the daemon with pid %s holds it; stop it or choose another with --state", dir, readPid(pidFile))
		}
		return nil, errors.Join(fmt.Errorf("cannot lock state directory %q: %w", dir, err), closeErr)
	}
	l := &stateLock{file: f, pid: pidFile}
	if err := outcome.Make(dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot write %q: %w", pidFile, err), f.Close())
	}
	return l, nil
}

// flock takes a lock, or returns EWOULDBLOCK when somebody else has had it for so long.
func flock(fd int, wait time.Duration) error {
	err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
	if wait == 0 || !errors.Is(err, syscall.EWOULDBLOCK) {
		return err
	}
	got := make(chan error, 1)
	go func() {
		err := syscall.Flock(fd, syscall.LOCK_EX)
		for errors.Is(err, syscall.EINTR) {
			err = syscall.Flock(fd, syscall.LOCK_EX)
		}
		got <- err
	}()
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case err = <-got:
		return err
	case <-late.C:
		return syscall.EWOULDBLOCK
	}
}

// checkState refuses a directory in which somebody else could put or swap files:
// audit, spools and scratch trees lie there.
func checkState(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("cannot use state directory %q: %w", dir, err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("cannot use state directory %q: not a directory; choose another with --state", dir)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("cannot use state directory %q: others may write to it (mode %#o); chmod 0700 it, or choose another with --state", dir, info.Mode().Perm())
	case ok && st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("cannot use state directory %q: it belongs to uid %d; chown it, or choose another with --state", dir, st.Uid)
	}
	return nil
}

func readPid(file string) string {
	b, err := os.ReadFile(file)
	if pid := strings.TrimSpace(string(b)); err == nil && pid != "" {
		return pid
	}
	return "unknown"
}

// release gives the directory up. The pid's file is emptied, since a daemon that has
// confined itself removes nothing from its state directory.
func (l *stateLock) release() error {
	return errors.Join(os.WriteFile(l.pid, nil, 0o600), l.file.Close())
}

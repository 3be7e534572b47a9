package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// swap is two names that change places again and again.
type swap struct {
	A, B string
	// Move renames A to B and back, over an empty directory that is there by then; else
	// they are exchanged.
	Move bool
}

// swapping is what the helper "swap" is told.
type swapping struct {
	Swaps []swap
	Least int // so many, however long it takes
}

// swaps are made by a second process until they are over.
type swaps struct {
	cmd *exec.Cmd
	in  io.Closer
	out strings.Builder
}

// swapAs starts a process of that uid that makes swaps.
func swapAs(t *testing.T, uid uint32, s swapping) *swaps {
	t.Helper()
	arg, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	w := &swaps{cmd: exec.Command(program(t, "helper"))}
	w.cmd.Env = []string{helperVar + "=swap", helperArg + "=" + string(arg), "GOMAXPROCS=1"}
	w.cmd.Dir = "/"
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	w.cmd.Stdout, w.cmd.Stderr = &w.out, os.Stderr
	in, err := w.cmd.StdinPipe()
	if err := errors.Join(err, w.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	w.in = in
	return w
}

// over ends the swaps and returns how many there were.
func (w *swaps) over(t *testing.T) int {
	t.Helper()
	if err := errors.Join(w.in.Close(), w.cmd.Wait()); err != nil {
		t.Errorf("helper swap = %v; want exit 0", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(w.out.String()))
	if err != nil {
		t.Errorf("helper swap said %q; want a number", w.out.String())
	}
	return n
}

// swapAround is that helper. In phases of some milliseconds it swaps as fast as it can,
// or stays as things were for up to a whole start and as they must not be for a moment:
// what one would do who wants a look to find the one and a mount the other.
func swapAround(arg string) error {
	var s swapping
	if err := json.Unmarshal([]byte(arg), &s); err != nil {
		return err
	}
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	n := 0
	for !over.Load() || n < s.Least {
		rest := time.Duration(rand.IntN(4)*rand.IntN(8)) * time.Millisecond // often none at all
		if rand.IntN(32) == 0 {
			rest = time.Second // for a host that is so busy that a start takes long
		}
		for until := time.Now().Add(40 * time.Millisecond); time.Now().Before(until); {
			one := s.Swaps[rand.IntN(len(s.Swaps))]
			err := one.make(one.A, one.B)
			if errors.Is(err, unix.EBUSY) {
				time.Sleep(time.Millisecond)
				continue
			}
			if err != nil {
				return err
			}
			if rest > 0 {
				time.Sleep(time.Duration(rand.Int64N(int64(300 * time.Microsecond))))
			}
			if err := one.back(); err != nil {
				return err
			}
			n += 2
			if rest > 0 {
				time.Sleep(time.Duration(rand.Int64N(int64(rest))))
			}
		}
	}
	_, err := fmt.Println(n)
	return err
}

// back makes the second swap of two. Before Linux 6.15 a mask lies in the host's mounts
// while a pen is built, and what it lies on cannot be renamed.
func (s swap) back() error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if err := s.make(s.B, s.A); !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

func (s swap) make(from, to string) error {
	if !s.Move {
		return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	}
	return unix.Renameat(unix.AT_FDCWD, from, unix.AT_FDCWD, to)
}

// witness has the kernel tell what happens in directories.
type witness struct {
	fd   int
	dirs map[int32]string
}

// witnessed watches a directory and all below it.
func witnessed(t *testing.T, top string) *witness {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{fd: fd, dirs: map[int32]string{}}
	t.Cleanup(func() { _ = unix.Close(fd) })
	err = filepath.WalkDir(top, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		n, err := unix.InotifyAddWatch(fd, path, unix.IN_CREATE|unix.IN_DELETE|unix.IN_MODIFY|unix.IN_ACCESS|unix.IN_ATTRIB|unix.IN_MOVE)
		w.dirs[int32(n)] = path
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// saw returns what has happened, but for the reading of what is a program.
func (w *witness) saw(t *testing.T) []string {
	t.Helper()
	var out []string
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(w.fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+e.Len]), "\x00")
			b = b[unix.SizeofInotifyEvent+e.Len:]
			if e.Mask&unix.IN_ACCESS == 0 || name == "who" {
				out = append(out, fmt.Sprintf("event %#x on %s", e.Mask, filepath.Join(w.dirs[e.Wd], name)))
			}
		}
	}
}

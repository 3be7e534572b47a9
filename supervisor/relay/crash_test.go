package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/proto"
	"pinfold/test/testkit"
)

// TestMain lets the test program be a daemon that is killed: see serveForever and
// deliverForever.
func TestMain(m *testing.M) {
	if dir := os.Getenv("PINFOLD_TEST_SPOOL"); dir != "" {
		os.Exit(serveForever(dir))
	}
	if how := os.Getenv("PINFOLD_TEST_DELIVER"); how != "" {
		os.Exit(deliverForever(how))
	}
	os.Exit(m.Run())
}

// serveForever relays the pipe at descriptor 3 into dir until it is killed or the pipe
// ends.
func serveForever(dir string) int {
	o, err := NewOutput(OutputConfig{Dir: dir, Stdout: os.NewFile(3, "pipe"), Keep: 1 << 40})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := o.Serve(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

// TestKilledDaemon kills the relaying process at random instants. The pipe is held by
// this test, as PID 1 of a pen holds it. The spool must have every byte once.
func TestKilledDaemon(t *testing.T) {
	dir := shmDir(t)
	r, w := nonblockPipe(t)
	want := randomText(rand.New(rand.NewPCG(7, 7)), 48<<20)
	go func() {
		defer w.Close()
		_, _ = w.Write(want) // what is missing is seen below
	}()
	rnd := rand.New(rand.NewPCG(8, 8))
	kills := 0
	for life := 0; ; life++ {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "PINFOLD_TEST_SPOOL="+dir)
		cmd.ExtraFiles = []*os.File{dupFile(t, r)}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := errors.Join(cmd.Start(), cmd.ExtraFiles[0].Close()); err != nil {
			t.Fatalf("Start() = %v; want nil", err)
		}
		size := spoolSize(t, dir)
		timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }) // fails the test below
		if life < 40 {
			// Once the spool grows, at any moment of the next milliseconds.
			for late := time.Now().Add(patience); spoolSize(t, dir) == size && size < int64(len(want)) && time.Now().Before(late); {
				time.Sleep(100 * time.Microsecond)
			}
			time.Sleep(time.Duration(rnd.IntN(1500)) * time.Microsecond)
			_ = cmd.Process.Kill() // may have ended
		}
		err := cmd.Wait()
		timer.Stop()
		if err == nil {
			break
		}
		if stderr.Len() > 0 || life >= 40 {
			t.Fatalf("life %d: %v %s; want only our kill", life, err, stderr.String())
		}
		kills++
	}
	got, err := os.ReadFile(filepath.Join(dir, "stdout"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("spool after %d kills = %d bytes, %v; want the %d written", kills, len(got), err, len(want))
	}
	if kills < 3 {
		t.Errorf("kills = %d; want some to prove anything", kills)
	}
}

func spoolSize(t *testing.T, dir string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, "stdout"))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatalf("Stat(spool) = %v; want nil", err)
	}
	return info.Size()
}

// dupFile copies a descriptor without making it blocking, as Fd would.
func dupFile(t *testing.T, f *os.File) *os.File {
	t.Helper()
	var dup *os.File
	err := control(f, func(fd int) error {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		dup = os.NewFile(uintptr(n), "dup")
		return err
	})
	if err != nil {
		t.Fatalf("fcntl(F_DUPFD_CLOEXEC) = %v; want nil", err)
	}
	return dup
}

// TestFullFileSystem: with no room left the process waits, nothing is lost, and it goes
// on once there is room.
func TestFullFileSystem(t *testing.T) {
	testkit.NeedRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("pinfold-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=512k"); err != nil {
		t.Fatalf("mount(tmpfs) = %v; want nil", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("umount(%s) = %v; want nil", dir, err)
		}
	})
	blocker := filepath.Join(dir, "blocker")
	if err := os.WriteFile(blocker, make([]byte, 400<<10), 0o600); err != nil {
		t.Fatalf("WriteFile() = %v; want nil", err)
	}
	r := newRig(t, func(c *OutputConfig) { c.Dir = dir })
	r.serve(t)
	want := randomText(rand.New(rand.NewPCG(3, 3)), 300<<10)
	go func() {
		_, _ = r.out.Write(want) // what is missing is seen below
		r.closeAll(t)
	}()
	for late := time.Now().Add(patience); !r.Counts().Full; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("Counts() after %v = %+v; want Full", patience, r.Counts())
		}
	}
	if err := os.Remove(blocker); err != nil {
		t.Fatalf("Remove() = %v; want nil", err)
	}
	rec := newRecorder(Cursor{})
	if err := r.Deliver(t.Context(), rec); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	rec.check(t)
	if !bytes.Equal(rec.got["stdout"].Bytes(), want) || r.Counts().Full || !r.Counts().Drained {
		t.Errorf("stdout = %d bytes, %+v; want the %d written, drained", rec.got["stdout"].Len(), r.Counts(), len(want))
	}
}

// TestFollowersSeeGaps: a reader that is no owner never stops the process.
func TestFollowersSeeGaps(t *testing.T) {
	r := newRig(t, func(c *OutputConfig) { c.Keep = MinKeep })
	r.serve(t)
	stuck, entered := make(chan struct{}), make(chan struct{})
	slow := newRecorder(Cursor{})
	followed := make(chan error, 1)
	go func() {
		_, err := r.Follow(t.Context(), &lateSink{to: slow, entered: entered, stuck: stuck}, Format{}, Cursor{})
		followed <- err
	}()
	mustWrite(t, r.out, "first\n")
	owner := newRecorder(Cursor{})
	done := make(chan error, 1)
	go func() { done <- r.Deliver(t.Context(), owner) }()
	<-entered
	mustWrite(t, r.out, string(bytes.Repeat([]byte(strings.Repeat("0123456789abcde", 17)+"\n"), 1<<14)))
	r.closeAll(t)
	if err := <-done; err != nil {
		t.Fatalf("Deliver() beside a stuck reader = %v; want nil", err)
	}
	close(stuck)
	if err := <-followed; err != nil {
		t.Fatalf("Follow() = %v; want nil", err)
	}
	owner.check(t)
	slow.check(t)
	total := int64(owner.got["stdout"].Len())
	if got := int64(slow.got["stdout"].Len()); slow.gaps == 0 || got+slow.gaps != total {
		t.Errorf("a slow reader got %d bytes and gaps of %d; want %d in all, with a gap", got, slow.gaps, total)
	}
	if c := r.Counts(); c.Dropped != 0 {
		t.Errorf("Counts() = %+v; want nothing dropped of the owner's", c)
	}
	if low, _ := r.Retained(proto.Stdout); slow.gaps > low {
		t.Errorf("gap of %d bytes; want at most the %d that are freed", slow.gaps, low)
	}
}

// lateSink hangs in its first Write until stuck is closed.
type lateSink struct {
	to             Sink
	entered, stuck chan struct{}
	again          bool
}

func (s *lateSink) Write(b []byte) error {
	if !s.again {
		s.again = true
		close(s.entered)
		<-s.stuck
	}
	return s.to.Write(b)
}

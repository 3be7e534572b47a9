package audit

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestShortByItsNewline: the kernel takes all of a record but the last byte. What it took is cut off again, and the next record has its number. The test runs
// itself again, since a limit on the size of files holds for the whole process.
func TestShortByItsNewline(t *testing.T) {
	const env = "PINFOLD_TEST_SHORT"
	if dir := os.Getenv(env); dir != "" {
		shortByItsNewline(t, dir)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestShortByItsNewline$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), env+"="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestShortByItsNewline")) {
		t.Errorf("with a limit on the size of files: %v\n%s", err, out)
	}
}

func shortByItsNewline(t *testing.T, dir string) {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ)
	path := filepath.Join(dir, "audit.log")
	l := open(t, path, Options{Sync: SyncNone})
	appendOne(t, l, SessionClosed{Reason: "before"})
	line, err := encode(l.head, time.Now(), KindSessionClosed, Subject{}, []byte(`{"reason":"short"}`))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	var old syscall.Rlimit
	room := uint64(info.Size()) + uint64(len(line)) - 1
	if err := errors.Join(syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old), syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: room, Max: old.Max})); err != nil {
		t.Fatal(err)
	}
	if whole, err := l.write(line); whole || !errors.Is(err, ErrUnavailable) {
		t.Fatalf("write() without room for the newline = %v, %v; want %v", whole, err, ErrUnavailable)
	}
	if err := l.Healthy(); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("Healthy() without room = %v; want %v", err, ErrUnavailable)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	appendOne(t, l, DaemonStopped{Reason: "after"})
	found, missing := readLines(t, path)
	if len(found) != 3 || found[1].Kind != KindGap || found[2].Kind != KindDaemonStopped || missing != 0 {
		t.Errorf("Read() = %d records with %d jumps; want before, a gap and after, and no jump", len(found), missing)
	}
	wantChain(t, path, 1)
}

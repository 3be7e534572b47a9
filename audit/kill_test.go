package audit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/test/testkit"
)

// TestKilledWriters: a writer is killed by SIGKILL at random moments, in the middle of records, while files are closed. The chain holds, and has a gap for each
// torn record and no other. The test runs itself again as the writer.
func TestKilledWriters(t *testing.T) {
	const env = "PINFOLD_TEST_KILLED"
	if path := os.Getenv(env); path != "" {
		writeForever(t, path)
		return
	}
	const kills, most = 30, 300
	path := filepath.Join(t.TempDir(), "audit.log")
	torn := 0
	for i := 0; i < kills || torn == 0 && i < most; i++ {
		killWriter(t, env+"="+path, i%3 > 0)
		n, err := tornIn(path)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			torn++
		}
		l, err := Open(path, Options{Rotate: 4 << 20, Warn: func(err error) { t.Errorf("warning: %v", err) }})
		if err != nil {
			t.Fatalf("Open() after kill %d = %v; want nil", i, err)
		}
		l.rotateFull() // lest the file grows beyond what a writer can copy in its time
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if i%10 == 9 {
			checkKilled(t, path, torn)
		}
	}
	if r := checkKilled(t, path, torn); r.Files < 2 || torn == 0 {
		t.Errorf("Verify() = %+v, %d torn; want some files, and some torn ends to be told", r, torn)
	}
}

// tornIn is how many bytes stand after the last whole line of a file.
func tornIn(path string) (int64, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil // it was killed before it came so far
	}
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, errors.Join(err, f.Close())
	}
	n, err := tornAfter(f, info.Size())
	return n, errors.Join(err, f.Close())
}

// killWriter runs a writer and kills it, at its start or while it writes.
func killWriter(t *testing.T, env string, open bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriters$", "-test.count=1")
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if open {
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
			t.Fatalf("the writer says %q, %v; want it open", line, err)
		}
	}
	time.Sleep(time.Duration(rand.IntN(60000)) * time.Microsecond)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("a killed writer exits 0")
	}
}

func checkKilled(t *testing.T, path string, torn int) Report {
	t.Helper()
	r := wantChain(t, path, -1)
	t.Logf("%d records in %d files, %d gaps, %d torn ends seen", r.Records, r.Files, r.Gaps, torn)
	// An end that was torn in the moment of a start may have been set aside by the killed writer itself.
	aside, err := filepath.Glob(filepath.Join(Dir(path), "*.torn-*"))
	if err != nil || r.Gaps != len(aside) || r.Gaps < torn {
		t.Fatalf("Verify() = %+v with %d torn ends set aside, %v; want a gap for each, and the %d that were seen", r, len(aside), err, torn)
	}
	return r
}

// writeForever writes long records, so that one is many pages.
func writeForever(t *testing.T, path string) {
	t.Helper()
	l, err := Open(path, Options{Sync: SyncInterval, Interval: time.Millisecond, Rotate: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stdout.WriteString("open\n"); err != nil {
		t.Fatal(err)
	}

	go func() { _ = l.Serve(context.Background()) }()                   // until it is killed
	body := []byte(`{"reason":"` + strings.Repeat("x", 500_000) + `"}`) // once: most of the time is to go into write(2)
	for {
		l.mu.Lock()
		err := errors.Join(l.heal(), l.append(Subject{}, KindSessionClosed, body))
		l.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// appendOnly is FS_APPEND_FL, ioctl_iflags(2).
const appendOnly = 0x20

// TestAppendOnly: an inode that is append-only can neither be cut nor emptied. Torn bytes stay and are ended with a mark, and the chain holds.
func TestAppendOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	appendOne(t, l, SessionClosed{Reason: "r"})
	flags, err := unix.IoctlGetInt(int(l.file.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(l.file.Fd()), unix.FS_IOC_SETFLAGS, flags|appendOnly)
	}
	if err != nil {
		testkit.LeaveOut(t, fmt.Sprintf("this user and file system have no append-only files: %v", errors.Join(err, l.Close())))
	}
	back, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.IoctlSetPointerInt(int(back.Fd()), unix.FS_IOC_SETFLAGS, flags), back.Close()); err != nil {
			t.Errorf("cannot make the file an ordinary one again: %v", err)
		}
	})
	half := []byte(`{"v":1,"seq":2,"half`)
	if _, err := l.file.Write(half); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	warned := 0
	l = open(t, path, Options{Rotate: 1, Warn: func(error) { warned++ }})
	r := wantChain(t, path, 1)
	data, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(data, append(half, tornMark...)) || r.TornBytes != int64(len(half)+len(tornMark)) {
		t.Errorf("file = %q, %v, %+v; want the torn bytes ended with a mark, and told", data, err, r)
	}
	l.rotateFull()
	l.rotation.retry = time.Time{}
	l.rotateFull()
	appendOne(t, l, SessionClosed{Reason: "r"})
	if r = wantChain(t, path, 1); r.Files != 1 || warned != 1 || r.Head != l.Head() {
		t.Errorf("Verify() = %+v with %d warnings; want one file that goes on, said once", r, warned)
	}
}

// TestFollow gives each record once, in order, also over a file that is closed.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{Rotate: 1})
	for range 5 {
		appendOne(t, l, SessionClosed{Reason: "r"})
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() {
		for i := range 12 {
			time.Sleep(50 * time.Millisecond)
			if err := l.Append(Subject{}, SessionClosed{Reason: "r"}); err != nil {
				t.Errorf("Append() = %v; want nil", err)
			}
			if i%4 == 3 {
				l.rotateFull()
			}
		}
		if err := l.Append(Subject{}, DaemonStopped{}); err != nil {
			t.Errorf("Append() = %v; want nil", err)
		}
	})
	want := uint64(3)
	for e, err := range Follow(ctx, path, 3) {
		if want++; err != nil || e.Seq != want {
			t.Fatalf("Follow() = %d, %v; want %d", e.Seq, err, want)
		}
		if e.Kind == KindDaemonStopped {
			break
		}
	}
	if want != 24 || ctx.Err() != nil {
		t.Errorf("Follow() ended at %d, %v; want the last, 24", want, ctx.Err())
	}
}

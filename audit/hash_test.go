package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func program(t *testing.T, dir, content string) File {
	t.Helper()
	path := filepath.Join(dir, "x")
	if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	id, err := Identify(f)
	if err != nil {
		t.Fatalf("Identify(%s) = %v; want nil", path, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return File{Path: path, ID: id}
}

// serve runs the hasher's worker for the time of the test.
func serve(t *testing.T, h *Hasher) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := h.Serve(ctx, aside); err != nil {
			t.Errorf("Serve() = %v; want nil", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func aside(f func()) { go f() }

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s in vain", what)
		}
	}
}

func TestHasher(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	h := NewHasher(open(t, path, Options{}), 8)
	content := strings.Repeat("program", 300_000)
	f := program(t, dir, content)
	if got := h.Lookup(f); got != f {
		t.Errorf("Lookup() at first = %+v; want no hash yet", got)
	}
	if got := h.Lookup(f); got != f || len(h.queue) != 1 {
		t.Errorf("Lookup() again = %+v with %d asked for; want no hash and one", got, len(h.queue))
	}
	serve(t, h)
	sum := sha256.Sum256([]byte(content))
	want := f
	want.SHA256 = hex.EncodeToString(sum[:])
	waitFor(t, "the hash", func() bool { return h.Lookup(f) == want })
	var records []Record
	waitFor(t, "its event", func() bool { records, _ = readAll(t, path); return len(records) == 1 })
	e, err := records[0].Event()
	if p, ok := e.(*Program); err != nil || !ok || p.File != want || p.Err != "" {
		t.Errorf("event = %+v, %v; want the program with its hash", e, err)
	}
}

func TestHasherNoticesAnotherFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	h := NewHasher(open(t, path, Options{}), 8)
	f := program(t, dir, "old")
	if err := os.Remove(f.Path); err != nil {
		t.Fatal(err)
	}
	program(t, dir, "newer")
	gone := f
	gone.Path, gone.ID.Ino = filepath.Join(dir, "absent"), 1
	h.Lookup(f)
	h.Lookup(gone)
	serve(t, h)
	var records []Record
	waitFor(t, "two events", func() bool { records, _ = readAll(t, path); return len(records) == 2 })
	for _, r := range records {
		e, err := r.Event()
		if p, ok := e.(*Program); err != nil || !ok || p.SHA256 != "" || p.Err == "" {
			t.Errorf("event = %+v, %v; want no hash and a cause", e, err)
		}
	}
	if got := h.Lookup(f); got.SHA256 != "" || len(h.queue) != 0 {
		t.Errorf("Lookup() of a changed file = %+v with %d asked for; want none, and not again at once", got, len(h.queue))
	}
}

func TestHasherIsBounded(t *testing.T) {
	h := NewHasher(open(t, filepath.Join(t.TempDir(), "audit.log"), Options{}), 4)
	for i := range 2 * hashQueue {
		h.Lookup(File{ID: FileID{Ino: uint64(i)}})
	}
	if len(h.known) > 4 || h.order.Len() != len(h.known) || len(h.queue) > hashQueue {
		t.Errorf("after %d programs: %d known, %d in order, %d asked for; want at most 4, 4, %d", 2*hashQueue, len(h.known), h.order.Len(), len(h.queue), hashQueue)
	}
}

func TestHashFileStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if sum, err := hashFile(ctx, program(t, t.TempDir(), "y")); err == nil {
		t.Errorf("hashFile(cancelled) = %s, nil; want an error", sum)
	}
}

func TestHashFileTakesRegularFilesOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o700); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	id, err := Identify(file)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	if sum, err := hashFile(t.Context(), File{Path: path, ID: id}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("hashFile(fifo) = %q, %v; want that it is no regular file", sum, err)
	}
}

// TestHasherLeavesHungReadsBehind as those of a dead mount are, and hashes on once they came back.
func TestHasherLeavesHungReadsBehind(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	h := NewHasher(open(t, path, Options{}), 8)
	f := program(t, dir, "alive")
	dead := make(chan struct{})
	h.time = 20 * time.Millisecond
	h.read = func(ctx context.Context, f File) (string, error) {
		if strings.HasPrefix(f.Path, "/dead") {
			<-dead
		}
		return hashFile(ctx, f)
	}
	serve(t, h)
	causes := func(n int) []string {
		var out []string
		waitFor(t, "program events", func() bool {
			records, _ := readAll(t, path)
			out = nil
			for _, r := range records {
				e, err := r.Event()
				p, ok := e.(*Program)
				if err != nil || !ok {
					t.Fatalf("event = %+v, %v; want a program", e, err)
				}
				out = append(out, p.Err)
			}
			return len(out) == n
		})
		return out
	}
	h.Lookup(File{Path: "/dead/1", ID: FileID{Ino: 1}})
	h.Lookup(File{Path: "/dead/2", ID: FileID{Ino: 2}})
	h.Lookup(File{Path: "/dead/3", ID: FileID{Ino: 3}})
	for i, want := range []string{"not read within 20ms", "not read within 20ms", "2 reads of other programs hang"} {
		if got := causes(3)[i]; !strings.Contains(got, want) {
			t.Errorf("cause %d = %q; want %q", i, got, want)
		}
	}
	close(dead)
	waitFor(t, "the reads to come back", func() bool { return h.hung.Load() == 0 })
	h.Lookup(f)
	if got := causes(4)[3]; got != "" || h.Lookup(f).SHA256 == "" {
		t.Errorf("after the reads came back: cause %q, %+v; want a hash", got, h.Lookup(f))
	}
}

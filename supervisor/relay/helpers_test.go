package relay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold/proto"

	"golang.org/x/sys/unix"
)

// patience bounds waits for what must happen; it is never a measure of speed.
const patience = 30 * time.Second

// nonblockPipe returns a pipe whose ends are nonblocking and known to the poller.
func nonblockPipe(tb testing.TB) (r, w *os.File) {
	tb.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		tb.Fatalf("pipe2() = %v; want a pipe", err)
	}
	r, w = os.NewFile(uintptr(p[0]), "r"), os.NewFile(uintptr(p[1]), "w")
	tb.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

// shmDir returns a directory on tmpfs, as spools have it.
func shmDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "pinfold-test-") //nolint:usetesting // TempDir is on a disk
	if err != nil {
		tb.Fatalf("MkdirTemp(/dev/shm) = %v; want a directory", err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// rig is an Output with the far ends of its pipes.
type rig struct {
	*Output
	out, err *os.File
	served   chan error
}

func newRig(tb testing.TB, change func(*OutputConfig)) *rig {
	tb.Helper()
	r1, w1 := nonblockPipe(tb)
	r2, w2 := nonblockPipe(tb)
	c := OutputConfig{Dir: shmDir(tb), ProcID: "p", ReqID: "q", Stdout: r1, Stderr: r2, Keep: 1 << 20}
	if change != nil {
		change(&c)
	}
	o, err := NewOutput(c)
	if err != nil {
		tb.Fatalf("NewOutput() = %v; want an output", err)
	}
	tb.Cleanup(func() { _ = o.Close() })
	return &rig{Output: o, out: w1, err: w2, served: make(chan error, 1)}
}

// serve runs Serve and waits for it at the end of the test.
func (r *rig) serve(tb testing.TB) {
	tb.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.served <- r.Serve(tb.Context())
	}()
	tb.Cleanup(func() { <-done }) // tb.Context() is done before
}

// closeAll ends both streams.
func (r *rig) closeAll(tb testing.TB) {
	tb.Helper()
	if err := errors.Join(r.out.Close(), r.err.Close()); err != nil {
		tb.Fatalf("Close(pipes) = %v; want nil", err)
	}
}

// event is a read/event as a client sees it.
type event struct {
	Type   string          `json:"type"`
	ID     string          `json:"id"`
	Stream string          `json:"stream_type"`
	Data   json.RawMessage `json:"data"`
	Seq    uint64          `json:"seq"`
	Offset int64           `json:"offset"`
	Gap    *proto.Gap      `json:"gap"`

	Text []byte `json:"-"` // of data, whichever form
	B64  bool   `json:"-"`
}

func parseEvent(line []byte) (event, error) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		return e, fmt.Errorf("%q: %w", line, err)
	}
	inner := []byte(e.Data)
	if len(inner) > 0 && inner[0] == '"' {
		var s string
		if err := json.Unmarshal(inner, &s); err != nil {
			return e, err
		}
		inner = []byte(s)
	}
	var d struct {
		Text *string `json:"text"`
		B64  []byte  `json:"b64"`
	}
	if err := json.Unmarshal(inner, &d); err != nil {
		return e, fmt.Errorf("data %q: %w", inner, err)
	}
	if d.Text != nil {
		e.Text = []byte(*d.Text)
	} else {
		e.Text, e.B64 = d.B64, true
	}
	return e, nil
}

// recorder is a client that checks numbers and offsets and keeps the bytes. It fails
// every Write when the budget of bytes is used up, having taken none of that call's.
type recorder struct {
	mu     sync.Mutex
	seq    uint64
	at     map[string]int64
	got    map[string]*bytes.Buffer
	events []event
	gaps   int64
	budget int
	wrote  chan struct{} // capacity 1
	err    error
}

var errGone = errors.New("client gone")

func newRecorder(from Cursor) *recorder {
	return &recorder{
		seq: from.Seq, budget: 1 << 40, wrote: make(chan struct{}, 1),
		at:  map[string]int64{"stdout": from.Stdout, "stderr": from.Stderr},
		got: map[string]*bytes.Buffer{"stdout": {}, "stderr": {}},
	}
}

func (r *recorder) Write(frames []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.budget -= len(frames); r.budget < 0 {
		r.seq += uint64(bytes.Count(frames, []byte("\n"))) // used up all the same
		return errGone
	}
	if !bytes.HasSuffix(frames, []byte("\n")) {
		r.fail("a write ends within a line: %q", frames)
	}
	for line := range bytes.Lines(frames) {
		e, err := parseEvent(line)
		if err != nil {
			r.fail("%w", err)
			continue
		}
		if r.seq++; e.Seq != r.seq {
			r.fail("seq = %d; want %d", e.Seq, r.seq)
		}
		if e.Offset != r.at[e.Stream] {
			r.fail("offset of %s = %d; want %d", e.Stream, e.Offset, r.at[e.Stream])
		}
		if e.Gap != nil {
			r.gaps += e.Gap.To - e.Gap.From
			r.at[e.Stream] = e.Gap.To
		}
		r.at[e.Stream] += int64(len(e.Text))
		r.got[e.Stream].Write(e.Text)
		r.events = append(r.events, e)
	}
	select {
	case r.wrote <- struct{}{}:
	default:
	}
	return nil
}

func (r *recorder) fail(format string, args ...any) {
	r.err = errors.Join(r.err, fmt.Errorf(format, args...))
}

func (r *recorder) texts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, e := range r.events {
		out = append(out, string(e.Text))
	}
	return out
}

// waitFor returns once the recorder has got text on stdout.
func (r *recorder) waitFor(tb testing.TB, text string) {
	tb.Helper()
	late := time.After(patience)
	for {
		r.mu.Lock()
		got := r.got["stdout"].String()
		r.mu.Unlock()
		if strings.Contains(got, text) {
			return
		}
		select {
		case <-r.wrote:
		case <-late:
			tb.Fatalf("stdout after %v = %.100q; want %.100q in it", patience, got, text)
		}
	}
}

func (r *recorder) check(tb testing.TB) {
	tb.Helper()
	if r.err != nil {
		tb.Fatalf("events = %v; want none missing, repeated or malformed", r.err)
	}
}

// openFDs counts this process's descriptors.
func openFDs(tb testing.TB) int {
	tb.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatalf("ReadDir(/proc/self/fd) = %v; want names", err)
	}
	return len(names)
}

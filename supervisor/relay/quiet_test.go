package relay

import (
	"testing"
	"testing/synctest"
	"time"
)

// feedSpool puts text into the spool as the pump does.
func feedSpool(t *testing.T, o *Output, text string) {
	t.Helper()
	s := o.streams[0]
	if _, err := s.spool.file.WriteAt([]byte(text), s.spool.size.Load()); err != nil {
		t.Fatalf("WriteAt(spool) = %v; want nil", err)
	}
	s.last.Store(int64(time.Since(o.start)))
	s.spool.size.Add(int64(len(text)))
	o.subs.wake()
}

// TestQuietIsExact has a clock of its own: a line goes at once, a part of one after 20 ms
// in which nothing came, an unfinished character never before it is whole.
func TestQuietIsExact(t *testing.T) {
	dir := shmDir(t)
	r, _ := nonblockPipe(t)
	synctest.Test(t, func(t *testing.T) {
		o, err := NewOutput(OutputConfig{Dir: dir, Stdout: r, Keep: MinKeep})
		if err != nil {
			t.Fatalf("NewOutput() = %v; want an output", err)
		}
		defer o.Close()
		rec := newRecorder(Cursor{})
		done := make(chan error, 1)
		go func() { done <- o.Deliver(t.Context(), rec) }()
		for _, step := range []struct {
			put  string
			wait time.Duration
			want int // events so far
		}{
			{"line\n", 0, 1},
			{"par", 19 * time.Millisecond, 1},
			{"t", 19 * time.Millisecond, 1}, // the silence begins anew
			{"", 2 * time.Millisecond, 2},
			{"ial\n", 0, 3},
			{"caf\xc3", 21 * time.Millisecond, 4}, // without its last byte
			{"", time.Hour, 4},
			{"\xa9", 21 * time.Millisecond, 5},
			{"a\nb\nc", 0, 7},
			{"", 21 * time.Millisecond, 8},
		} {
			if step.put != "" {
				feedSpool(t, o, step.put)
			}
			time.Sleep(step.wait)
			synctest.Wait()
			if got := len(rec.texts()); got != step.want {
				t.Errorf("after %q and %v: events = %q; want %d", step.put, step.wait, rec.texts(), step.want)
			}
		}
		o.streams[0].ended.Store(true)
		o.subs.wake()
		if err := <-done; err != nil {
			t.Errorf("Deliver() = %v; want nil", err)
		}
		rec.check(t)
	})
}

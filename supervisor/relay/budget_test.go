package relay

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"pinfold/proto"
)

// stalledSink takes nothing until it is told to.
type stalledSink struct {
	open chan struct{}
	mu   sync.Mutex
	n    int
}

func (s *stalledSink) Write(p []byte) error {
	<-s.open
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n += bytes.Count(p, []byte{'\n'})
	return nil
}

// Two processes of one caller write without end to owners that read nothing: what
// their spools hold together stays under the budget, and goes on once they read.
func TestBudgetBoundsAllSpoolsOfACaller(t *testing.T) {
	const limit = 1 << 20
	budget := NewBudget(limit)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	sinks := []*stalledSink{{open: make(chan struct{})}, {open: make(chan struct{})}}
	var outs []*Output
	for _, sink := range sinks {
		r, w := nonblockPipe(t)
		o, err := NewOutput(OutputConfig{Dir: t.TempDir(), ProcID: "p", ReqID: "r", Stdout: r, Keep: 8 << 20, Budget: budget, Format: Format{Grouping: Lines}})
		if err != nil {
			t.Fatal(err)
		}
		outs = append(outs, o)
		line := append(bytes.Repeat([]byte{'y'}, 79), '\n')
		wg.Go(func() {
			defer w.Close()
			block := bytes.Repeat(line, 100)
			for ctx.Err() == nil {
				if err := w.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
					return
				}
				_, _ = w.Write(block) // a full pipe is what is tested
			}
		})
		wg.Go(func() { _ = o.Serve(ctx) })         // ends with ctx
		wg.Go(func() { _ = o.Deliver(ctx, sink) }) // likewise
	}
	settled := func() int64 {
		last := int64(-1)
		for used := budget.Used(); used != last; used = budget.Used() {
			last = used
			time.Sleep(300 * time.Millisecond)
		}
		return last
	}
	const pipes = 2 * 64 << 10 // the bound may be passed by what the pipes hold
	if used := settled(); used > limit+pipes || used < limit/2 {
		t.Errorf("spools hold %d bytes with stalled owners; want about %d", used, limit)
	}
	if c := outs[0].Counts().Stdout + outs[1].Counts().Stdout; c > limit+pipes {
		t.Errorf("%d bytes were taken; want no more than the budget of %d and two pipes", c, limit)
	}
	for _, s := range sinks {
		close(s.open)
	}
	deadline := time.Now().Add(30 * time.Second)
	for outs[0].Counts().Stdout < 2*limit || outs[1].Counts().Stdout < 2*limit {
		if time.Now().After(deadline) {
			t.Fatalf("%d and %d bytes were taken 30 s after the owners read again; want more than %d each", outs[0].Counts().Stdout, outs[1].Counts().Stdout, 2*limit)
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	wg.Wait()
	for _, o := range outs {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
	if used := budget.Used(); used != 0 {
		t.Errorf("Used() = %d after both were closed; want 0", used)
	}
}

// What was delivered gives way: an idle process that keeps its last bytes does not
// hold up another of the same caller.
func TestBudgetReclaimsDelivered(t *testing.T) {
	const limit = 512 << 10
	budget := NewBudget(limit)
	run := func(n int) *Output {
		r, w := nonblockPipe(t)
		o, err := NewOutput(OutputConfig{Dir: t.TempDir(), ProcID: "p", ReqID: "r", Stdout: r, Keep: 8 << 20, Budget: budget})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = io.Copy(w, bytes.NewReader(bytes.Repeat([]byte("0123456\n"), n/8)))
			_ = w.Close()
		})
		wg.Go(func() { _ = o.Serve(t.Context()) })
		sink := &stalledSink{open: make(chan struct{})}
		close(sink.open)
		if err := o.Deliver(t.Context(), sink); err != nil {
			t.Errorf("Deliver() = %v; want nil", err)
		}
		wg.Wait()
		return o
	}
	first := run(400 << 10)
	if low, size := first.Retained(proto.Stdout); low != 0 || size != 400<<10 {
		t.Errorf("Retained() = %d, %d with room in the budget; want all 409600 bytes", low, size)
	}
	second := run(2 << 20)
	if c := second.Counts(); c.Stdout != 2<<20 || !c.Drained {
		t.Errorf("Counts() of the second = %+v; want 2 MiB, drained", c)
	}
	if low, _ := first.Retained(proto.Stdout); low == 0 {
		t.Error("the first keeps all its delivered bytes though the budget is used up; want them given back")
	}
	for _, o := range []*Output{first, second} {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
}

package audit

import (
	"fmt"
	"testing"
	"time"
)

func TestTally(t *testing.T) {
	tally := NewTally()
	var told []Flood
	flush := func() {
		told = nil
		tally.tell(func(s Subject, f Flood) {
			if s.UID != 7 || f.Since.IsZero() || time.Since(f.Since) > time.Hour {
				t.Errorf("told %+v of %+v; want uid 7 and a time", f, s)
			}
			told = append(told, f)
		})
	}
	if !tally.First(7, FloodRefused) {
		t.Error("First() at first = false; want true")
	}
	for range 1000 {
		if tally.First(7, FloodRefused) {
			t.Fatal("First() once more = true; want it counted")
		}
	}
	if flush(); len(told) != 1 || told[0].Count != 1000 || told[0].Of != FloodRefused {
		t.Errorf("told %+v; want one flood of 1000", told)
	}
	if tally.First(7, FloodRefused) {
		t.Error("First() while the flood goes on = true; want it counted")
	}
	if flush(); len(told) != 1 || told[0].Count != 1 {
		t.Errorf("told %+v; want one flood of 1", told)
	}
	if flush(); len(told) != 0 || len(tally.open) != 0 {
		t.Errorf("told %+v, %d open, after a quiet second; want none", told, len(tally.open))
	}
	if !tally.First(7, FloodRefused) {
		t.Error("First() after a quiet second = false; want true")
	}
	tally.Count(7, FloodDenied)
	if flush(); len(told) != 1 || told[0].Of != FloodDenied || told[0].Count != 1 {
		t.Errorf("told %+v; want the one that has no record of its own", told)
	}
}

func TestTallyIsBounded(t *testing.T) {
	tally := NewTally()
	first := 0
	for uid := range uint32(3 * maxTally) {
		if tally.First(uid, FloodRefused) {
			first++
		}
	}
	if len(tally.open) > maxTally+1 || first > maxTally+1 {
		t.Errorf("after %d uids: %d counted apart, %d written whole; want at most %d", 3*maxTally, len(tally.open), first, maxTally+1)
	}
	var many int64
	tally.tell(func(s Subject, f Flood) {
		if s.UID == ManyUIDs {
			many += f.Count
		}
	})
	if many != 3*maxTally-maxTally-1 {
		t.Errorf("told %d of many uids; want %d", many, 2*maxTally-1)
	}
}

func TestDeniedArgumentsAreShort(t *testing.T) {
	args := make([]string, 600)
	for i := range args {
		args[i] = "operand-of-a-long-command-line"
	}
	size := func(d Decision) int {
		n := 0
		for _, list := range [][]string{d.Argv, d.Env} {
			for _, w := range list {
				n += len(w)
			}
		}
		return n
	}
	for _, tt := range []struct {
		allowed  bool
		min, max int
	}{{true, 16 << 10, 2*maxTotal + 200}, {false, 1 << 10, 2*maxDenied + 200}} {
		d, ok := Decision{Allowed: tt.allowed, Argv: args, Env: args}.redact().(Decision)
		if got := size(d); !ok || got < tt.min || got > tt.max {
			t.Errorf("redact(allowed %t) keeps %d bytes; want %d–%d", tt.allowed, got, tt.min, tt.max)
		}
	}
	long := Decision{Argv: []string{"x", string(make([]byte, 3000)), string(make([]byte, 3000))}}
	if d, ok := long.redact().(Decision); !ok || size(d) > maxDenied+200 || len(d.Argv) != 3 {
		t.Errorf("redact(denied) keeps %d bytes in %d words; want the last word left out and counted", size(d), len(d.Argv))
	}
	d, ok := Decision{Argv: args}.redact().(Decision)
	if last, want := d.Argv[len(d.Argv)-1], fmt.Sprintf("[+%d words]", len(args)+1-len(d.Argv)); !ok || last != want {
		t.Errorf("redact(denied) ends in %q; want %q", last, want)
	}
}

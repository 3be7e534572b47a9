package session

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// certain lists, for each state that is not final, an event that must come: by
// the kernel, by a timer that is always armed, or because the session ends.
func certain() map[State]Event {
	return map[State]Event{
		Starting: LaunchFailed, // a start has a deadline
		Doomed:   LaunchFailed,
		Running:  SessionOver,
		Stopping: GraceOver,
		Killing:  Exited, // nothing survives cgroup.kill
		Ending:   Emptied,
		Ended:    Delivered, // the owner's end counts as delivery
		Kept:     Forgotten,
	}
}

func TestEveryStateEnds(t *testing.T) {
	table := NewTable()
	for _, start := range States() {
		s := start
		for range len(States()) {
			if s == Gone {
				break
			}
			m, ok := table.Step(s, certain()[s])
			if !ok {
				t.Fatalf("Step(%s, %s) is ignored; want a move", s, certain()[s])
			}
			s = m.Next
		}
		if s != Gone {
			t.Errorf("from %s the certain events lead to %s; want %s", start, s, Gone)
		}
	}
}

func TestEveryStateIsReachedAndKnown(t *testing.T) {
	table := NewTable()
	known := map[State]bool{}
	for _, s := range States() {
		known[s] = true
	}
	reached := map[State]bool{Starting: true}
	for s, row := range table {
		if !known[s] {
			t.Errorf("table has the row %q; States() does not list it", s)
		}
		for _, m := range row {
			reached[m.Next] = true
		}
	}
	for s := range known {
		if !reached[s] {
			t.Errorf("no move leads to %s", s)
		}
	}
}

// Whatever the order of events, each promise of a process is kept exactly once.
func TestEffectsHappenOnce(t *testing.T) {
	table := NewTable()
	once := map[Effect]bool{Answer: true, Watch: true, EndRest: true, Conclude: true, Retain: true, Forget: true, Term: true}
	type node struct {
		s    State
		done string
	}
	seen := map[node]bool{}
	var walk func(n node, path []Event)
	walk = func(n node, path []Event) {
		if seen[n] {
			return
		}
		seen[n] = true
		for e, m := range table[n.s] {
			done := n.done
			for _, f := range m.Effects {
				mark := "[" + string(f) + "]"
				if once[f] && strings.Contains(done, mark) {
					t.Fatalf("%v then %s does %s twice", path, e, f)
				}
				if once[f] {
					done += mark
				}
			}
			walk(node{m.Next, done}, append(slices.Clip(path), e))
		}
	}
	walk(node{Starting, ""}, nil)
	for n := range seen {
		if n.s == Gone && strings.Contains(n.done, "[watch]") {
			for _, f := range []Effect{Answer, EndRest, Conclude, Forget} {
				if !strings.Contains(n.done, "["+string(f)+"]") {
					t.Errorf("a started process is gone without %s: %s", f, n.done)
				}
			}
		}
	}
}

func TestDiagramInDocs(t *testing.T) {
	const file = "../../docs/architecture.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := NewTable().Diagram(); !strings.Contains(string(b), d) {
		t.Errorf("%s does not hold the diagram of the table; want\n%s", file, d)
	}
}

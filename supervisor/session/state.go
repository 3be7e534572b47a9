package session

import (
	"fmt"
	"slices"
	"strings"
)

// State is where a process stands.
type State string

// The states of a process, in life order.
const (
	Starting State = "starting" // its pen is being built
	Doomed   State = "doomed"   // as Starting, but it is to end at once
	Running  State = "running"
	Stopping State = "stopping" // SIGTERM sent, grace period running
	Killing  State = "killing"  // its cgroup was killed, the main process's end not seen yet
	Ending   State = "ending"   // the main process ended; the rest is being ended and the pipes drained
	Ended    State = "ended"    // the verdict stands; output is still being delivered
	Kept     State = "kept"     // all was told; asked about until its retention ends
	Gone     State = "gone"     // forgotten
)

// Event is what can happen to a process.
type Event string

// The events of a process.
const (
	Launched     Event = "launched"      // the kernel executed the program
	LaunchFailed Event = "launch_failed" // some step before that failed
	StopAsked    Event = "stop_asked"    // SIGTERM by request
	KillAsked    Event = "kill_asked"    // SIGKILL by request
	CancelAsked  Event = "cancel_asked"  // the spawn was taken back
	TimeUp       Event = "time_up"       // a wall, cpu or idle limit was reached
	OutOfMemory  Event = "out_of_memory" // the kernel killed for memory in the job
	OutputFull   Event = "output_full"   // output.limit was reached
	SessionOver  Event = "session_over"  // the session ends
	GraceOver    Event = "grace_over"    // the grace period ended
	Exited       Event = "exited"        // the main process ended, or its pen went without a record
	Emptied      Event = "emptied"       // nothing of the job runs any more and the pipes are drained
	Delivered    Event = "delivered"     // the owner has every byte, or is not there to take them
	Forgotten    Event = "forgotten"     // the retention time is over
)

// Effect is what the session does on a move.
type Effect string

// The effects of a move, each carried out once, in the order of the move.
const (
	Answer   Effect = "answer"   // spawn/resp
	Cut      Effect = "cut"      // the start is given up where it stands
	Watch    Effect = "watch"    // relay, timers and watches begin
	Term     Effect = "term"     // SIGTERM to the main process's group; the grace period begins
	KillJob  Effect = "kill_job" // kill the job's cgroup
	EndRest  Effect = "end_rest" // end what the main process left, drain the pipes
	Conclude Effect = "conclude" // verdict, waiting requests answered; the final event follows the last byte; then the records of the end, and pen and cgroup go
	Retain   Effect = "retain"   // the retention time begins
	Forget   Effect = "forget"   // take it off the list
)

// Move is the answer of the table to one event.
type Move struct {
	Next    State
	Effects []Effect
}

// Table maps (state, event) to a move. An event that a state's row does not
// have changes nothing.
type Table map[State]map[Event]Move

// NewTable returns the life of a process as data; the diagram in
// docs/architecture.md is made from it.
func NewTable() Table {
	kill := Move{Killing, []Effect{KillJob}}
	term := Move{Stopping, []Effect{Term}}
	ending := Move{Ending, []Effect{EndRest}}
	forget := Move{Gone, []Effect{Forget}}
	hurry := Move{Ending, []Effect{KillJob}}
	return Table{
		Starting: {
			Launched:     {Running, []Effect{Answer, Watch}},
			LaunchFailed: {Gone, []Effect{Answer, Forget}},
			SessionOver:  {Doomed, []Effect{Cut}},
			CancelAsked:  {Doomed, []Effect{Cut}},
		},
		Doomed: {
			Launched:     {Killing, []Effect{Answer, Watch, KillJob}},
			LaunchFailed: {Gone, []Effect{Answer, Forget}},
		},
		Running: {
			StopAsked: term, TimeUp: term, SessionOver: term,
			KillAsked: kill, OutOfMemory: kill, OutputFull: kill,
			Exited: ending,
		},
		Stopping: {
			GraceOver: kill, KillAsked: kill, OutOfMemory: kill, OutputFull: kill,
			Exited: ending,
		},
		Killing: {Exited: ending},
		Ending:  {KillAsked: hurry, SessionOver: hurry, Emptied: {Ended, []Effect{Conclude}}},
		Ended:   {Delivered: {Kept, []Effect{Retain}}},
		Kept:    {Forgotten: forget, SessionOver: forget},
	}
}

// Step returns the move of one event. ok is false where the state ignores it.
func (t Table) Step(s State, e Event) (m Move, ok bool) {
	m, ok = t[s][e]
	if !ok {
		return Move{Next: s}, false
	}
	return m, true
}

// States returns every state in life order.
func States() []State {
	return []State{Starting, Doomed, Running, Stopping, Killing, Ending, Ended, Kept, Gone}
}

// Diagram returns the table as a Mermaid state diagram.
func (t Table) Diagram() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n    [*] --> starting\n")
	for _, s := range States() {
		row := t[s]
		byMove := map[string][]string{}
		for e, m := range row {
			key := string(m.Next) + "|" + strings.Join(effectNames(m.Effects), ", ")
			byMove[key] = append(byMove[key], string(e))
		}
		keys := make([]string, 0, len(byMove))
		for k := range byMove {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			next, effects, _ := strings.Cut(k, "|")
			events := byMove[k]
			slices.Sort(events)
			label := strings.Join(events, ", ")
			if effects != "" {
				label += " / " + effects
			}
			fmt.Fprintf(&b, "    %s --> %s: %s\n", s, next, label)
		}
	}
	b.WriteString("    gone --> [*]\n")
	return b.String()
}

func effectNames(es []Effect) []string {
	names := make([]string, len(es))
	for i, e := range es {
		names[i] = string(e)
	}
	return names
}

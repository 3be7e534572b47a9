package host

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// TestKilledWhereItMatters kills the daemon where a process stands at an edge, and looks
// at what the client that comes back gets.
func TestKilledWhereItMatters(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		keys string
		do   func(t *testing.T, d *daemon)
	}{
		{"between an end and its report", "", endsUnreported},
		{"with a final event that nobody took", "", endsUndelivered},
		{"while others linger", "    linger: 4s", lingers},
		{"while others linger for too long", "    linger: 3s", lingersTooLong},
		{"with a writer that is blocked", "    output: { keep: 64KiB }", writerBlocked},
		{"with output that is dropped", "    output: { keep: 64KiB, overflow: drop }", outputDropped},
		{"with output that was dropped before", "    output: { keep: 64KiB, overflow: drop }", outputWasDropped},
		{"out of memory without a daemon", "    cgroup: { memory: 64MiB, swap: 0 }", outOfMemoryUnwatched},
		{"at any moment of a named spawn", "", spawnsNamed},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			row.do(t, start(t, basic("", row.keys)))
		})
	}
}

// comeBack is a crash after which the client goes on with its process.
func (d *daemon) comeBack(m *member, p *client.Process, without time.Duration) (*member, *client.Process) {
	d.t.Helper()
	d.crash(without)
	m = d.back(m, proto.Handshake{})
	return m, attach(d.t, m.Client, p.ID, p.Offsets())
}

// endsUnreported: PID 1 has told the end, and the daemon is killed before it has read
// that, or while it does something about it.
func endsUnreported(t *testing.T, d *daemon) {
	t.Helper()
	m := d.enter()
	for i := range 6 {
		p := spawn(t, m.Client, shell(`echo ready; read x; echo last; exit 7`))
		await(t, p, "ready\n")
		if i == 0 { // not read for sure
			if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			feed(t, p.PID, "x\n")
			eventually(t, "the process has ended", func() bool { return procState(p.PID) == "" })
		} else {
			go func() { _ = p.Write(t.Context(), []byte("x\n")) }() // its answer may be lost
			time.Sleep(time.Duration(rand.IntN(6000)) * time.Microsecond)
		}
		m, p = d.comeBack(m, p, 0)
		if i > 0 {
			_ = p.Write(soon(t), []byte("x\n")) // if the first was not taken; else it is refused
		}
		out, _, v := output(t, p)
		if out != "last\n" || v.Cause != proto.CauseExited || v.Code != 7 || !v.Output.Drained {
			t.Errorf("life %d: %q, %+v; want its last word, and exited with 7", i, out, v)
		}
		if n := d.endsOf(p.ID); n != 1 {
			t.Errorf("life %d: the audit record has %d ends; want one", i, n)
		}
	}
}

// feed writes to the standard input of a process past the daemon.
func feed(t *testing.T, pid int, text string) {
	t.Helper()
	appendTo(t, fmt.Sprintf("/proc/%d/fd/0", pid), text)
}

// endsOf counts the ends of a process in the audit record; it waits for the first.
func (d *daemon) endsOf(id string) (n int) {
	d.t.Helper()
	d.audited(func(l auditLine) bool { return l.Kind == "ended" && l.Process == id })
	for _, l := range d.auditLines() {
		if l.Kind == "ended" && l.Process == id {
			n++
		}
	}
	return n
}

// endsUndelivered: the process ended and stands in the record; its client was away.
func endsUndelivered(t *testing.T, d *daemon) {
	t.Helper()
	m := d.enter()
	p := spawn(t, m.Client, shell(`echo ready; sleep 0.3; echo last; exit 9`))
	await(t, p, "ready\n")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if n := d.endsOf(p.ID); n != 1 {
		t.Fatalf("the audit record has %d ends; want one", n)
	}
	for life := range 2 {
		var again *client.Process
		m, again = d.comeBack(m, p, 0)
		if out, _, v := output(t, again); out != "last\n" || v.Cause != proto.CauseExited || v.Code != 9 {
			t.Errorf("life %d: %q, %+v; want its last word, and exited with 9", life, out, v)
		}
	}
	if n := d.endsOf(p.ID); n != 1 {
		t.Errorf("the audit record has %d ends; want one", n)
	}
}

// lingers: what the main process left writes on, within its time.
func lingers(t *testing.T, d *daemon) {
	t.Helper()
	m := d.enter()
	p := spawn(t, m.Client, shell(`(for i in 1 2 3 4 5; do sleep 0.3; echo late $i; done) & echo early; exit 5`))
	await(t, p, "early\n")
	eventually(t, "the main process has ended", func() bool { return procState(p.PID) == "" })
	for range 3 {
		m, p = d.comeBack(m, p, 0)
	}
	out, _, v := output(t, p)
	if want := "late 1\nlate 2\nlate 3\nlate 4\nlate 5\n"; !strings.HasSuffix(want, out) || v.Cause != proto.CauseExited || v.Code != 5 || !v.Output.Drained || int(v.Output.Stdout) != len("early\n"+want) || len(v.Survivors) != 0 {
		t.Errorf("%q, %+v; want the rest of what came late, exited with 5, and no survivors", out, v)
	}
}

// lingersTooLong: the time of what lingers is not begun anew by a kill.
func lingersTooLong(t *testing.T, d *daemon) {
	t.Helper()
	m := d.enter()
	p := spawn(t, m.Client, shell(`sleep 600 & echo early; exit 5`))
	await(t, p, "early\n")
	eventually(t, "the main process has ended", func() bool { return procState(p.PID) == "" })
	began := time.Now()
	time.Sleep(300 * time.Millisecond) // until that was seen
	m, p = d.comeBack(m, p, 2300*time.Millisecond)
	_, _, v := output(t, p)
	took := time.Since(began)
	if v.Cause != proto.CauseExited || v.Code != 5 || len(v.Survivors) != 1 || !v.Output.Drained {
		t.Errorf("verdict = %+v; want exited with 5 and one survivor", v)
	}
	if took < 2900*time.Millisecond || took > 5*time.Second {
		t.Errorf("the end came after %s; want it 3s after the main process's", took)
	}
	_ = m.Close()
}

// writerBlocked: it waits at keep for a client that is away, over two kills.
func writerBlocked(t *testing.T, d *daemon) {
	t.Helper()
	const lines = 80_000 // more than what may be on its way to a client
	m := d.enter()
	p := spawn(t, m.Client, counting(lines))
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d.awaitBlocked(p.PID)
		d.crash(0)
	}
	d.awaitBlocked(p.PID)
	m = d.back(m, proto.Handshake{})
	p = attach(t, m.Client, p.ID, client.Offsets{})
	out, errs, v := output(t, p)
	counted(t, "out", out, lines)
	counted(t, "err", errs, lines)
	if v.Cause != proto.CauseExited || v.Output.Dropped != 0 || !v.Output.Drained {
		t.Errorf("verdict = %+v; want exited, nothing dropped", v)
	}
}

// awaitBlocked waits until a process has waited in one write for a while.
func (d *daemon) awaitBlocked(pid int) {
	d.t.Helper()
	wrote := func() string { return statusField(readFile(d.t, fmt.Sprintf("/proc/%d/io", pid)), "wchar:") }
	eventually(d.t, "the writer is blocked", func() bool {
		before := wrote()
		time.Sleep(300 * time.Millisecond)
		return before != "0" && before == wrote()
	})
}

// pieces checks output of which some was dropped: what came is what was written there,
// and with the gaps there is every byte once. It returns the bytes in gaps.
func pieces(t *testing.T, p *client.Process, want map[proto.Stream]string) (gaps int64, v *proto.Verdict) {
	t.Helper()
	at := map[proto.Stream]int64{proto.Stdout: p.Offsets().Stdout, proto.Stderr: p.Offsets().Stderr}
	for {
		e, err := p.Next(soon(t))
		if err != nil {
			t.Fatalf("Next() = %v; want an event", err)
		}
		if e.Final() {
			for stream, text := range want {
				if at[stream] != int64(len(text)) {
					t.Errorf("%s ends at byte %d; want %d", stream, at[stream], len(text))
				}
			}
			return gaps, e.Verdict
		}
		here := at[e.StreamType]
		if e.Gap != nil {
			if e.Gap.From != here || e.Gap.To <= here {
				t.Fatalf("%s has the gap %+v at byte %d", e.StreamType, *e.Gap, here)
			}
			gaps += e.Gap.To - e.Gap.From
			here = e.Gap.To
		}
		text := string(e.Data.Text)
		if text != "" && e.Offset != here || !strings.HasPrefix(want[e.StreamType][here:], text) {
			t.Fatalf("%s has %q at byte %d, which is told as %d", e.StreamType, clip(text), here, e.Offset)
		}
		at[e.StreamType] = here + int64(len(text))
	}
}

// outputDropped: a writer goes on though nobody reads, over kills; what was dropped is
// told exactly.
func outputDropped(t *testing.T, d *daemon) {
	t.Helper()
	const lines = 150_000
	m := d.enter()
	p := spawn(t, m.Client, counting(lines))
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		time.Sleep(60 * time.Millisecond)
		d.crash(0)
	}
	eventually(t, "the writer has ended", func() bool { return procState(p.PID) == "" })
	m = d.back(m, proto.Handshake{})
	p = attach(t, m.Client, p.ID, client.Offsets{})
	gaps, v := pieces(t, p, map[proto.Stream]string{proto.Stdout: numbered("out", "\n", lines), proto.Stderr: numbered("err", "\n", lines)})
	if gaps == 0 || int64(v.Output.Dropped) != gaps || v.Cause != proto.CauseExited || !v.Output.Drained {
		t.Errorf("gaps of %d bytes, verdict %+v; want some, and as many dropped", gaps, v)
	}
}

// outputWasDropped: a client that reads all the time is there before and after each kill.
func outputWasDropped(t *testing.T, d *daemon) {
	t.Helper()
	const lines = 150_000
	m := d.enter()
	p := spawn(t, m.Client, counting(lines))
	want := map[proto.Stream]string{proto.Stdout: numbered("out", "\n", lines), proto.Stderr: numbered("err", "\n", lines)}
	for range 4 {
		time.Sleep(40 * time.Millisecond)
		d.kill()
		for { // what came before the kill
			e, err := p.Next(soon(t))
			if err != nil {
				break
			}
			if text := string(e.Data.Text); !strings.HasPrefix(want[e.StreamType][min(int(e.Offset), len(want[e.StreamType])):], text) {
				t.Fatalf("%s has %q at byte %d", e.StreamType, clip(text), e.Offset)
			}
		}
		if err := d.launch(); err != nil {
			t.Fatalf("the next pinfoldd = %v; want it ready\n%s", err, d.log)
		}
		m = d.back(m, proto.Handshake{})
		p = attach(t, m.Client, p.ID, p.Offsets())
	}
	if _, v := pieces(t, p, want); v.Cause != proto.CauseExited || !v.Output.Drained {
		t.Errorf("verdict %+v; want exited, drained", v)
	}
}

// outOfMemoryUnwatched: the kernel ends it while there is no daemon to watch.
func outOfMemoryUnwatched(t *testing.T, d *daemon) {
	t.Helper()
	m := d.enter()
	p := spawn(t, m.Client, python(`import sys
print("ready", flush=True)
sys.stdin.readline()
print("going", flush=True)
x = bytearray(300 << 20)`))
	await(t, p, "ready\n")
	d.kill()
	feed(t, p.PID, "x\n")
	eventually(t, "the process has ended", func() bool { return procState(p.PID) == "" })
	if err := d.launch(); err != nil {
		t.Fatalf("the next pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	m = d.back(m, proto.Handshake{})
	out, _, v := output(t, attach(t, m.Client, p.ID, p.Offsets()))
	if out != "going\n" || v.Cause != proto.CauseOOM || v.Scope != "process" {
		t.Errorf("%q, %+v; want oom, scope process", out, v)
	}
}

// spawnsNamed: whatever step a spawn is at, its process was started once, or never, and
// the daemon says which.
func spawnsNamed(t *testing.T, d *daemon) {
	t.Helper()
	const spawns = 15
	m := d.enter()
	outcomes, most := map[proto.Outcome]int{}, map[int]bool{} // of these nobody knows
	for i := range spawns {
		s := shell(fmt.Sprintf(`echo %d >>ran; echo ran; read x`, i))
		s.OpID = fmt.Sprintf("spawn-%d", i)
		ctx, cancel := context.WithCancel(t.Context())
		var asked sync.WaitGroup
		asked.Go(func() {
			if p, err := m.Spawn(ctx, s); err == nil { // else the daemon was killed first
				p.Discard()
			}
		})
		time.Sleep(time.Duration(i) * 2 * time.Millisecond)
		d.crash(0)
		asked.Wait()
		cancel()
		m = d.back(m, proto.Handshake{})
		r := outcomeOf(t, m.Client, s.OpID)
		outcomes[r.Outcome]++
		var id string
		switch r.Outcome {
		case proto.OutcomeApplied:
			id = r.Operation.ProcID
		case proto.OutcomeNotSent:
			id = spawn(t, m.Client, s).ID
		case proto.OutcomeUnknown: // killed between the record of it and its last gate
			if r.Open {
				t.Errorf("spawn %d = %+v; want it settled by the next daemon", i, r)
			}
			most[i] = true
			continue
		case proto.OutcomeRejected:
			t.Errorf("spawn %d = %+v; want applied, not_sent or outcome_unknown", i, r)
		}
		p := attach(t, m.Client, id, client.Offsets{})
		err := p.CloseStdin(soon(t))
		if out, _, v := output(t, p); out != "ran\n" || v.Cause != proto.CauseExited || err != nil {
			t.Errorf("spawn %d = %q, %+v, %v; want it to have run", i, out, v, err)
		}
	}
	t.Logf("outcomes: %v", outcomes)
	times := map[string]int{}
	for line := range strings.Lines(runOK(t, m.Client, shell("cat ran"))) {
		times[strings.TrimSpace(line)]++
	}
	for i := range spawns {
		if n := times[itoa(i)]; n > 1 || n == 0 && !most[i] {
			t.Errorf("process %d ran %d times; want once", i, n)
		}
	}
	if len(most) > spawns/3 {
		t.Errorf("of %d spawns of %d it is not known whether they ran; want that to be rare", len(most), spawns)
	}
}

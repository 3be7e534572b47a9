package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pinfold/proto"
)

const (
	soakVar     = "PINFOLD_TEST_SOAK" // how many clients for how long: 200x60s
	soakClients = 60
	soakTime    = 10 * time.Second
	// soakGrowth is how much more memory the daemon may have at the end than after its warm-up; a quarter, if that is more. What 200 connections may hold is bounded, but the collector
	// lets garbage grow to the size of what lives before it runs, and gives pages back to the kernel late.
	soakGrowth = 32 << 20
)

// soakPolicy forgets finished processes soon: what is kept of them is meant to grow until it is bounded, and would hide a leak.
const soakPolicy = `    quota: { sessions: 4096, processes: 4096, output: 1GiB }
    detach_ttl: 1s
    retention: 2s
    manage: all`

// soakProfile gives a start the time that it may take on a machine where so many start at once.
const soakProfile = `    output: { keep: 256KiB }
    timeout: { start: 60s, stop: 1s }`

// soakSize reads the variable; full says that the test runs as it was meant, on a quiet machine.
func soakSize(t *testing.T) (clients int, lasts time.Duration, full bool) {
	t.Helper()
	v, full := os.LookupEnv(soakVar)
	if !full {
		if testing.Short() {
			return soakClients / 2, soakTime / 2, false
		}
		return soakClients, soakTime, false
	}
	number, span, ok := strings.Cut(v, "x")
	clients, err := strconv.Atoi(number)
	lasts, spanErr := time.ParseDuration(span)
	if !ok || err != nil || spanErr != nil || clients < 5 || lasts < time.Second {
		t.Fatalf("%s = %q; want a number of clients and a time, such as 200x60s", soakVar, v)
	}
	return clients, lasts, true
}

// TestSoak: honest clients beside stalled, malformed, half-open and flooding ones. For the honest nothing is lost or mixed up and requests stay
// quick; the daemon's memory is flat after a warm-up; afterwards everything is given back.
func TestSoak(t *testing.T) { //nolint:paralleltest // it measures
	clients, lasts, full := soakSize(t)
	d := start(t, basic(soakPolicy, soakProfile))
	group := newMemoryGroup(t, d)
	honest := clients * 2 / 5
	quiet := d.runHonest(honest, lasts/4)
	before := d.settled()
	t.Logf("%d honest clients alone: %s", honest, quiet)

	decoy := newDecoy(t)
	var outside *timings
	mob := besiege(t, decoy.path, clients-honest, func() { outside = d.runHonest(honest, lasts/2) })
	t.Logf("beside %d others on another socket (%s): %s", clients-honest, mob, outside)

	var under *timings
	var seen []memory
	mob = besiege(t, d.sock, clients-honest, func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			under = d.runHonest(honest, lasts)
		}()
		seen = group.watch(done)
	})
	t.Logf("beside %d others (%s): %s", clients-honest, mob, under)
	checkLatency(t, full, outside, under)
	checkFlat(t, seen)
	if mob.answers.Load() == 0 || mob.malformed.Load() == 0 || mob.halves.Load() == 0 || mob.stalled.Load() == 0 {
		t.Errorf("attackers: %s; want some of each kind", mob)
	}
	d.checkGivenBack(before)
	after := group.now()
	t.Logf("memory afterwards: %s", after)
}

// mob counts what clients that are not honest do.
type mob struct {
	t                                   *testing.T
	path                                string
	asked, answers                      atomic.Int64 // of floods
	malformed, refused, halves, stalled atomic.Int64
}

func (m *mob) String() string {
	return fmt.Sprintf("flooding %d asked %d answered, malformed %d sent %d answered, half-open %d, stalled %d", m.asked.Load(), m.answers.Load(), m.malformed.Load(), m.refused.Load(), m.halves.Load(), m.stalled.Load())
}

// besiege has n attackers on a socket while f runs: a quarter of each kind.
func besiege(t *testing.T, path string, n int, f func()) *mob {
	t.Helper()
	m := &mob{t: t, path: path}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range n {
		kind := []func(net.Conn, int){m.stall, m.malform, m.halfOpen, m.flood}[i%4]
		wg.Go(func() { m.again(ctx, kind, i) })
	}
	f()
	cancel()
	wg.Wait()
	return m
}

// again connects once more whenever a connection has ended.
func (m *mob) again(ctx context.Context, kind func(net.Conn, int), i int) {
	for ctx.Err() == nil {
		conn, err := net.Dial("unix", m.path)
		if err != nil {
			m.t.Errorf("attacker %d cannot connect: %v", i, err)
			return
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		kind(conn, i)
		stop()
		_ = conn.Close()
		select { // not a flood of connections: those of pings are meant
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

const helloLine = `{"type":"handshake/req","id":"hello","version":"1.0","ts":1,"agent_id":"mob","agent_caps":["proc"],"auth_token":""}` + "\n"

func askLine(typ, id, fields string) string {
	return `{"type":"` + typ + `","id":"` + id + `","version":"1.0","ts":1` + fields + `}` + "\n"
}

// stall starts a process that writes for ever and asks on, and reads nothing.
func (m *mob) stall(conn net.Conn, _ int) {
	m.stalled.Add(1)
	_, err := io.WriteString(conn, helloLine+askLine("proc/spawn/req", "y", `,"cmd":["yes","stalled"],"stdin_mode":"null"`))
	for n := 0; err == nil; n++ {
		_, err = io.WriteString(conn, askLine("ping", fmt.Sprint("p", n), ""))
	}
}

// malformed are lines that no daemon may take, some behind a handshake.
func malformed() []string {
	return []string{
		"\n", "{\n", "[]\n", "null\n", "\x00\xff\xfe\n", "GET / HTTP/1.1\r\n\r\n", `{"type":"ping"}` + "\n", `{"type":"ping","id":"a","id":"b","version":"1.0"}` + "\n",
		askLine("no/such", "u", ""), askLine("proc/spawn/req", "n", `,"cmd":null`), askLine("proc/spawn/req", "e", `,"cmd":[]`), askLine("proc/kill/req", "k", `,"proc_id":"../../x","signal":"SIGKILL"`),
		askLine("ping", strings.Repeat("i", 4096), ""), strings.Repeat("[", 10000) + "\n", `{"x":` + strings.Repeat(`{"x":`, 200) + "\n",
		strings.Repeat("x", proto.MaxFrame+10) + "\n", `{"type":"ping","id":"v","version":"9.9"}` + "\n", "{\"id\":\"\xc0\x80\"}\n",
	}
}

// malform sends what is no message and reads the answers.
func (m *mob) malform(conn net.Conn, i int) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = conn.Close() }()
	wg.Go(func() { m.refused.Add(lines(conn)) })
	if i%8 < 4 {
		if _, err := io.WriteString(conn, helloLine); err != nil {
			return
		}
	}
	all := malformed()
	for n := i; ; n++ {
		if _, err := io.WriteString(conn, all[n%len(all)]); err != nil {
			return
		}
		m.malformed.Add(1)
		time.Sleep(20 * time.Millisecond)
	}
}

// halfOpen stops in the middle and stays there until the other end closes.
func (m *mob) halfOpen(conn net.Conn, i int) {
	m.halves.Add(1)
	half := askLine("proc/write/req", "w", `,"proc_id":"x","data":"`+strings.Repeat("h", proto.MaxFrame/2))
	parts := []string{"", helloLine[:40], helloLine, helloLine + half[:len(half)-3], helloLine + askLine("proc/spawn/req", "c", `,"cmd":["cat"]`)[:60]}
	if _, err := io.WriteString(conn, parts[i/4%len(parts)]); err == nil {
		_ = lines(conn)
	}
}

// flood asks as fast as it is answered, and reads all answers. It starts nothing that policy refuses: honest clients of the same uid would be held back with it.
func (m *mob) flood(conn net.Conn, i int) {
	requests := []string{
		askLine("ping", "%s", ""), askLine("proc/status/req", "%s", `,"proc_id":""`), askLine("proc/list/req", "%s", ""), askLine("proc/stats/req", "%s", `,"proc_id":"none"`),
		askLine("proc/kill/req", "%s", `,"proc_id":"none"`), askLine("explain/req", "%s", `,"cmd":["ls"]`), askLine("proc/write/req", "%s", `,"proc_id":"none","data":"x"`),
	}
	const batch = 32
	if _, err := io.WriteString(conn, helloLine); err != nil {
		return
	}
	in := bufio.NewReader(conn)
	if _, err := in.ReadString('\n'); err != nil {
		return
	}
	for n := 0; ; n += batch {
		var b strings.Builder
		for j := range batch {
			fmt.Fprintf(&b, requests[(i/4+n/batch+j)%len(requests)], fmt.Sprint("f", n+j))
		}
		if _, err := io.WriteString(conn, b.String()); err != nil {
			return
		}
		m.asked.Add(batch)
		for range batch {
			if _, err := in.ReadSlice('\n'); err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				return
			}
			m.answers.Add(1)
		}
	}
}

// lines reads to the end and counts lines.
func lines(conn net.Conn) (n int64) {
	in := bufio.NewScanner(conn)
	in.Buffer(nil, 2*proto.MaxFrame)
	for in.Scan() {
		n++
	}
	return n
}

// decoy is a server outside of Pinfold for the same attackers: a line back for each line.
type decoy struct{ path string }

func newDecoy(t *testing.T) *decoy {
	t.Helper()
	s := &decoy{path: filepath.Join(t.TempDir(), "s")}
	ln, err := net.Listen("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = ln.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { answerLines(conn) })
		}
	})
	return s
}

func answerLines(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for {
		_, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, `{"type":"pong","id":"0123456789abcdef","version":"1.0","ts":1,"req_id":"f","uptime_seconds":1}`+"\n"); err != nil {
			return
		}
	}
}

package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	crashVar   = "PINFOLD_TEST_CRASH" // how many kills
	crashKills = 10
	// crashPatience is how much longer than the kills what was begun before the last of them may take.
	crashPatience = 90 * time.Second
	crashAgents   = 4
	crashHands    = 2 // works of an agent at a time
	crashProcs    = crashAgents*crashHands + 4
	crashSessions = crashAgents + 2
	// eofLimit is for the end of standard input to be seen once a close is answered.
	eofLimit = 50 * time.Millisecond
)

const crashProfile = `    cgroup: { memory: 64MiB, swap: 0, pids: 32 }
    output: { keep: 1MiB }
    timeout: { start: 60s, stop: 1s }`

func crashPolicy(rootless bool) string {
	p := basic(fmt.Sprintf("    quota: { sessions: %d, processes: %d, output: 1GiB }", crashSessions, crashProcs), crashProfile)
	if rootless {
		p = strings.Replace(p, "match: { uid: 0 }", `match: { users: ["*"] }`, 1)
		p = strings.Replace(p, "    run_as: dynamic\n", "", 1)
	}
	return p
}

// TestNothingIsLost kills the daemon, its stage, or both at random moments, in the middle
// of starts too, while clients spawn, write, kill, are cut off and come back. Every line
// of every process comes once and in order, every line of input is read once, each
// process ends once and is told why it did, and afterwards nothing is left.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	t.Run("root", func(t *testing.T) {
		t.Parallel()
		s := &crashes{t: t, d: start(t, crashPolicy(false)), kills: crashSize(t, crashKills)}
		s.run()
	})
	t.Run("rootless", func(t *testing.T) {
		t.Parallel()
		s := &crashes{t: t, d: startOrdinary(t, crashPolicy(true)), kills: crashSize(t, crashKills)}
		s.run()
	})
}

func crashSize(t *testing.T, short int) int {
	t.Helper()
	v, ok := os.LookupEnv(crashVar)
	switch {
	case !ok && testing.Short():
		return short / 3
	case !ok:
		return short
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s = %q; want a number of kills", crashVar, v)
	}
	return n
}

// crashes is a daemon that is killed again and again while agents work with it.
type crashes struct {
	t     *testing.T
	d     *daemon
	kills int

	score  *score
	agents []*agent
	over   chan struct{} // closed after the last kill
	mu     sync.Mutex
	done   map[*agent][]*done
	labels map[*agent]map[string]int // how many processes each must have
}

func (s *crashes) run() {
	s.score, s.over = newScore(), make(chan struct{})
	s.done, s.labels = map[*agent][]*done{}, map[*agent]map[string]int{}
	began := time.Now()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range crashAgents {
		a := &agent{d: s.d, score: s.score}
		if err := a.join(ctx); err != nil {
			s.t.Fatal(err)
		}
		s.agents = append(s.agents, a)
		s.labels[a] = map[string]int{}
		defer a.leave()
		if _, err := a.do(ctx, writing(), "first"); err != nil { // a session with nothing to come back for ends with its connection
			s.t.Fatal(err)
		}
	}
	for _, a := range s.agents {
		for hand := range crashHands {
			wg.Go(func() { s.labour(ctx, a, hand) })
		}
		wg.Go(func() { s.cut(a) })
	}
	s.control(ctx, &wg)
	for i := 0; i < s.kills && !s.t.Failed(); i++ {
		time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		s.strike(i)
	}
	close(s.over)
	patience := time.AfterFunc(crashPatience, cancel)
	wg.Wait()
	if !patience.Stop() {
		s.t.Errorf("what was begun before the last kill goes on %s later; want it ended", crashPatience)
	}
	killing := time.Since(began)
	if s.t.Failed() {
		for _, l := range s.d.auditLines() { // with what has become of its session
			if strings.HasPrefix(l.Kind, "session") || strings.HasPrefix(l.Kind, "daemon") || l.Kind == "set_aside" {
				s.t.Log(strings.TrimSpace(l.raw))
			}
		}
		return
	}
	ctx, cancel = context.WithTimeout(s.t.Context(), crashPatience)
	defer cancel()
	s.checkOnce(ctx)
	s.checkKept(ctx)
	s.checkQuotas(ctx)
	s.checkEOF()
	for _, a := range s.agents {
		a.leave()
	}
	s.checkEnd()
	s.report(killing)
}

// labour does one work after another until the last kill.
func (s *crashes) labour(ctx context.Context, a *agent, hand int) {
	kinds := works()
	for n := 0; ; n++ {
		select {
		case <-s.over:
			return
		default:
		}
		label := fmt.Sprintf("work-%d-%d", hand, n)
		x, err := a.do(ctx, kinds[rand.IntN(len(kinds))](), label)
		s.mu.Lock()
		switch {
		case errors.Is(err, errNotStarted):
			s.labels[a][label] = 0
		case errors.Is(err, errNotKnown):
		case err != nil:
			s.t.Errorf("%s of session %s: %v", label, a.id, err)
			s.mu.Unlock()
			return
		default:
			s.labels[a][label] = 1
			s.done[a] = append(s.done[a], x)
		}
		s.mu.Unlock()
	}
}

// cut lets an agent lose its connection now and then.
func (s *crashes) cut(a *agent) {
	for {
		select {
		case <-s.over:
			return
		case <-time.After(time.Duration(300+rand.IntN(2000)) * time.Millisecond):
			a.leave()
			s.score.add("cuts")
		}
	}
}

// strike kills something and starts the next daemon, at once or after a while; some
// of those are killed before they are ready.
func (s *crashes) strike(i int) {
	d := s.d
	what := []string{"daemon", "daemon", "stage", "daemon", "both"}[i%5]
	s.score.add("kills of " + what)
	if what != "daemon" {
		if err := syscall.Kill(d.stage(), syscall.SIGKILL); err != nil {
			s.t.Fatalf("cannot kill the stage: %v", err)
		}
	}
	if what != "stage" {
		_ = d.cmd.Process.Kill() // it may have ended with its stage
	}
	s.await(what)
	if rand.IntN(4) == 0 {
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
	}
	for range rand.IntN(3) {
		d.log = &lockedBuffer{}
		d.cmd = d.command("pinfoldd", d.args()...)
		d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
		if err := d.cmd.Start(); err != nil {
			s.t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(250)) * time.Millisecond)
		_ = d.cmd.Process.Kill()
		s.await("starting daemon")
		s.score.add("kills of a starting daemon")
	}
	began := time.Now()
	if err := d.launch(); err != nil {
		s.t.Fatalf("pinfoldd after kill %d = %v; want it ready\n%s", i, err, d.log)
	}
	s.score.took("start", time.Since(began))
}

// await waits for the end of a daemon and looks at what it has said.
func (s *crashes) await(killed string) {
	killer := time.AfterFunc(stopWithin(), func() { _ = s.d.cmd.Process.Signal(syscall.SIGQUIT) })
	if err := s.d.cmd.Wait(); err == nil {
		s.t.Errorf("pinfoldd exits 0 after a kill of the %s", killed)
	}
	if !killer.Stop() {
		s.t.Errorf("pinfoldd went on for %s after a kill of the %s; want it ended", stopWithin(), killed)
	}
	for line := range strings.Lines(s.d.log.String()) {
		for _, bad := range []string{"panic:", "DATA RACE", "level=ERROR"} {
			if strings.Contains(line, bad) && killed != "stage" {
				s.t.Errorf("the daemon's log has %q; want no such line", strings.TrimSpace(line))
			}
		}
	}
}

// control measures how soon the kernel and this host, loaded as it is, end the standard
// input of a process that is in no pen.
func (s *crashes) control(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() {
		for {
			select {
			case <-s.over:
				return
			case <-time.After(200 * time.Millisecond):
			}
			took, err := plainEOF(ctx)
			if err != nil {
				s.t.Errorf("cannot measure an end of file: %v", err)
				return
			}
			s.score.took("plain eof", took)
		}
	})
}

// checkKept: what has finished can be asked for again, whole, after all that.
func (s *crashes) checkKept(ctx context.Context) {
	for _, a := range s.agents {
		all := slices.Clone(s.done[a])
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, x := range all[:min(len(all), 8)] {
			if err := a.again(ctx, x); err != nil {
				s.t.Errorf("session %s: %v", a.id, err)
			}
		}
	}
}

// checkEOF: the end of standard input was seen in time, or, on a loaded host, about as
// soon as by a process in no pen.
func (s *crashes) checkEOF() {
	ours, plain := s.score.times["eof"], s.score.times["plain eof"]
	if len(ours) < 3 || len(plain) < 3 {
		s.t.Logf("end of file was measured %d and %d times: too few to judge", len(ours), len(plain))
		return
	}
	if got, host := quantile(ours, 0.9), quantile(plain, 0.9); got > max(eofLimit, 4*host) {
		s.t.Errorf("9 in 10 ends of standard input were seen within %s, in no pen within %s; want %s, or the same", got, host, eofLimit)
	}
}

func quantile(all []time.Duration, q float64) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[int(q*float64(len(all)-1))]
}

// checkEnd: the audit record has every end once, and after the daemon nothing is left.
func (s *crashes) checkEnd() {
	told := map[string]string{}
	for _, all := range s.done {
		for _, x := range all {
			told[x.id] = string(x.o.verdict.Cause)
		}
	}
	s.d.stop()
	starts, ends := map[string]int{}, map[string][]string{}
	lines := s.d.allAuditLines()
	for _, l := range lines {
		switch l.Kind {
		case "started":
			starts[l.Process]++
		case "ended":
			var v struct{ Cause string }
			if err := json.Unmarshal(l.Verdict, &v); err != nil {
				s.t.Fatal(err)
			}
			ends[l.Process] = append(ends[l.Process], v.Cause)
		case "start_failed": // its stage was killed before the last gate was opened: it never ran
			ends[l.Process] = append(ends[l.Process], l.Code)
		case "adopted":
			s.score.add("adopted")
		case "session_adopted":
			s.score.add("sessions adopted")
		}
	}
	for id, n := range starts {
		if n != 1 || len(ends[id]) != 1 || told[id] != "" && told[id] != ends[id][0] {
			s.t.Errorf("process %s has %d starts and the ends %v in the audit record; want one each, and %q", id, n, ends[id], told[id])
			for _, l := range lines {
				if strings.Contains(l.raw, id) {
					s.t.Log(l.raw)
				}
			}
		}
	}
	for id := range told {
		if starts[id] == 0 {
			s.t.Errorf("process %s has no start in the audit record", id)
		}
	}
	out, errs, code := result(s.t, s.d.command("pinfold", "audit", "verify", "--file", s.d.state+"/audit.log"))
	if code != 0 {
		s.t.Errorf("pinfold audit verify = exit %d, %q, %q; want the chain to hold", code, out, errs)
	}
}

func (s *crashes) report(took time.Duration) {
	s.t.Logf("%d kills in %s", s.kills, took.Round(time.Millisecond))
	for _, what := range slices.Sorted(maps.Keys(s.score.counts)) {
		s.t.Logf("%-32s %d", what, s.score.counts[what])
	}
	for _, what := range slices.Sorted(maps.Keys(s.score.times)) {
		all := s.score.times[what]
		s.t.Logf("%-32s %d times; half within %s, 9 in 10 within %s, all within %s", what, len(all), round(quantile(all, 0.5)), round(quantile(all, 0.9)), round(quantile(all, 1)))
	}
}

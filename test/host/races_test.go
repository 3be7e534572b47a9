package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
	"pinfold/test/testkit"
)

// full says whether races and kills run in full: PINFOLD_TEST_RACE=full.
func full() bool { return os.Getenv("PINFOLD_TEST_RACE") == "full" }

// race is one thing that a second process swaps while pens are built.
type race struct {
	name   string
	uid    uint32 // of the second process
	lay    func(g *ground) []swap
	policy func(g *ground) string
	spawn  func(g *ground) proto.Spawn
	wrong  judge
}

// judge says what is wrong with the output of a process that was started.
type judge func(g *ground, out string, v *proto.Verdict) string

// ground is what a race is run on: a workspace, things beside it that the policy
// shows, and what lies outside of everything that it allows, for anybody to write.
type ground struct {
	t                               *testing.T
	under, project, beside, outside string
}

const secret = "SECRET"

func newGround(t *testing.T) *ground {
	t.Helper()
	under, project := agents(t)
	g := &ground{t: t, under: under, project: project, beside: under + "-beside", outside: under + "-outside"}
	for _, dir := range []string{g.beside, g.outside} {
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Errorf("RemoveAll(%s) = %v; want none", dir, err)
			}
		})
		put(t, dir, "who", secret+"\n")
	}
	put(t, project, "who", "inside\n")
	return g
}

// elsewhere puts a file outside, in a directory that everybody may write.
func (g *ground) elsewhere(name string) {
	g.t.Helper()
	put(g.t, g.outside, name, secret+"\n")
	for dir := filepath.Join(g.outside, filepath.Dir(name)); ; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o777); err != nil {
			g.t.Fatal(err)
		}
		if dir == g.outside {
			return
		}
	}
}

// link makes a symlink of the caller's, or of root's where root swaps.
func (g *ground) link(to, at string, uid int) string {
	g.t.Helper()
	if err := errors.Join(os.Symlink(to, at), os.Lchown(at, uid, uid)); err != nil {
		g.t.Fatal(err)
	}
	return at
}

// stated is the output of script, which must be want.
func stated(want string) judge {
	return func(_ *ground, out string, _ *proto.Verdict) string {
		if out != want {
			return fmt.Sprintf("output = %q; want %q", clip(out), want)
		}
		return ""
	}
}

// among is output of which each line must be one of these, if there is any.
func among(lines ...string) judge {
	return func(_ *ground, out string, _ *proto.Verdict) string {
		for line := range strings.Lines(out) {
			if !slices.Contains(lines, strings.TrimSpace(line)) {
				return fmt.Sprintf("output = %q; want nothing but %q", clip(out), lines)
			}
		}
		return ""
	}
}

// TestRaces: whatever changes places while a pen is built or waits to be used, a spawn
// is refused or runs what was looked at; nothing outside is read, run or written. For
// each there are spawns of pens that are built for them and of such as were ready.
func TestRaces(t *testing.T) {
	t.Parallel()
	kinds := 2
	if err := testkit.DetachedMounts(); err != nil {
		t.Logf("no pen is made ready on this host: %v", err)
		kinds = 1
	}
	for _, r := range races() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			least, during := 1000, 2*time.Second
			if full() {
				least, during = 100_000, 60*time.Second
			}
			g := newGround(t)
			pairs := r.lay(g)
			d := start(t, r.policy(g))
			w := witnessed(t, g.outside)
			s := swapAs(t, r.uid, swapping{Swaps: pairs, Least: least})
			end := time.Now().Add(during)
			tallies := make([]*tally, kinds)
			var wg sync.WaitGroup
			for i := range tallies {
				c, n := d.caller(), &tally{d: d, g: g, r: &r, ready: i == 1, refused: map[string]int{}, ran: map[string]string{}}
				tallies[i] = n
				wg.Go(func() {
					n.run(c, end)
					if err := c.Shutdown(g.t.Context(), time.Second); err != nil {
						n.wrong = append(n.wrong, fmt.Sprintf("Shutdown() = %v; want none", err))
					}
				})
			}
			wg.Wait()
			n := s.over(t)
			for _, what := range w.saw(t) {
				t.Errorf("outside of all that the policy allows: %s; want nothing", what)
			}
			if n < least {
				t.Errorf("%d swaps; want %d", n, least)
			}
			eventually(t, "no placeholder is left", func() bool { return len(g.placeholders()) == 0 })
			for _, y := range tallies {
				y.check(d)
				t.Logf("%d swaps, %s", n, y)
			}
		})
	}
}

// placeholders are those that are in the workspace and outside.
func (g *ground) placeholders() []string {
	g.t.Helper()
	var out []string
	for _, top := range []string{g.under, g.outside} {
		err := filepath.WalkDir(top, func(path string, e os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if info, err := e.Info(); err == nil && e.IsDir() && info.Mode().Perm() == 0o555 {
				out = append(out, path)
			}
			return nil
		})
		if err != nil {
			g.t.Fatal(err)
		}
	}
	return out
}

// tally is what became of the spawns of one session.
type tally struct {
	d     *daemon
	g     *ground
	r     *race
	ready bool // all are of one kind, so that pens are made ready

	started, used int // used pens that were ready
	busy          int // policy has refused too many: not looked at
	refused       map[string]int
	ran           map[string]string // output by process
	wrong         []string
}

// run spawns until end.
func (y *tally) run(c *client.Client, end time.Time) {
	ctx, cancel := context.WithTimeout(y.g.t.Context(), time.Until(end)+patience)
	defer cancel()
	for i := 0; (time.Now().Before(end) || !y.seen()) && ctx.Err() == nil && len(y.wrong) < 10; i++ {
		s := y.r.spawn(y.g)
		if !y.ready && i%2 == 0 { // another kind each time: none is made ready
			s.StdinMode = proto.StdinNull
		}
		if y.ready {
			time.Sleep(rand.N(12 * time.Millisecond))
		}
		waiting := y.waiting()
		p, err := c.Spawn(ctx, s)
		if e, ok := errors.AsType[*client.Error](err); ok {
			if e.Code == proto.CodeBusy {
				y.busy++
				time.Sleep(25 * time.Millisecond)
				continue
			}
			y.refused[reason(e)]++
			continue
		}
		if err != nil {
			y.wrong = append(y.wrong, fmt.Sprintf("Spawn() = %v; want a process or a refusal", err))
			return
		}
		y.started++
		if slices.Contains(waiting, itoa(p.PID)) {
			y.used++
		}
		var out bytes.Buffer
		v, err := p.Copy(ctx, &out, &out)
		if err != nil || v == nil {
			y.wrong = append(y.wrong, fmt.Sprintf("Copy() = %+v, %v; want a verdict", v, err))
			return
		}
		y.ran[p.ID] = out.String()
		what := y.r.wrong(y.g, out.String(), v)
		if strings.Contains(out.String(), secret) {
			what = fmt.Sprintf("output = %q; want nothing from outside", clip(out.String()))
		}
		if what != "" {
			y.wrong = append(y.wrong, what)
		}
	}
}

// seen says that what the race is about has happened.
func (y *tally) seen() bool { return y.started > 0 && (!y.ready || y.used > 0) }

// waiting are the pens that wait for a spawn.
func (y *tally) waiting() []string {
	if !y.ready {
		return nil
	}
	names, err := filepath.Glob(filepath.Join(y.d.base(), "callers", "*", "*", "*", "job"))
	if err != nil {
		return nil
	}
	var out []string
	for _, n := range names {
		out = append(out, strings.Fields(members(n))...)
	}
	return out
}

func (y *tally) check(d *daemon) {
	t := y.g.t
	t.Helper()
	for _, what := range y.wrong {
		t.Error(what)
	}
	if !y.seen() {
		t.Errorf("no spawn was started, or no pen that was ready was used; want some: %s", y)
	}
	if strings.Contains(y.r.name, "program") {
		for _, what := range d.otherPrograms(y.ran) {
			t.Error(what)
		}
	}
}

func (y *tally) String() string {
	kind, refused := "pens built at the spawn", 0
	if y.ready {
		kind = "pens made ready"
	}
	var why []string
	for _, r := range slices.Sorted(maps.Keys(y.refused)) {
		refused += y.refused[r]
		why = append(why, fmt.Sprintf("\n\t%6d %s", y.refused[r], r))
	}
	return fmt.Sprintf("%s: %d spawns, %d started (%d in a pen that was ready), %d refused, %d not looked at%s", kind, y.started+refused, y.started, y.used, refused, y.busy, strings.Join(why, ""))
}

// reason is a refusal without what differs from one to the next.
func reason(e *client.Error) string {
	text := regexp.MustCompile(`/srv/[^ ,:;)]*|[0-9]{3,}`).ReplaceAllString(e.Message, "…")
	return string(e.Code) + ": " + text
}

// otherPrograms says which processes were another program than the audit record has,
// by the inode that each has told of itself.
func (d *daemon) otherPrograms(ran map[string]string) []string {
	var out []string
	found := 0
	record := regexp.MustCompile(`"process":"([^"]+)".*"program":\{"path":"[^"]*","id":\{"dev":[0-9]+,"ino":([0-9]+)`)
	for line := range strings.Lines(readFile(d.t, filepath.Join(d.state, "audit.log"))) {
		m := record.FindStringSubmatch(line)
		if m == nil || ran[m[1]] == "" {
			continue
		}
		found++
		if got := strings.TrimSpace(ran[m[1]]); got != m[2] {
			out = append(out, fmt.Sprintf("process %s is program %s; looked at was %s", m[1], got, m[2]))
		}
	}
	if found < len(ran) {
		out = append(out, fmt.Sprintf("%d records of %d processes; want one of each", found, len(ran)))
	}
	return out
}

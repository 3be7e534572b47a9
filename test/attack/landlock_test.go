package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/attack"
)

// lack is what Landlock refuses on newer kernels and not under ABI 2, which is Linux
// 6.1's, with the attacks that it would refuse. landlock(7).
type lack struct {
	right   string
	abi     int
	linux   string
	attacks string // names; those with a star at the end stand for all that begin so
}

func lacks() []lack {
	return []lack{
		{"truncate", 3, "6.2", "landlock/truncate paths/denied-truncate"},
		{"bind and connect of TCP", 4, "6.7", "network/loopback* network/metadata* network/world* network/private network/privileged-port"},
		{"ioctls of devices", 5, "6.10", "terminal/push-input* terminal/paste-selection* terminal/line-discipline terminal/take-console"},
		{"abstract sockets, with `net: none`", 6, "6.12", "daemons/abstract-* neighbours/abstract-pen"},
		{"abstract sockets, with `net: host`", 6, "6.12", "landlock/abstract-*"},
		{"signals", 6, "6.12", "neighbours/signal-* neighbours/tgkill-host stage/kill stage/stop stage/tgkill stage/queue-signal stage/pidfd-signal"},
		{"sockets by path", 9, "7.1", "daemons/path-* daemons/run-* daemons/tmp-X11-unix-X0 interface/connect-daemon interface/ask-daemon"},
		{"bind, connect and send of UDP", 10, "7.2", "network/dns network/multicast"},
	}
}

// list finds the attacks of a lack.
func (l lack) list() []attack.Attack {
	var out []attack.Attack
	for name := range strings.FieldsSeq(l.attacks) {
		begin, all := strings.CutSuffix(name, "*")
		for _, a := range attack.Table() {
			if a.ID == name || all && strings.HasPrefix(a.ID, begin) {
				out = append(out, a)
			}
		}
	}
	return out
}

// refusedAtTheStart is what holds where no layer but Landlock would.
const refusedAtTheStart = "the start is refused"

// instead says what holds an attack where Landlock cannot.
func instead(a attack.Attack) string {
	if a.Layer == attack.Landlock {
		return refusedAtTheStart
	}
	return string(a.Layer)
}

// landlockABI is the kernel's; landlock_create_ruleset(2).
func landlockABI(t *testing.T) int {
	t.Helper()
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		t.Fatalf("landlock_create_ruleset = %v; want its ABI", errno)
	}
	return int(abi)
}

// TestWithoutLandlock makes every attack in pens that have no Landlock at all: another
// layer holds each, but those in the host's network that name Landlock as theirs. So
// what an old ABI lacks is met, right by right.
func TestWithoutLandlock(t *testing.T) {
	bin := built(t)
	work := filepath.Join(bin, "bare")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	d := start(t, bin, work, filepath.Join(bin, "b"))
	told := map[string]string{}
	for _, p := range []pen{
		{name: "without Landlock", uid: ordinary, profile: "bare", work: workspace(t, work, ordinary), has: []attack.Need{attack.NetNone, attack.Apart, attack.OwnHome, attack.PidLimit, attack.FileLimit, attack.NotRoot}},
		{name: "denied paths without Landlock", uid: ordinary, profile: "bare-denied", work: workspace(t, work, ordinary), has: []attack.Need{attack.Denies}},
	} {
		t.Run(p.name, func(t *testing.T) { maps.Copy(told, d.hold(t, p)) })
	}
	t.Run("its own files for reading only", func(t *testing.T) { maps.Copy(told, d.holdOwn(t, work)) })
	abi := landlockABI(t)
	for _, l := range lacks() {
		has := "has it"
		if abi < l.abi {
			has = "lacks it"
		}
		made := 0
		var rows []string
		for _, a := range l.list() {
			answer, ok := told[a.ID]
			if a.Layer == attack.Landlock {
				rows, made = append(rows, a.ID+": "+refusedAtTheStart+" without it, see TestAbstractSocketsAreHeldOrNothingStarts"), made+1
				continue
			}
			if ok {
				rows, made = append(rows, fmt.Sprintf("%s: %s by %s", a.ID, answer, a.Layer)), made+1
			}
		}
		t.Logf("%s: Landlock ABI %d, Linux %s; this kernel with ABI %d %s\n\t%s", l.right, l.abi, l.linux, abi, has, strings.Join(rows, "\n\t"))
		if made == 0 {
			t.Errorf("%s: no attack was made; want one at least", l.right)
		}
	}
}

// holdOwn makes the attacks on files of the view on such as the attacker owns, and may
// write by their modes: what refuses is that they are mounted for reading only.
func (d *daemon) holdOwn(t *testing.T, work string) map[string]string {
	t.Helper()
	p := pen{name: "its own files", uid: ordinary, profile: "bare-own", work: workspace(t, work, ordinary)}
	s := targets(t, d, p.uid).Scene
	s.View = filepath.Join(d.bin, "own")
	if err := os.Rename(view(t, work, ordinary), s.View); err != nil {
		t.Fatal(err)
	}
	s.File = s.View + "/bin/env"
	var list []attack.Attack
	for _, a := range attack.Table() {
		if a.Class == attack.Gaps && a.Layer == attack.Mounts {
			list = append(list, a)
		}
	}
	told := d.attackIn(t, p, s, list)
	for _, a := range list {
		if told[a.ID] != "EROFS" {
			t.Errorf("%s on a file of its own = %q; want EROFS", a.ID, told[a.ID])
		}
	}
	return told
}

// TestAbstractSocketsAreHeldOrNothingStarts: with the host's network nothing but
// Landlock's scope keeps abstract sockets shut. A kernel without it starts no pen that
// requires Landlock; one that wants it at best effort starts, and its record says so.
func TestAbstractSocketsAreHeldOrNothingStarts(t *testing.T) {
	bin := built(t)
	work := filepath.Join(bin, "scoped")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	d := start(t, bin, work, filepath.Join(bin, "a"))
	abi := landlockABI(t)
	has := abi >= scopesABI
	for _, tt := range []struct {
		profile string
		starts  bool
		state   string
	}{{"shared", has, "enforced"}, {"shared-at-best", true, map[bool]string{true: "enforced", false: "unsupported"}[has]}} {
		state, degraded, refusal := d.landlock(t, pen{uid: ordinary, profile: tt.profile})
		t.Logf("ABI %d, %s: landlock %q, degraded %q, refusal %q", abi, tt.profile, state, degraded, refusal)
		switch {
		case !tt.starts:
			for _, want := range []string{"landlock", "has no scopes", "net: none", "best_effort"} {
				if state != "" || !strings.Contains(refusal, want) {
					t.Errorf("run under %s with ABI %d = landlock %q, %q; want it refused with %q", tt.profile, abi, state, refusal, want)
				}
			}
		case state != tt.state || has == slices.ContainsFunc(degraded, func(s string) bool { return strings.Contains(s, "abstract sockets") }):
			t.Errorf("run under %s with ABI %d = landlock %q, degraded %q, %q; want %s, and abstract sockets told of where they are open", tt.profile, abi, state, degraded, refusal, tt.state)
		}
	}
}

// landlock starts a process that does nothing, and returns what its record says of
// Landlock, or how the start was refused.
func (d *daemon) landlock(t *testing.T, p pen) (state string, degraded []string, refusal string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := d.run(ctx, p, []string{"--json"}, attack.Harmless)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	for line := range strings.Lines(string(out)) {
		var m struct {
			Enforcement struct {
				Controls []struct{ Control, State string }
				Degraded []string
			}
		}
		if json.Unmarshal([]byte(line), &m) != nil {
			continue // output of the process
		}
		for _, c := range m.Enforcement.Controls {
			if c.Control == "landlock" {
				state, degraded = c.State, m.Enforcement.Degraded
			}
		}
	}
	if err != nil {
		refusal = string(out) + stderr.String()
	}
	return state, degraded, refusal
}

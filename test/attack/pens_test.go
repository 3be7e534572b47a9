package attack

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pinfold/attack"
)

// pens are those in which attacks are made.
func pens(t *testing.T, work string) []pen {
	t.Helper()
	usual := []attack.Need{attack.NetNone, attack.Apart, attack.OwnHome, attack.PidLimit, attack.FileLimit}
	free := append([]attack.Need{attack.NotRoot}, usual...)
	strict := []attack.Need{attack.ExecListed, attack.Strict}
	mine := func() string { return workspace(t, work, ordinary) }
	all := []pen{
		{name: "default", uid: ordinary, profile: "default", work: mine(), has: free},
		{name: "default, root asks", profile: "default", has: free},
		{name: "default, as its root", uid: ordinary, profile: "default-root", work: mine(), has: usual},
		{name: "strict", uid: ordinary, profile: "strict", work: mine(), has: slices.Concat(free, strict)},
		{name: "strict, root asks", profile: "strict", has: slices.Concat(free, strict)},
		{name: "strict, as its root", uid: ordinary, profile: "strict-root", work: mine(), has: slices.Concat(usual, strict)},
		{name: "denied paths", uid: ordinary, profile: "denied", work: mine(), has: []attack.Need{attack.Denies}},
		{name: "denied paths, dynamic uid", uid: ordinary, profile: "mapped", work: mine(), has: []attack.Need{attack.Denies}},
		{name: "little memory", uid: ordinary, profile: "small", work: mine(), has: []attack.Need{attack.Little}},
	}
	if scopes(t) { // else the start is refused: TestAbstractSocketsAreHeldOrNothingStarts
		all = append(all, pen{name: "the host's network", uid: ordinary, profile: "shared", work: mine(), has: []attack.Need{attack.NetHost, attack.Scoped}})
	}
	return all
}

// special pens have been made for the attacks that need their traits.
func special(p pen) bool { return len(p.has) <= 2 }

// fit are the attacks that prove something in a pen: those that need one of its traits
// where it has been made for these alone, else all whose needs it has.
func fit(p pen) []attack.Attack {
	return slices.DeleteFunc(attack.Table(), func(a attack.Attack) bool {
		lacks := slices.ContainsFunc(a.Needs, func(n attack.Need) bool { return !slices.Contains(p.has, n) })
		return lacks || special(p) && len(a.Needs) == 0 || absent(a)
	})
}

// TestAttacks makes every attack inside real pens: each is refused by an answer of the
// kernel's that is its layer's. TestControls makes the same ones where nothing refuses.
func TestAttacks(t *testing.T) {
	bin := built(t)
	work := filepath.Join(bin, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	d := start(t, bin, work, filepath.Join(bin, "s"))
	made := map[string]bool{}
	for _, p := range pens(t, work) {
		t.Run(p.name, func(t *testing.T) {
			for id := range d.hold(t, p) {
				made[id] = true
			}
		})
	}
	count := 0
	for _, a := range attack.Table() {
		switch {
		case made[a.ID]:
			count++
		case slices.Contains(a.Needs, attack.Scoped) && !scopes(t):
			t.Logf("%s: this kernel's Landlock has no scopes", a.ID)
		case !absent(a):
			t.Errorf("%s was made in no pen", a.ID)
		}
	}
	if count < 150 {
		t.Errorf("%d attacks were made; want at least 150", count)
	}
	t.Logf("%d attacks of %d were made; the others aim at what this host does not have", count, len(attack.Table()))
}

// hold makes every attack that fits a pen in it, wants each held, and returns what each
// was told.
func (d *daemon) hold(t *testing.T, p pen) map[string]string {
	t.Helper()
	s := targets(t, d, p.uid).Scene
	list := fit(p)
	if !special(p) {
		pid, end := d.neighbour(t, p)
		defer end()
		s.Neighbour = pid
	}
	told := d.attackIn(t, p, s, list)
	count := map[attack.Verdict]int{}
	for _, a := range list {
		answer, ok := told[a.ID]
		verdict, why := a.Judge(answer)
		count[verdict]++
		if verdict == attack.NotApplicable && (a.ID == foreign || a.ID == "network/loopback6") {
			t.Logf("%s: this host has no %s", a.ID, why)
			continue
		}
		if !ok || verdict != attack.Held {
			t.Errorf("%s in %s: %s", a.ID, p.name, why)
		}
	}
	t.Logf("attacks: %d held, %d broken, %d not applicable: %s", count[attack.Held], count[attack.Broken], count[attack.NotApplicable], p.name)
	if p.work != "" {
		for _, f := range hostile(t, p.work) {
			t.Errorf("%s left %s on the host; want no set-id bits, no devices, no owner but the caller, secrets as they were", p.name, f)
		}
	}
	return told
}

// TestPenIsNoCaller has the daemon's socket in the workspace itself.
func TestPenIsNoCaller(t *testing.T) {
	bin := built(t)
	work := filepath.Join(bin, "callers")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	w := workspace(t, work, ordinary)
	if err := os.Chmod(w, 0o777); err != nil { // the daemon may not overrule its mode to remove the socket
		t.Fatal(err)
	}
	d := start(t, bin, work, filepath.Join(w, "s"))
	s := targets(t, d, ordinary).Scene
	for _, profile := range []string{"default", "mapped", "strict"} {
		told, _ := d.obey(t, pen{name: profile, uid: ordinary, profile: profile, work: w}, s, []string{"interface/ask-daemon"})
		if got := told["interface/ask-daemon"]; got != "refused" && got != "EACCES" {
			t.Errorf("a caller in %s, with the socket in its workspace = %q; want refused by the daemon", profile, got)
		}
	}
}

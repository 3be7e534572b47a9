package attack

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"pinfold/attack"
)

var update = flag.Bool("update", false, "rewrite the lists of attacks in docs/security.md")

const page = "../../docs/security.md"

// TestListed holds the lists in docs/security.md to the tables.
func TestListed(t *testing.T) {
	listed(t, "attacks", printed(attack.Table()))
	listed(t, "landlock", printedLacks(lacks()))
}

// listed compares a part of the page, or writes it with -update.
func listed(t *testing.T, name, want string) {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+name+": begin (go test ./test/attack -run TestListed -update) -->\n", "<!-- "+name+": end -->"
	before, rest, ok := strings.Cut(string(b), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for %s", page, name)
	}
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != want {
		t.Errorf("%s does not list %s of the table; go test ./test/attack -run TestListed -update", page, name)
	}
}

// printedLacks has a row for each right, with what holds each of its attacks without it.
func printedLacks(list []lack) string {
	var b strings.Builder
	b.WriteString("| right | since | attacks, and what holds them without it |\n|---|---|---|\n")
	for _, l := range list {
		var order []string
		names := map[string][]string{}
		for _, a := range l.list() {
			by := instead(a)
			if names[by] == nil {
				order = append(order, by)
			}
			names[by] = append(names[by], a.ID)
		}
		var cells []string
		for _, by := range order {
			cells = append(cells, "**"+by+"**: "+strings.Join(names[by], " "))
		}
		fmt.Fprintf(&b, "| %s | ABI %d, Linux %s | %s |\n", l.right, l.abi, l.linux, strings.Join(cells, "; "))
	}
	return b.String()
}

// group is a row of the list: attacks of a class that one layer refuses alike.
type group struct {
	class  attack.Class
	layer  attack.Layer
	answer string
}

// printed is the list: a row for each class, layer and answer. Marked are attacks
// without a control run, and those that doctor leaves out.
func printed(table []attack.Attack) string {
	var order []group
	names := map[group][]string{}
	for _, a := range table {
		g := group{a.Class, a.Layer, strings.Join(a.Want, ", ")}
		if names[g] == nil {
			order = append(order, g)
		}
		name := strings.TrimPrefix(a.ID, string(a.Class)+"/")
		if a.Harmful != "" {
			name += "†"
		}
		if a.Control.Room == attack.Nobody {
			name += "*"
		}
		names[g] = append(names[g], name)
	}
	var b strings.Builder
	harmless := 0
	why := map[string]int{}
	for _, a := range table {
		if a.Harmful == "" {
			harmless++
		}
		if a.Control.Room == attack.Nobody {
			why[a.Control.Why]++
		}
	}
	fmt.Fprintf(&b, "%d attacks, %d of them harmless.\n\n| class | held by | answers that count as refused | attacks |\n|---|---|---|---|\n", len(table), harmless)
	for _, g := range order {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", g.class, g.layer, g.answer, strings.Join(names[g], " "))
	}
	b.WriteString("\nWhy those with a star have no control run:\n\n")
	for _, w := range sortedKeys(why) {
		fmt.Fprintf(&b, "- %s (%d)\n", w, why[w])
	}
	return b.String()
}

func sortedKeys(m map[string]int) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// TestTable holds the table to what its readers rely on.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	classes := map[attack.Class]int{}
	harmless := 0
	for _, a := range attack.Table() {
		classes[a.Class]++
		if a.Harmful == "" {
			harmless++
		}
		switch {
		case seen[a.ID]:
			t.Errorf("%s stands twice in the table", a.ID)
		case a.ID != strings.ToLower(a.ID) && !strings.Contains(a.ID, "X11"), strings.ContainsAny(a.ID, " _*"):
			t.Errorf("%q is no name of an attack", a.ID)
		case a.Tries == "" || a.Layer == "" || len(a.Want) == 0:
			t.Errorf("%s does not say what it tries, what refuses it, or how", a.ID)
		case (a.Control.Room == attack.Nobody) == (a.Control.Why == ""):
			t.Errorf("%s has a control run and a reason for none, or neither", a.ID)
		}
		seen[a.ID] = true
	}
	for _, c := range attack.Classes() {
		if classes[c] < 3 {
			t.Errorf("class %s has %d attacks; want several", c, classes[c])
		}
	}
	if len(classes) != len(attack.Classes()) || len(seen) < 150 || harmless < 100 {
		t.Errorf("%d classes, %d attacks, %d harmless; want %d, at least 150 and 100", len(classes), len(seen), harmless, len(attack.Classes()))
	}
}

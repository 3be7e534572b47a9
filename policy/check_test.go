package policy

import (
	"fmt"
	"strings"
	"testing"
)

func TestCheckGolden(t *testing.T) {
	var b strings.Builder
	for _, s := range []Source{DefaultSource(), read(t, "example.yaml"), read(t, "loose.yaml")} {
		p := mustParse(t, s)
		fmt.Fprintf(&b, "# %s\n", s.Name)
		for _, f := range p.Check() {
			b.WriteString(f.String() + "\n")
		}
		for _, e := range p.Exposures() {
			fmt.Fprintf(&b, "%s: %.1f\n  %s\n", e.Profile, e.Score, strings.Join(e.Reasons, "\n  "))
		}
	}
	golden(t, "check.golden", b.String())
}

func TestDefaultIsTheLeastExposed(t *testing.T) {
	score := func(s Source, name string) float64 {
		for _, e := range mustParse(t, s).Exposures() {
			if e.Profile == name {
				return e.Score
			}
		}
		t.Fatalf("no score for %s", name)
		return 0
	}
	def, loose := score(DefaultSource(), "default"), score(read(t, "loose.yaml"), "loose")
	if def > 2 || loose < 8 {
		t.Errorf("scores are %.1f for the default and %.1f for loose.yaml; want at most 2 and at least 8", def, loose)
	}
}

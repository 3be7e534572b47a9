package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold/proto"
)

// TestVerdictTellsOfDenies: a denied path that was absent and came, and a
// placeholder that somebody outside of the pen took away, are in the verdict on
// the wire and in the audit log.
func TestVerdictTellsOfDenies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		absent, script string
		outside        func(place string) error
		want           []proto.DenyEvent
	}{
		{"check", "echo x > .env", nil, []proto.DenyEvent{{Path: "/proj/.env", Change: proto.DenyAppeared}}},
		{"check", "echo x > env", nil, nil},
		{"placeholder", "rm -rf .env; true", nil, nil},
		{"placeholder", "true", os.Remove, []proto.DenyEvent{{Path: "/proj/.env", Change: proto.DenyRemoved}}},
	} {
		d := start(t, basic("", "      deny: [ \"${workspace}/.env\" ]\n      absent: "+tt.absent))
		p := spawn(t, d.agent(), shell("exec 2>&-; pwd; read x; "+tt.script))
		dir := strings.TrimSpace(await(t, p, "\n"))
		if tt.outside != nil {
			places, err := filepath.Glob(filepath.Join(d.state, "run", "scratch", "*", ".env"))
			if err != nil || len(places) != 1 {
				t.Fatalf("Glob(placeholder) = %q, %v; want one", places, err)
			}
			if err := tt.outside(places[0]); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Write(soon(t), []byte("\n")); err != nil {
			t.Fatal(err)
		}
		_, _, v := output(t, p)
		for i, e := range tt.want {
			tt.want[i].Path = strings.Replace(e.Path, "/proj", dir, 1)
		}
		if diff := cmp.Diff(tt.want, v.Denies); diff != "" {
			t.Errorf("absent: %s, %q: denies of the verdict differ (-want +got):\n%s", tt.absent, tt.script, diff)
		}
		var log string
		eventually(t, "the end is audited", func() bool { // it comes after the final event
			log = readFile(t, filepath.Join(d.state, "audit.log"))
			return strings.Contains(log, `"ended"`)
		})
		if got := strings.Contains(log, `"denies":[{"path":"`+dir+`/.env","change":`); got != (len(tt.want) > 0) {
			t.Errorf("absent: %s, %q: audit log tells of it: %v; want %v", tt.absent, tt.script, got, len(tt.want) > 0)
		}
		if got := strings.Contains(log, `"absent":"check","level":"best_effort"`); got != (tt.absent == "check") {
			t.Errorf("absent: %s: best_effort in the record: %v; want only with check", tt.absent, got)
		}
	}
}

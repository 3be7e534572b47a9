package session

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pinfold/proto"
)

func TestBrief(t *testing.T) {
	long := strings.Repeat("é", maxShown)
	tests := []struct {
		cmd  []string
		args int
		last string
	}{
		{[]string{"ls", "-l"}, 2, "-l"},
		{nil, 0, ""},
		{[]string{"echo", long}, 2, " bytes)"},
		{[]string{"echo", long, "a", "b"}, 3, "… (+2 arguments)"},
		{slices.Repeat([]string{""}, 1<<16), 0, " arguments)"},
	}
	for _, tt := range tests {
		got := brief(tt.cmd)
		size := len(strings.Join(got, `","`))
		if size > maxShown+100 || !utf8.ValidString(strings.Join(got, "")) {
			t.Errorf("brief(%d arguments) = %d bytes; want at most %d, and whole characters", len(tt.cmd), size, maxShown+100)
		}
		if tt.args > 0 && len(got) != tt.args {
			t.Errorf("brief(%.20q…) = %d arguments; want %d", tt.cmd, len(got), tt.args)
		}
		if len(got) > 0 && !strings.HasSuffix(got[len(got)-1], tt.last) {
			t.Errorf("brief(%.20q…) ends in %q; want %q", tt.cmd, got[len(got)-1], tt.last)
		}
	}
}

// statuses are n processes of age n to 1 with the longest commands that are shown.
func statuses(n int) []proto.ProcStatus {
	argv := brief([]string{strings.Repeat("\x01", 1<<20)})
	all := make([]proto.ProcStatus, n)
	for i := range all {
		all[i] = proto.ProcStatus{ProcID: fmt.Sprint(i), Argv: argv, Cmd: proto.CommandLine(argv), State: proto.StateStopped}
		if i%8 == 0 {
			all[i].State = proto.StateRunning
		}
	}
	return all
}

func TestFitLeavesFinishedOnesOutFirst(t *testing.T) {
	for _, n := range []int{0, 1, fewProcs, 100, 5000} {
		shown, omitted := fit(statuses(n))
		if len(shown)+omitted != n || n <= fewProcs && omitted > 0 {
			t.Errorf("fit(%d) = %d shown and %d omitted; want all of %d", n, len(shown), omitted, n)
		}
		if _, err := proto.Append(nil, &proto.ListResp{Procs: shown, Omitted: omitted}); err != nil {
			t.Errorf("Append of what fit(%d) shows = %v; want a frame", n, err)
		}
		if n != 100 {
			continue
		}
		for i := 0; i < n; i += 8 {
			if id := fmt.Sprint(i); !slices.ContainsFunc(shown, func(p proto.ProcStatus) bool { return p.ProcID == id }) {
				t.Errorf("fit(%d) leaves out %s, which runs; want finished ones left out first", n, id)
			}
		}
		if shown[len(shown)-1].ProcID != "99" {
			t.Errorf("fit(%d) leaves out the newest; want the oldest left out", n)
		}
	}
}

package policy

import "testing"

// BenchmarkDecide is what the decision adds to each start: candidates and answer.
func BenchmarkDecide(b *testing.B) {
	p := mustParse(b, DefaultSource())
	h := testHost()
	r := Request{Cmd: []string{"ls", "-l"}, Cwd: "/home/agent/p", Env: map[string]string{"LANG": "C"}}
	facts := h.look(p.Candidates(agent(), r))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Decide(agent(), r, facts); err != nil {
			b.Fatal(err)
		}
	}
}

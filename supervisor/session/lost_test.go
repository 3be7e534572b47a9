package session

import (
	"testing"

	"pinfold/proto"
	"pinfold/supervisor/relay"
)

// TestRequestsAboutALostProcess: between the start of a daemon and the verdict of a process
// whose pen went while there was none, its client may ask for anything.
func TestRequestsAboutALostProcess(t *testing.T) {
	s := bare()
	out, err := relay.EmptyOutput(relay.OutputConfig{Dir: t.TempDir(), Keep: relay.MinKeep})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := out.Close(); err != nil {
			t.Error(err)
		}
	})
	p := &process{id: "p", req: &proto.SpawnReq{}, state: Ending, start: &started{out: out}}
	s.procs = map[string]*process{"p": p}
	got := make(chan proto.Response, 1)
	answer := func(m proto.Message, _ func()) { got <- m.(proto.Response) } //nolint:errcheck // each is one
	for _, ask := range []struct {
		what string
		do   func()
		want proto.Code
	}{
		{"resize", func() { s.resize(&proto.ResizeReq{ProcID: "p", Rows: 1, Cols: 1}, answer) }, proto.CodeProcDead},
		{"write", func() { s.write(&proto.WriteReq{ProcID: "p", Data: "x"}, &call{}, answer) }, proto.CodeProcDead},
		{"stats", func() { s.stats(p, &proto.StatsReq{ProcID: "p"}, answer) }, proto.CodeInternal},
	} {
		ask.do()
		if r := (<-got).Result(); r.Code != ask.want {
			t.Errorf("%s = %q; want %q", ask.what, r.Code, ask.want)
		}
	}
	s.wg.Wait()
}

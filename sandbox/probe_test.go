package sandbox

import (
	"context"
	"testing"
)

func TestProbeHere(t *testing.T) {
	f, err := Probe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s %s %d", f.Kernel, f.Machine, f.LandlockABI)
	for _, g := range f.Findings {
		t.Logf("%+v", g)
	}
	t.Logf("%+v", f.Lacks())
}

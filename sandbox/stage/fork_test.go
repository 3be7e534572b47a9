package stage

import (
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"pinfold/sandbox"
	"pinfold/test/testkit"
)

// A view is made read-only while other launches fork: a child that held a copy of a
// descriptor that can write would make that EBUSY.
func TestViewIsShutWhileOthersFork(t *testing.T) {
	testkit.NeedRoot(t)
	// The first start of a process tries out pidfds with a child that no lock knows of: package os.
	if err := exec.CommandContext(t.Context(), "true").Run(); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := exec.CommandContext(t.Context(), "true").Run(); err != nil {
					t.Errorf("true = %v; want nil", err)
					return
				}
			}
		})
	}
	f := &sandbox.Profile{}
	for i := range 20 {
		f.View = append(f.View, sandbox.Entry{Kind: sandbox.EntryFile, Path: "/etc/f" + strconv.Itoa(i), Data: "x\n"})
	}
	trees := testTrees(t)
	for i := range 200 {
		v, err := buildView(trees, f)
		if err != nil {
			t.Fatalf("view %d beside forks = %v; want it built", i, err)
		}
		if err := v.close(); err != nil {
			t.Fatal(err)
		}
	}
}

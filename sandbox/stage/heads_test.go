package stage

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
)

func TestHeadsAreReadAnewAfterAChange(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tool")
	write := func(data string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(data), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var h heads
	look := func() sandbox.Fact {
		t.Helper()
		l, dir, err := h.look(sandbox.LookRequest{Programs: []string{name}}, linux.Peer{UID: uint32(os.Geteuid())})
		linux.CloseAll(dir)
		if err != nil {
			t.Fatal(err)
		}
		return l.Programs[0]
	}
	write("#!/bin/sh\n")
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if f := look(); f.Interp != "/bin/sh" || len(h.all) != 0 {
		t.Errorf("look() of a file just written = %q, %d remembered; want /bin/sh, none", f.Interp, len(h.all))
	}
	time.Sleep(settled + 100*time.Millisecond)
	for range 2 {
		if f := look(); f.Kind != sandbox.KindScript || f.Interp != "/bin/sh" || len(h.all) != 1 {
			t.Errorf("look() = %q %q, %d remembered; want script /bin/sh, 1", f.Kind, f.Interp, len(h.all))
		}
	}
	write("#!/bin/ls\n") // of the same size
	if err := os.Chtimes(name, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	if f := look(); f.Interp != "/bin/ls" {
		t.Errorf("look() after a change with the old mtime = %q; want /bin/ls", f.Interp)
	}
}

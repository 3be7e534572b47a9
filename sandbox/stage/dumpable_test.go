package stage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pinfold/sandbox"
)

func TestUntraceable(t *testing.T) {
	for text, refused := range map[string]bool{"0\n": false, "2\n": false, "1\n": true, "": true} {
		file := filepath.Join(t.TempDir(), "knob")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		err = untraceable(f)
		if step, ok := errors.AsType[*sandbox.StepError](err); (err != nil) != refused || text == "1\n" && (!ok || step.Hint == "") {
			t.Errorf("untraceable(%q) = %v; want refused %v, with a hint", text, err, refused)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	f, err := openSuidDumpable()
	if err != nil {
		t.Fatalf("openSuidDumpable() = %v; want the host's knob", err)
	}
	defer func() { _ = f.Close() }()
	for range 2 { // the same descriptor tells what holds now, each time
		if n, err := f.ReadAt(make([]byte, 8), 0); n < 2 {
			t.Errorf("ReadAt(%s) = %d, %v; want its value", suidDumpable, n, err)
		}
	}
}

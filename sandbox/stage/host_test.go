package stage

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pinfold/sandbox"
	"pinfold/test/testkit"
)

func TestClosedFiles(t *testing.T) {
	testkit.NeedRoot(t)
	dir := t.TempDir()
	open := "kmsg"
	for _, name := range sandbox.MaskedFiles() {
		mode := os.FileMode(0o440)
		switch name {
		case "kcore":
			continue // absent
		case open:
			mode = 0o404
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(dir, "keys"), 0, 1); err != nil {
		t.Fatal(err)
	}
	got, err := closedFiles(dir)
	if err != nil || !slices.Contains(got, "kcore") || !slices.Contains(got, "timer_list") || slices.Contains(got, open) || slices.Contains(got, "keys") {
		t.Errorf("closedFiles(%s) = %v, %v; want all but kmsg, which others may read, and keys, which a group of others may", dir, got, err)
	}
}

func TestFindHost(t *testing.T) {
	h, err := findHost()
	if err != nil || h.lastCap < 40 || h.lastCap > 63 {
		t.Errorf("findHost() = %+v, %v; want the last capability between 40 and 63", h, err)
	}
}

package attack

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestNewFileFollowsNoLink: whoever may make files beside it leads it nowhere.
func TestNewFileFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	victim, name := filepath.Join(dir, "victim"), filepath.Join(dir, "name")
	if err := errors.Join(os.WriteFile(victim, []byte("precious"), 0o600), os.Symlink(victim, name)); err != nil {
		t.Fatal(err)
	}
	if err := newFile(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("newFile(a link) = %v; want that it is there", err)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
		t.Errorf("what the link leads to = %q, %v; want it untouched", b, err)
	}
	if info, err := os.Stat(victim); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode of what the link leads to = %v, %v; want 0600", info.Mode(), err)
	}
}

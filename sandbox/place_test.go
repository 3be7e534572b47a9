package sandbox

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMakePlace(t *testing.T) {
	for _, rel := range []string{"a", "work", "src/app", "süß/é", "日本", "a/b/c/d"} {
		dir := t.TempDir()
		for range 2 { // again changes nothing
			if err := MakePlace(dir, rel, os.Getuid(), os.Getgid()); err != nil {
				t.Errorf("MakePlace(%q) = %v; want nil", rel, err)
			}
		}
		if info, err := os.Stat(filepath.Join(dir, rel)); err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
			t.Errorf("MakePlace(%q) made %v, %v; want a directory of mode 0700", rel, info, err)
		}
	}
	if err := MakePlace("/does/not/exist", "", 0, 0); err != nil {
		t.Errorf("MakePlace of nothing = %v; want nil", err)
	}
}

func TestMakePlaceFollowsNoLinkOut(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "src")); err != nil {
		t.Fatal(err)
	}
	if err := MakePlace(dir, "src/app", os.Getuid(), os.Getgid()); err == nil {
		t.Error("MakePlace through a link that leads out = nil; want an error")
	}
	if _, err := os.Lstat(filepath.Join(outside, "app")); err == nil {
		t.Error("MakePlace made a directory outside of the home; want none")
	}
}

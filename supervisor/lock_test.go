package supervisor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestLockState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	first, err := lockState(dir, 0)
	if err != nil {
		t.Fatalf("lockState(absent) = %v; want nil", err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("lockState(absent) made %v, %v; want a directory of mode 0700", info, err)
	}
	if _, err := lockState(dir, 0); err == nil || !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())) {
		t.Errorf("lockState(held) = %v; want an error that names the holder", err)
	}
	if err := first.release(); err != nil {
		t.Errorf("release() = %v; want nil", err)
	}
	again, err := lockState(dir, 0)
	if err != nil {
		t.Fatalf("lockState(released) = %v; want nil", err)
	}
	if err := again.release(); err != nil {
		t.Errorf("release() = %v; want nil", err)
	}
}

func TestLockStateRefuses(t *testing.T) {
	dir := t.TempDir()
	open, plain := filepath.Join(dir, "open"), filepath.Join(dir, "plain")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o775); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{open: "others may write", plain: "not a directory", filepath.Join(plain, "x"): "cannot create"} {
		if l, err := lockState(at, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lockState(%s) = %v, %v; want an error with %q", at, l, err, want)
		}
	}
}

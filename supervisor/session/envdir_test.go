package session

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWithEnvDir(t *testing.T) {
	dir := t.TempDir()
	write := func(name, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("TOKEN", "s3cret\n")
	write("LINES", "a\nb\n\n")
	write(".hidden", "x")
	got, err := withEnvDir([]string{"A=1", "TOKEN=from the policy"}, dir)
	if want := []string{"A=1", "LINES=a\nb\n", "TOKEN=s3cret"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("withEnvDir() = %q, %v; want %q", got, err, want)
	}
	if got, err := withEnvDir([]string{"A=1"}, ""); err != nil || len(got) != 1 {
		t.Errorf("withEnvDir(no directory) = %q, %v; want the environment as it was", got, err)
	}
	write("BAD", "se\x00cret")
	if _, err := withEnvDir(nil, dir); err == nil || !strings.Contains(err.Error(), `"BAD"`) || strings.Contains(err.Error(), "cret") {
		t.Errorf("withEnvDir(NUL) = %v; want an error that names the file and not its value", err)
	}
	if _, err := withEnvDir(nil, filepath.Join(dir, "none")); err == nil {
		t.Error("withEnvDir(absent directory) = nil; want an error")
	}
}

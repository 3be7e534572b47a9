// Package leftover checks, as the last test of a run, that nothing stayed on the
// host. It never cleans up: what is left is a fault of the code that left it.
package leftover

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold/test/testkit"
)

// baseline names the environment variable with the file of what was there before
// the first test.
const baseline = "PINFOLD_TEST_BASELINE"

// TestWriteBaseline notes what is on the host before the first test.
func TestWriteBaseline(t *testing.T) {
	path, ok := os.LookupEnv(baseline)
	if !ok {
		path = t.TempDir() + "/baseline"
	}
	lines, err := testkit.Leftovers()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestNothingLeft fails with each process, cgroup, mount and file of ours that was
// not there before the first test.
func TestNothingLeft(t *testing.T) {
	before := map[string]bool{}
	if path, ok := os.LookupEnv(baseline); ok {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			before[strings.TrimSpace(line)] = true
		}
	}
	// What is ending may take a moment: the kernel removes a killed process when
	// its parent has looked.
	var left []string
	deadline := time.Now().Add(5 * time.Second)
	for {
		now, err := testkit.Leftovers()
		if err != nil {
			t.Fatal(err)
		}
		left = slices.DeleteFunc(now, func(line string) bool { return before[line] })
		if len(left) == 0 || time.Now().After(deadline) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, line := range left {
		t.Errorf("left on the host: %s", line)
	}
}

// Package testkit is what tests share: gates that leave a test out only with a
// proof that the host lacks something, a count of what is left on the host, and
// the built binaries. It owns no test and never weakens one.
package testkit

import (
	"fmt"
	"os"
	"testing"
)

// skipsFile names the environment variable with the file that collects what was
// left out; test/run prints it.
const skipsFile = "PINFOLD_TEST_SKIPS"

// LeaveOut skips a test. The reason is the proof: what was tried and what the
// host answered, or the name of the program that is missing. It is collected so
// that the end of the run lists it.
func LeaveOut(tb testing.TB, reason string) {
	tb.Helper()
	if path, ok := os.LookupEnv(skipsFile); ok {
		if err := appendLine(path, tb.Name()+": "+reason); err != nil {
			tb.Fatal(err)
		}
	}
	tb.Skip(reason)
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(f, line); err != nil {
		return fmt.Errorf("cannot note what was left out: %w", err)
	}
	return f.Close()
}

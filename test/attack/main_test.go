package attack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"pinfold/test/testkit"
)

const binVar = "PINFOLD_TEST_ATTACK_BIN"

// TestMain builds the programs once.
func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	// Outside of /tmp, which is private in every pen.
	dir, err := os.MkdirTemp("/srv", "pinfold-test-attack-")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return m.Run(), nil // the tests say what they need
	}
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := testkit.Build(ctx, filepath.Join("..", ".."), dir); err != nil {
		return 1, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // other uids run the programs too
		return 1, err
	}
	if err := os.Setenv(binVar, dir); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// built says where the programs are.
func built(t *testing.T) string {
	t.Helper()
	testkit.NeedRoot(t)
	testkit.NeedCgroup(t)
	bin, ok := os.LookupEnv(binVar)
	if !ok {
		testkit.LeaveOut(t, "needs /srv, where programs that pens may run are put")
	}
	return bin
}

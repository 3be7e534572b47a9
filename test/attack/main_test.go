package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"testing"

	"pinfold/test/testkit"
)

const (
	insideArg = "attack" // first argument of this program when it is the attacker
	binVar    = "PINFOLD_TEST_ATTACK_BIN"
)

// order is what the attacker is told, as its second argument.
type order struct {
	Names  []string `json:"names"`  // attacks to try; empty: all
	Port   int      `json:"port"`   // of a listener on the host's loopback
	Name   string   `json:"name"`   // of an abstract socket on the host
	Socket string   `json:"socket"` // path of the daemon's socket
	Self   string   `json:"self"`   // path of this program
}

// result is one line of the attacker's output. An empty Err says that it succeeded.
type result struct {
	Name string `json:"name"`
	Err  string `json:"err"`
}

// TestMain builds the programs once, or is the attacker.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == insideArg {
		if err := attackAll(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func attackAll(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, n := range o.Names {
		wanted[n] = true
	}
	debug.SetGCPercent(-1) // system calls get addresses that nobody else keeps
	out := json.NewEncoder(os.Stdout)
	for _, a := range attacks(o) {
		if len(wanted) > 0 && !wanted[a.name] {
			continue
		}
		r := result{Name: a.name}
		if err := a.try(); err != nil {
			r.Err = errnoName(err)
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	return nil
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
	if err := copyOfSelf(filepath.Join(dir, "attacker")); err != nil {
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

func copyOfSelf(path string) error {
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

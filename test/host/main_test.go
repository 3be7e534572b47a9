package host

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"pinfold/test/testkit"
)

const (
	binVar    = "PINFOLD_TEST_HOST_BIN"    // where the programs are
	helperVar = "PINFOLD_TEST_HOST_HELPER" // what this program is to do in place of tests
	helperArg = "PINFOLD_TEST_HOST_ARG"
)

// maxDaemons is how many tests, each with its daemon, run at once.
const maxDaemons = 4

// TestMain builds the programs once, or is a helper that a test has started.
func TestMain(m *testing.M) {
	if name, ok := os.LookupEnv(helperVar); ok {
		if err := helper(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "pinfold-test-bin-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := testkit.Build(ctx, filepath.Join("..", ".."), dir); err != nil {
		return 1, err
	}
	if err := copyOfSelf(filepath.Join(dir, "helper")); err != nil {
		return 1, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // other uids run the programs too
		return 1, err
	}
	if err := os.Setenv(binVar, dir); err != nil {
		return 1, err
	}
	if n, err := strconv.Atoi(flag.Lookup("test.parallel").Value.String()); err == nil && n > maxDaemons {
		if err := flag.Set("test.parallel", strconv.Itoa(maxDaemons)); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

// copyOfSelf puts this program where every uid can run it.
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

// program is the path of one of the built programs.
func program(t *testing.T, name string) string {
	t.Helper()
	dir, ok := os.LookupEnv(binVar)
	if !ok {
		t.Fatalf("the programs were not built: %s is not set", binVar)
	}
	return filepath.Join(dir, name)
}

// helper does what a test needs done by another uid.
func helper(name string) error {
	arg, _ := os.LookupEnv(helperArg)
	switch name {
	case "join": // be a caller: standard input and output go to the socket and back
		return join(arg)
	case "ordinary": // run a program as an ordinary user
		return becomeOrdinary(arg)
	case "reach": // try every way at a process of another's
		return reachOut(arg)
	case "swap": // let names change places
		return swapAround(arg)
	case "trace": // tell a process's system calls, or kill it at one
		return traceCalls(arg)
	case "write": // write into a passed connection, which is descriptor 3
		_, err := os.NewFile(3, "passed").WriteString(arg)
		return err
	}
	return fmt.Errorf("cannot be helper %q: there is none", name)
}

func join(path string) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.(*net.UnixConn).CloseWrite() //nolint:errcheck // a unix dial gives this type
	})
	_, err = io.Copy(os.Stdout, conn)
	_ = os.Stdout.Close()
	_ = os.Stdin.Close()
	return err
}

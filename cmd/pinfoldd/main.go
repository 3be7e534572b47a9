// Command pinfoldd is the daemon: it reads its configuration, builds the rooms and
// hands them signals. It holds no logic of its own.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args, os.Environ(), os.Stderr)
	stop()
	os.Exit(code)
}

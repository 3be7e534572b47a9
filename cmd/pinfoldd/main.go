// Command pinfoldd is the daemon: it reads its configuration, builds the rooms and
// hands them signals. It holds no logic of its own.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

func main() {
	runtime.GOMAXPROCS(processors(os.Getenv("GOMAXPROCS"), runtime.GOMAXPROCS(0)))
	signal.Ignore(syscall.SIGPIPE) // who reads the log may go at any time; then a line is lost, and not the daemon
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	_ = stop // it would end sessions that are left to the next daemon
	os.Exit(run(ctx, os.Args, os.Environ(), os.Stdout, os.Stderr))
}

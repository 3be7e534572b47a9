// Command pinfold-stage is the small privileged launcher that pinfoldd starts
// beside itself. It owns nothing but the call into package stage, and is of no
// use to people: it speaks to its daemon over descriptor 3.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"pinfold/sandbox/stage"
)

func main() {
	signal.Ignore(syscall.SIGPIPE) // it still has to clean up when nobody reads its errors any more
	os.Exit(stage.Run(context.Background(), os.Args[1:], os.Stderr))
}

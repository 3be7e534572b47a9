// Command pinfold is the command line of Pinfold: it runs commands in pens, looks
// after them, and shows what policy decides. It owns flags, help, printing and exit
// codes; it never decides, and never confines anything itself.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

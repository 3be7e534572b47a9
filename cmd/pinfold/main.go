// Command pinfold is the command line of Pinfold: it runs commands in pens, looks
// after them, and shows what policy decides. It owns flags, help, printing and exit
// codes; it never decides, and never confines anything itself.
package main

import (
	"context"
	"fmt"
	"os"

	"pinfold/attack"
)

func main() {
	if done, err := attack.Main(os.Args[1:], os.Stdin, os.Stdout); done {
		if err != nil {
			fmt.Fprintln(os.Stderr, "pinfold:", err)
			os.Exit(exitFailed)
		}
		return
	}
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

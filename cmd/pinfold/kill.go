package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"pinfold/proto"

	"github.com/spf13/cobra"
)

func (c *cli) killCommand() *cobra.Command {
	var o operator
	var name string
	cmd := &cobra.Command{
		Use:   "kill [flags] PROC…",
		Short: "End or signal processes",
		Long: "SIGTERM, the default, starts the grace period of the profile; then, and at once with SIGKILL, everything that\n" +
			"the process has started is killed too. Prints what became of each.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			sig, err := signalNamed(name)
			if err != nil {
				return err
			}
			return o.with(cmd.Context(), c, func(l *link) error { return c.kill(cmd.Context(), l, sig, args) })
		},
	}
	o.flags(c, cmd)
	cmd.Flags().StringVarP(&name, "signal", "s", string(proto.SigTerm), "`SIGNAL` to send")
	return cmd
}

func (c *cli) kill(ctx context.Context, l *link, sig proto.Signal, ids []string) error {
	var failed error
	for _, id := range ids {
		status, err := l.Kill(ctx, id, sig)
		if err != nil {
			failed = errors.Join(failed, errorf("cannot kill %s: %s", plain(id), refusalText(err)))
			continue
		}
		if err := c.printf("%s %s\n", plain(id), status); err != nil {
			return err
		}
	}
	if failed != nil {
		return fail(exitFailed, "pinfold ps", failed)
	}
	return nil
}

// signalNamed finds a signal by its name, with or without SIG, in either case.
func signalNamed(name string) (proto.Signal, error) {
	want := strings.ToUpper(name)
	if !strings.HasPrefix(want, "SIG") {
		want = "SIG" + want
	}
	known := proto.Signals()
	if !slices.Contains(known, proto.Signal(want)) {
		names := make([]string, 0, len(known))
		for _, s := range known {
			names = append(names, string(s))
		}
		return "", fail(exitUsage, "one of "+strings.Join(names, " "), errorf("cannot use signal %q", name))
	}
	return proto.Signal(want), nil
}

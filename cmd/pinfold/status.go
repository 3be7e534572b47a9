package main

import (
	"context"
	"fmt"
	"strings"

	"pinfold/proto"

	"github.com/spf13/cobra"
)

func (c *cli) statusCommand() *cobra.Command {
	var o operator
	cmd := &cobra.Command{
		Use:   "status [PROC]",
		Short: "Show one process, or how the daemon is",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.with(cmd.Context(), c, func(l *link) error {
				if len(args) == 0 {
					return c.daemonStatus(cmd.Context(), l, &o)
				}
				return c.status(cmd.Context(), l, &o, args[0])
			})
		},
	}
	o.flags(c, cmd)
	return cmd
}

func (c *cli) daemonStatus(ctx context.Context, l *link, o *operator) error {
	up, err := l.Ping(ctx)
	if err != nil {
		return refusal(err, "systemctl status pinfoldd")
	}
	procs, err := l.List(ctx, "")
	if err != nil {
		return refusal(err, "pinfold policy show PROFILE")
	}
	running := 0
	for _, p := range procs {
		if p.State == proto.StateRunning {
			running++
		}
	}
	if o.asJSON {
		return c.json(map[string]any{"up_seconds": up.Seconds(), "running": running, "processes": len(procs)})
	}
	return c.printf("up %s\n%d running, %d in all\n", ageText(proto.SecondsOf(up)), running, len(procs))
}

func (c *cli) status(ctx context.Context, l *link, o *operator, id string) error {
	r, err := l.Status(ctx, id)
	if err == nil && r.Proc == nil {
		err = errorf("cannot show %s: %s", plain(id), r.Status)
	}
	if err != nil {
		return fail(exitFailed, "pinfold ps", errorf("cannot show %s: %s", plain(id), refusalText(err)))
	}
	if o.asJSON {
		return c.json(r.Proc)
	}
	return c.printf("%s", statusText(*r.Proc, r.Status))
}

// statusText has one line for each thing that is known.
func statusText(p proto.ProcStatus, status proto.Status) string {
	argv := make([]string, 0, len(p.Argv))
	for _, a := range p.Argv {
		argv = append(argv, plain(a))
	}
	rows := [][]string{
		{"process", p.ProcID},
		{"command", strings.Join(argv, " ")},
		{"status", string(status)},
		{"state", stateText(p)},
		{"pid", fmt.Sprint(p.PID)},
		{"profile", plain(p.Profile)},
		{"age", ageText(p.Age)},
	}
	if p.SessionID != "" {
		rows = append(rows, []string{"session", p.SessionID})
	}
	if len(p.Labels) > 0 {
		rows = append(rows, []string{"labels", plain(strings.Join(p.Labels, " "))})
	}
	if u := p.Usage; u != nil {
		rows = append(rows,
			[]string{"cpu", fmt.Sprintf("%.2fs user, %.2fs system", u.User, u.System)},
			[]string{"memory", fmt.Sprintf("%.1f MiB at most", float64(u.MemoryPeak)/(1<<20))})
	}
	if n := p.Output; n != nil {
		rows = append(rows, []string{"output", fmt.Sprintf("%d bytes, %d of errors, %d dropped", n.Stdout, n.Stderr, n.Dropped)})
	}
	return table(rows)
}

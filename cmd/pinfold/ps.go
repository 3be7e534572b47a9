package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"pinfold/proto"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
)

// operator holds the flags of commands that look after processes.
type operator struct {
	socket string
	asJSON bool
}

func (o *operator) flags(c *cli, cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.socket, "socket", c.defaultSocket(), "the daemon's socket `PATH`")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON, one object a line")
}

// with opens an operator's session, does something in it and ends it.
func (o *operator) with(ctx context.Context, c *cli, do func(*link) error) error {
	l, err := c.dial(ctx, o.socket, proto.RoleOperator)
	if err != nil {
		return err
	}
	return errors.Join(do(l), l.part(ctx))
}

func (c *cli) psCommand() *cobra.Command {
	var o operator
	var label string
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the processes that this user may see",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.with(cmd.Context(), c, func(l *link) error { return c.ps(cmd.Context(), l, &o, label) })
		},
	}
	o.flags(c, cmd)
	cmd.Flags().StringVar(&label, "label", "", "only those with `LABEL`")
	return cmd
}

func (c *cli) ps(ctx context.Context, l *link, o *operator, label string) error {
	procs, err := l.List(ctx, label)
	if err != nil {
		return refusal(err, "pinfold policy show PROFILE")
	}
	if o.asJSON {
		for _, p := range procs {
			if err := c.json(p); err != nil {
				return err
			}
		}
		return nil
	}
	return c.printf("%s", processTable(procs))
}

func processTable(procs []proto.ProcStatus) string {
	rows := [][]string{{"PROC", "UID", "PID", "STATE", "AGE", "PROFILE", "COMMAND"}}
	for _, p := range procs {
		uid := "-"
		if p.UID != nil {
			uid = strconv.FormatUint(uint64(*p.UID), 10)
		}
		rows = append(rows, []string{p.ProcID, uid, strconv.Itoa(p.PID), stateText(p), ageText(p.Age), plain(p.Profile), plain(p.Cmd)})
	}
	return table(rows)
}

func stateText(p proto.ProcStatus) string {
	text := string(p.State)
	if p.Verdict != nil {
		text += " (" + string(p.Verdict.Cause)
		if p.ExitCode != nil {
			text += " " + strconv.Itoa(*p.ExitCode)
		}
		text += ")"
	}
	return text
}

// ageText is a span of time in its largest two units.
func ageText(s proto.Seconds) string {
	d := time.Duration(float64(s) * float64(time.Second)).Round(time.Second)
	if d >= time.Hour {
		d = d.Round(time.Minute)
		return strings.TrimSuffix(d.String(), "0s")
	}
	return d.String()
}

// json prints a value as one line of JSON.
func (c *cli) json(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.printf("%s\n", data)
}

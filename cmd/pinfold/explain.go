package main

import (
	"context"
	"errors"
	"slices"

	"pinfold/proto"

	"github.com/spf13/cobra"
)

func (c *cli) explainCommand() *cobra.Command {
	var r request
	cmd := &cobra.Command{
		Use:   "explain [flags] -- COMMAND…",
		Short: "Say whether policy allows a command, and why; nothing is started",
		Long: "Exit 0 for yes, 1 for no. With --fs and --net it says too what the command's pen would let through, and which\n" +
			"control decides; that a path could not be read or a host not be reached is a no.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.explain(cmd.Context(), &r, args)
		},
	}
	r.flags(c, cmd)
	cmd.Flags().StringArrayVar(&r.fs, "fs", nil, "say whether the command could read and write `PATH`; may be repeated")
	cmd.Flags().StringArrayVar(&r.net, "net", nil, "say whether the command could connect to `HOST:PORT`; may be repeated")
	return cmd
}

func (c *cli) explain(ctx context.Context, r *request, argv []string) (err error) {
	spawn, err := r.spawn(argv)
	if err != nil {
		return err
	}
	l, err := c.dialOrStart(ctx, r.socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.part(ctx)) }()
	answer, err := l.Explain(ctx, spawn)
	if err != nil {
		if f, ok := errors.AsType[*failure](refusal(err, "pinfold policy check")); ok {
			f.code = exitFailed
			return f
		}
		return err
	}
	if !answer.Allowed {
		c.exit = exitFailed
	}
	list, err := r.accesses(answer)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(list, func(a access) bool { return !a.Read }) {
		c.exit = exitFailed
	}
	if !r.asJSON {
		return c.printf("%s%s", explainText(answer, c.style(c.stdout)), accessText(list))
	}
	if err := c.message(answer); err != nil || len(list) == 0 {
		return err
	}
	line, err := accessLine(list)
	if err != nil {
		return err
	}
	return c.printf("%s", line)
}

// explainText is yes or no, the rule, and the daemon's own words.
func explainText(a *proto.ExplainResp, s style) string {
	text := s.green("yes")
	if !a.Allowed {
		text = s.red("no")
	}
	if a.Profile != "" {
		text += ", by profile " + plain(a.Profile)
	}
	text += "\n"
	rows := [][]string{}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{"  " + name, plain(value)})
		}
	}
	add("rule", a.Rule)
	add("workspace", a.Workspace)
	if d := a.Denial; d != nil {
		add("object", d.Object)
		add("nearest", d.Nearest)
		add("who can change it", d.Who)
	}
	add("hint", a.Hint)
	text += table(rows)
	if a.Text != "" {
		text += legible(a.Text)
		if text[len(text)-1] != '\n' {
			text += "\n"
		}
	}
	return text
}

package main

import (
	"context"
	"errors"

	"pinfold/proto"

	"github.com/spf13/cobra"
)

func (c *cli) explainCommand() *cobra.Command {
	var r request
	cmd := &cobra.Command{
		Use:   "explain [flags] -- COMMAND…",
		Short: "Say whether policy allows a command, and why; nothing is started",
		Long:  "Exit 0 for yes, 1 for no.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.explain(cmd.Context(), &r, args)
		},
	}
	r.flags(c, cmd)
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
	if r.asJSON {
		return c.message(answer)
	}
	return c.printf("%s", explainText(answer, c.style(c.stdout)))
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

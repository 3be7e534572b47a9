package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (c *cli) policyCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE…]",
		Short: "Say whether policy files load, and what in them deserves a look",
		Long: "Reads the files as one policy, in order; without files those of /etc/pinfold, else the embedded one.\n" +
			"Prints every problem with its place (exit 1), or the findings and each profile's exposure (exit 0).",
		RunE: func(_ *cobra.Command, files []string) error { return c.policyCheck(files) },
	}
}

func (c *cli) policyCheck(files []string) error {
	p, sources, err := loadPolicy(files)
	if err != nil {
		return err
	}
	s := c.style(c.stdout)
	for _, finding := range p.Check() {
		if err := c.printf("%s\n", s.yellow(finding.String())); err != nil {
			return err
		}
	}
	rows := [][]string{{"PROFILE", "EXPOSURE", "BECAUSE"}}
	for _, e := range p.Exposures() {
		because := "nothing beyond the base view"
		if len(e.Reasons) > 0 {
			because = e.Reasons[0]
			if more := len(e.Reasons) - 1; more > 0 {
				because += fmt.Sprintf(" (and %d more)", more)
			}
		}
		rows = append(rows, []string{e.Profile, fmt.Sprintf("%.1f", e.Score), because})
	}
	if err := c.printf("%s", table(rows)); err != nil {
		return err
	}
	for _, source := range sources {
		if err := c.printf("%s %s\n", s.green("loads:"), source.Name); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"strings"

	"pinfold/policy"

	"github.com/spf13/cobra"
)

func (c *cli) policyShowCommand() *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use:   "show PROFILE",
		Short: "Print a profile with everything it inherits and every default",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return c.policyShow(files, args[0])
		},
	}
	cmd.Flags().StringArrayVar(&files, "policy", nil, "policy `FILE`; may be repeated")
	return cmd
}

func (c *cli) policyShow(files []string, profile string) error {
	p, _, err := loadPolicy(files)
	if err != nil {
		return err
	}
	text, err := p.Show(profile)
	if err != nil {
		return fail(exitFailed, "one of: "+strings.Join(p.Profiles(), ", "), err)
	}
	return c.printf("%s", text)
}

func (c *cli) policySchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of policy files, for editors",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			data, err := policy.Schema()
			if err != nil {
				return err
			}
			return c.printf("%s\n", strings.TrimRight(string(data), "\n"))
		},
	}
}

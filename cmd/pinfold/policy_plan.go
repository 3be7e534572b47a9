package main

import "github.com/spf13/cobra"

func (c *cli) policyPlanCommand() *cobra.Command { return &cobra.Command{Use: "plan"} }

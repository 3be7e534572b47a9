package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"pinfold/policy"

	"github.com/spf13/cobra"
)

const (
	policyFile = "/etc/pinfold/policy.yaml"
	policyDir  = "/etc/pinfold/policy.d"
)

func (c *cli) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, show and plan policy files",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.policyCheckCommand(), c.policyShowCommand(), c.policyPlanCommand(), c.policySchemaCommand())
	return cmd
}

// policySources reads the named files; without names those of the host, and
// without those the embedded policy.
func policySources(files []string) ([]policy.Source, error) {
	if len(files) == 0 {
		found, err := hostPolicyFiles()
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return []policy.Source{policy.DefaultSource()}, nil
		}
		files = found
	}
	sources := make([]policy.Source, 0, len(files))
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, fail(exitFailed, "ls -l "+name, errorf("cannot read policy %s: %w", name, cause(err)))
		}
		sources = append(sources, policy.Source{Name: name, Data: data})
	}
	return sources, nil
}

// hostPolicyFiles lists the host's policy files in the order in which they are read.
func hostPolicyFiles() ([]string, error) {
	if _, err := os.Stat(policyFile); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, errorf("cannot look at policy %s: %w", policyFile, cause(err))
	}
	more, err := filepath.Glob(filepath.Join(policyDir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	slices.Sort(more)
	return append([]string{policyFile}, more...), nil
}

// loadPolicy reads and parses; all problems come at once.
func loadPolicy(files []string) (*policy.Policy, []policy.Source, error) {
	sources, err := policySources(files)
	if err != nil {
		return nil, nil, err
	}
	p, err := policy.Parse(sources...)
	if err != nil {
		return nil, nil, fail(exitFailed, "man 5 pinfold-policy", errorf("cannot load policy:\n%w", err))
	}
	return p, sources, nil
}

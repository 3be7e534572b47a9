package main

import (
	"runtime"
	"runtime/debug"

	"pinfold/proto"

	"github.com/spf13/cobra"
)

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of the protocol",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return c.printf("pinfold %s (%s, %s/%s)\nprotocol %s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, proto.Version)
		},
	}
}

// version is the module's version, or the commit that it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "devel"
}

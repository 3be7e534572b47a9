package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// serviceSocket is where the service listens.
const serviceSocket = "/run/pinfold/pinfold.sock"

// defaultSocket is the service's socket; for an ordinary user of a host without
// one that where the user's own daemon listens.
func (c *cli) defaultSocket() string {
	dir := c.getenv("XDG_RUNTIME_DIR")
	if os.Geteuid() == 0 || !filepath.IsAbs(dir) {
		return serviceSocket
	}
	if _, err := os.Lstat(serviceSocket); err == nil {
		return serviceSocket
	}
	return filepath.Join(dir, "pinfold", "pinfold.sock")
}

// cli is what every command has: its environment and standard streams.
type cli struct {
	env    []string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	exit   int // what run returns when no command fails
}

// run carries out one command line and returns its exit code.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &cli{env: env, stdin: stdin, stdout: stdout, stderr: stderr}
	root := c.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return c.exit
	}
	return c.report(cmd, err)
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "pinfold",
		Short:         "Run commands in pens that a policy describes",
		Long:          "Pinfold runs each command in a pen of its own: what it may see, use and do is what a policy file says.\n\n" + exitTable(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	for _, command := range []func() *cobra.Command{
		c.runCommand, c.attachCommand, c.logsCommand, c.connectCommand, c.psCommand, c.killCommand, c.statusCommand, c.explainCommand,
		c.policyCommand, c.reloadCommand, c.auditCommand, c.doctorCommand, c.versionCommand,
	} {
		root.AddCommand(command())
	}
	return root
}

// getenv returns the last value of a name, empty if there is none.
func (c *cli) getenv(name string) string {
	for _, kv := range slices.Backward(c.env) {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// printf writes to standard output; a failed write is an error of the command.
func (c *cli) printf(format string, args ...any) error {
	if _, err := fmt.Fprintf(c.stdout, format, args...); err != nil {
		return fmt.Errorf("cannot write standard output: %w", err)
	}
	return nil
}

// report prints an error and returns the exit code that belongs to it.
func (c *cli) report(cmd *cobra.Command, err error) int {
	code, hint := classify(err)
	if code == exitUsage && hint == "" {
		hint = cmd.CommandPath() + " --help"
	}
	if (cmd.Name() == "run" || cmd.Name() == "attach") && (code == exitFailed || code == exitUsage) {
		code = exitRunFailed
	}
	s := c.style(c.stderr)
	text := s.red(cmd.CommandPath()+":") + " " + legible(err.Error()) + "\n"
	if hint != "" {
		text += s.dim("  try: ") + legible(hint) + "\n"
	}
	// Nothing is left to do where even standard error cannot be written.
	_, _ = io.WriteString(c.stderr, text)
	return code
}

// classify finds the exit code and hint of an error. What cobra says of a command
// line comes as plain text.
func classify(err error) (code int, hint string) {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.code, f.hint
	}
	if strings.HasPrefix(err.Error(), "unknown command") || strings.Contains(err.Error(), "arg(s)") {
		return exitUsage, ""
	}
	return exitFailed, ""
}

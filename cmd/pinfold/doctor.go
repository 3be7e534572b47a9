package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"pinfold/sandbox"

	"github.com/spf13/cobra"
)

// optionalControls are those that the default policy does not require.
func optionalControls() []sandbox.Control {
	return []sandbox.Control{sandbox.ControlIO, sandbox.ControlUserNS}
}

// checkup is what doctor says about one control.
type checkup struct {
	Control   sandbox.Control `json:"control"`
	Required  bool            `json:"required"` // by the defaults of a policy
	Available bool            `json:"available"`
	BlockedBy string          `json:"blocked_by,omitempty"`
	NetHost   string          `json:"net_host,omitempty"` // what blocks it with net: host alone
	Fix       string          `json:"fix,omitempty"`
}

// diagnosis is everything that doctor says.
type diagnosis struct {
	Kernel      string    `json:"kernel"`
	Machine     string    `json:"machine"`
	LandlockABI int       `json:"landlock_abi"`
	Controls    []checkup `json:"controls"`
}

func (c *cli) doctorCommand() *cobra.Command {
	var asJSON bool
	var a attackFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say which controls this host has, what blocks the others, and how to fix it",
		Long: "Tries every control on this host. Exit 1 if one that policies require by default is missing.\n" +
			"With --attack it tries instead to break out of a pen of a profile by the attacks of the test suite that harm\n" +
			"nothing, and says of each whether the pen held. Exit 1 if one got through.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !a.attack {
				return c.doctor(cmd.Context(), asJSON)
			}
			if asJSON {
				a.format = formatJSON
			}
			return c.doctorAttack(cmd.Context(), a)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	a.flags(c, cmd)
	return cmd
}

func (c *cli) doctor(ctx context.Context, asJSON bool) error {
	features, err := c.probe(ctx)
	if err != nil {
		return fail(exitFailed, "pinfold doctor, as the user that the daemon runs as", errorf("cannot probe this host: %w", err))
	}
	limits, err := c.cgroupLacks()
	if err != nil {
		return fail(exitFailed, "pinfold doctor, as the user that the daemon runs as", errorf("cannot try control groups: %w", err))
	}
	d := diagnose(features, addLacks(features.Lacks(), limits))
	if asJSON {
		data, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			return err
		}
		if err := c.printf("%s\n", data); err != nil {
			return err
		}
	} else if err := c.printf("%s", d.text(c.style(c.stdout))); err != nil {
		return err
	}
	if slices.ContainsFunc(d.Controls, checkup.missing) {
		c.exit = exitFailed
	}
	return nil
}

// probe finds out what this host can do, as a daemon of this user's would.
func (c *cli) probe(ctx context.Context) (sandbox.Features, error) {
	if os.Geteuid() == 0 {
		return sandbox.Probe(ctx)
	}
	self, err := os.Executable()
	if err != nil {
		return sandbox.Features{}, err
	}
	stage, err := sandbox.FindStage(self)
	if err != nil {
		return sandbox.Features{}, err
	}
	return sandbox.ProbeStage(ctx, stage)
}

func (k checkup) missing() bool { return k.Required && !k.Available }

// diagnose says of every control whether it is among those that are lacking.
func diagnose(f sandbox.Features, lacks []sandbox.Lack) diagnosis {
	d := diagnosis{Kernel: f.Kernel, Machine: f.Machine, LandlockABI: f.LandlockABI}
	for _, control := range sandbox.Controls() {
		k := checkup{Control: control, Required: !slices.Contains(optionalControls(), control), Available: true}
		if i := slices.IndexFunc(lacks, func(l sandbox.Lack) bool { return l.Control == control }); i >= 0 {
			k.Available, k.BlockedBy, k.Fix = false, lacks[i].Why, lacks[i].Fix
		}
		if control == sandbox.ControlLandlock && k.Available {
			k.NetHost = sandbox.Unscoped(f.LandlockABI)
		}
		d.Controls = append(d.Controls, k)
	}
	return d
}

func (d diagnosis) text(s style) string {
	var out strings.Builder
	fmt.Fprintf(&out, "kernel %s %s, Landlock ABI %d\n", d.Kernel, d.Machine, d.LandlockABI)
	rows := make([][]string, 0, len(d.Controls))
	for _, k := range d.Controls {
		row := []string{string(k.Control), "available"}
		if k.NetHost != "" {
			row[1] += ", but with net: host blocked by " + k.NetHost
		}
		if !k.Available {
			row[1] = "blocked by " + k.BlockedBy
			if !k.Required {
				row[1] += " (not required by default)"
			}
		}
		rows = append(rows, row)
	}
	for i, line := range strings.Split(strings.TrimSuffix(table(rows), "\n"), "\n") {
		k := d.Controls[i]
		fmt.Fprintf(&out, "%s  %s\n", k.mark(s), line)
		if k.Fix != "" && !k.Available {
			fmt.Fprintf(&out, "      fix: %s\n", k.Fix)
		}
	}
	return out.String()
}

// mark is two letters for the eye.
func (k checkup) mark(s style) string {
	switch {
	case k.Available:
		return s.green("ok")
	case k.Required:
		return s.red("no")
	}
	return s.yellow("--")
}

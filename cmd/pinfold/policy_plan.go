package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"

	"github.com/spf13/cobra"

	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/sandbox"
	"pinfold/supervisor/session"
)

// planFlags say for whom and what to plan.
type planFlags struct {
	files   []string
	user    string
	profile string
	cwd     string
	asJSON  bool
}

// plan is what policy plan shows.
type plan struct {
	Grant   *policy.Grant `json:"grant"`
	Spec    sandbox.Spec  `json:"spec"`
	Limits  cgroup.Limits `json:"limits"`
	Program string        `json:"program"`
}

func (c *cli) policyPlanCommand() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan [flags] -- COMMAND…",
		Short: "Print the exact system calls that would confine a command",
		Long: "Decides by the policy, plans, and compiles what the launcher would: the program of the pen's PID 1 and of the\n" +
			"command before its first instruction. Files are looked at as the present user; nothing is started.",
		RunE: func(cmd *cobra.Command, args []string) error { return c.policyPlan(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.files, "policy", nil, "policy `FILE`; may be repeated")
	flags.StringVar(&f.user, "user", "", "plan for the caller `NAME`; default the present user")
	flags.StringVar(&f.profile, "profile", "", "plan with profile `NAME`")
	flags.StringVar(&f.cwd, "cwd", "", "plan for working `DIR`ectory")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON object, with the grant and the spec")
	return cmd
}

func (c *cli) policyPlan(ctx context.Context, f planFlags, argv []string) error {
	spawn, err := (&request{profile: f.profile, cwd: f.cwd}).spawn(argv)
	if err != nil {
		return err
	}
	p, _, err := loadPolicy(f.files)
	if err != nil {
		return err
	}
	who, err := callerNamed(f.user)
	if err != nil {
		return err
	}
	for _, w := range p.Bind(idsOf(p.Names())) {
		c.warn("policy plan", errors.New(w.String()))
	}
	ask := policy.Request{Cmd: spawn.Cmd, Cwd: spawn.Cwd, Profile: spawn.Profile}
	grant, err := p.Decide(who, ask, lookAt(p.Candidates(who, ask)))
	if denied, ok := errors.AsType[*policy.Denied](err); ok {
		return fail(exitFailed, denied.Advice(), denied)
	}
	if err != nil {
		return err
	}
	made, err := planOf(ctx, grant, who, p.Dynamic())
	if err != nil {
		return err
	}
	if f.asJSON {
		data, err := json.MarshalIndent(made, "", "  ")
		if err != nil {
			return err
		}
		return c.printf("%s\n", data)
	}
	return c.printf("# %s, by %s\n# limits: %s\n%s", grant.Program.Path, grant.Rule, limitsText(made.Limits), made.Program)
}

// placeOf is where a session of its own would put a grant.
func placeOf(grant *policy.Grant, who policy.Caller, dynamic policy.DynamicRange) (session.Place, error) {
	place := session.Place{
		Name: who.Name, UID: grant.RunAs.UID, GID: grant.RunAs.GID, DiskUID: who.UID, DiskGID: who.GID,
		Cgroup: fmt.Sprintf("callers/%d/SESSION/PROCESS", who.UID), Stdin: sandbox.StdinPipe,
		Work: sandbox.Identity(grant.Workspace.Dir.ID),
	}
	if grant.RunAs.Kind == policy.RunAsDynamic {
		// The first of the range is PID 1's.
		place.Name, place.UID, place.GID = "agent", dynamic.First+1, dynamic.First+1
	}
	if grant.Exec == policy.ExecListed {
		programs := make([]string, 0, len(grant.Commands))
		for _, c := range grant.Commands {
			programs = append(programs, c.Path)
		}
		listed, err := sandbox.Closure(programs)
		if err != nil {
			return session.Place{}, errorf("cannot find what the listed programs need: %w", err)
		}
		place.Listed = listed
	}
	return place, nil
}

// planOf plans a grant as a session of its own would get it.
func planOf(ctx context.Context, grant *policy.Grant, who policy.Caller, dynamic policy.DynamicRange) (plan, error) {
	place, err := placeOf(grant, who, dynamic)
	if err != nil {
		return plan{}, err
	}
	spec, limits := session.Plan(grant, place)
	features, err := sandbox.Probe(ctx)
	if err != nil {
		return plan{}, errorf("cannot probe this host: %w", err)
	}
	program, err := sandbox.Preview(spec.Profile, features, sandbox.JoinProcs)
	if err != nil {
		return plan{}, err
	}
	return plan{Grant: grant, Spec: spec, Limits: limits, Program: program.String()}, nil
}

func limitsText(l cgroup.Limits) string {
	return fmt.Sprintf("memory %d bytes, swap %d bytes, pids %d, cpu %g cores, io weight %d (≤ 0: none; swap < 0: none)",
		l.Memory, l.Swap, l.Pids, l.CPU, l.IOWeight)
}

// callerNamed is a user of this host as policy sees it; empty: the present one.
func callerNamed(name string) (policy.Caller, error) {
	u, err := user.Current()
	if name != "" {
		u, err = user.Lookup(name)
	} else if err != nil {
		return callerUnnamed()
	}
	if err != nil {
		return policy.Caller{}, fail(exitFailed, "getent passwd", errorf("cannot find user %q: %w", name, err))
	}
	groups, err := u.GroupIds()
	if err != nil {
		return policy.Caller{}, errorf("cannot list the groups of user %q: %w", u.Username, err)
	}
	caller := policy.Caller{Name: u.Username, Home: u.HomeDir, UnitKnown: true}
	ids := []*uint32{&caller.UID, &caller.GID}
	for i, text := range append([]string{u.Uid, u.Gid}, groups...) {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return policy.Caller{}, errorf("cannot use id %q of user %q: %w", text, u.Username, err)
		}
		if i < len(ids) {
			*ids[i] = uint32(id)
			continue
		}
		caller.GIDs = append(caller.GIDs, uint32(id))
	}
	return caller, nil
}

// callerUnnamed is the present user where this host has no entry for it.
func callerUnnamed() (policy.Caller, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return policy.Caller{}, errorf("cannot list the groups of uid %d: %w", os.Getuid(), err)
	}
	caller := policy.Caller{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), UnitKnown: true}
	for _, g := range groups {
		caller.GIDs = append(caller.GIDs, uint32(g))
	}
	return caller, nil
}

// idsOf looks the policy's names up; one that this host does not know is left out,
// and Bind warns of it.
func idsOf(names policy.Names) policy.IDs {
	ids := policy.IDs{Users: map[string]policy.User{}, Groups: map[string]uint32{}}
	for _, name := range names.Users {
		if c, err := callerNamed(name); err == nil {
			ids.Users[name] = policy.User{UID: c.UID, GID: c.GID, Home: c.Home}
		}
	}
	for _, name := range names.Groups {
		g, err := user.LookupGroup(name)
		if err != nil {
			continue
		}
		if id, err := strconv.ParseUint(g.Gid, 10, 32); err == nil {
			ids.Groups[name] = uint32(id)
		}
	}
	return ids
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"pinfold/attack"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/proto/client"
	"pinfold/sandbox"
	"pinfold/supervisor/session"

	"github.com/spf13/cobra"
)

// attackLimit is how long all attacks together may take unless --limit says so; a pen
// that does not end by then is a failure of the command.
const attackLimit = 30 * time.Second

// Formats of the report.
const (
	formatText  = "text"
	formatJSON  = "json"
	formatJUnit = "junit"
)

// attackFlags are those of doctor that belong to --attack.
type attackFlags struct {
	attack  bool
	profile string
	format  string
	socket  string
	files   []string
	limit   time.Duration
}

func (a *attackFlags) flags(c *cli, cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&a.attack, "attack", false, "attack a pen from inside and say whether it held")
	f.StringVar(&a.profile, "profile", "", "attack the pen of profile `NAME`; default the caller's first")
	f.StringVar(&a.format, "format", formatText, "print the attacks as `FORMAT`: text, json or junit")
	f.StringVar(&a.socket, "socket", c.defaultSocket(), "the daemon's socket `PATH`; a private daemon is started where there is none, or where it may not start this program")
	f.StringArrayVar(&a.files, "policy", nil, "attack under this policy `FILE` with a private daemon; may be repeated")
	f.DurationVar(&a.limit, "limit", attackLimit, "fail when the attacks have not ended after `DURATION`")
}

// ground is a pen under attack: the session in which it is made, and what was decided.
type ground struct {
	*link
	report  attackReport
	profile string
	self    string
	socket  string
	spec    sandbox.Profile
	grant   *policy.Grant
	record  sandbox.Enforcement
	dir     string       // of the targets
	remove  func() error // takes a copy of this program away; nil: there is none
}

func (c *cli) doctorAttack(ctx context.Context, a attackFlags) (err error) {
	show, ok := reportFormats()[a.format]
	if !ok {
		return usage(errorf("cannot use --format %q: want text, json or junit", a.format))
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, a.limit)
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // what was made is taken away again
	defer stop()
	g, err := c.groundFor(ctx, a)
	if err != nil {
		return err
	}
	if err := errors.Join(g.attackAll(ctx), g.part(ctx), g.clear()); err != nil {
		return fail(exitFailed, "pinfold doctor", errorf("cannot attack a pen of profile %s: %w", g.profile, err))
	}
	g.report.Seconds = float64(time.Since(began).Milliseconds()) / 1000
	text, err := show(g.report, c.style(c.stdout))
	if err != nil {
		return err
	}
	if slices.ContainsFunc(g.report.Attacks, func(o attackOutcome) bool { return o.Result == attack.Broken }) {
		c.exit = exitFailed
	}
	return c.printf("%s", text)
}

// groundFor opens a session in which this program may be started: with the daemon that
// runs where its policy lists this program, else with a private one whose policy is the
// same and lists it besides.
func (c *cli) groundFor(ctx context.Context, a attackFlags) (*ground, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, errorf("cannot find this program: %w", err)
	}
	if _, err := os.Lstat(a.socket); len(a.files) == 0 && !errors.Is(err, fs.ErrNotExist) {
		l, err := c.dial(ctx, a.socket, proto.RoleAgent)
		if err != nil {
			return nil, err
		}
		g := &ground{link: l, profile: a.profile, self: self, socket: a.socket}
		why, err := g.decide(ctx)
		if why == "" && err == nil {
			g.report.Daemon = a.socket
			return g, nil
		}
		if err = errors.Join(err, g.part(ctx)); err != nil {
			return nil, err
		}
	}
	return c.privateGround(ctx, a, self)
}

// privateGround starts a private daemon with the policy that suits an attack.
func (c *cli) privateGround(ctx context.Context, a attackFlags, self string) (_ *ground, err error) {
	p, _, err := loadPolicy(a.files)
	if err != nil {
		return nil, err
	}
	self, remove, err := visible(self)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove())
		}
	}()
	s, err := suit(p, a.profile, self)
	if err != nil {
		return nil, err
	}
	daemon, err := c.startDaemonWith(ctx, s.source)
	if err != nil {
		return nil, err
	}
	l, err := c.dial(ctx, daemon.socket, proto.RoleAgent)
	if err != nil {
		return nil, errors.Join(err, daemon.stop()) //nolint:contextcheck // also after what ended ctx
	}
	l.daemon = daemon
	g := &ground{link: l, profile: suitName, self: self, socket: daemon.socket, remove: remove}
	g.report.Daemon, g.report.Added = "private", s.added
	why, err := g.decide(ctx)
	if err == nil && why != "" {
		err = errors.New(why)
	}
	if err != nil {
		return nil, errors.Join(fail(exitFailed, "install pinfold where pens may see it, such as /usr/bin", errorf("cannot put the attacker into a pen of profile %s: %w", s.profile, err)), g.part(ctx))
	}
	g.report.Profile = s.profile
	return g, nil
}

func (g *ground) clear() error {
	if g.remove == nil {
		return nil
	}
	return g.remove()
}

// decide asks what the policy says of this program, and plans as the daemon will. A
// refusal is a text.
func (g *ground) decide(ctx context.Context) (string, error) {
	answer, err := g.Explain(ctx, g.spawn(attack.InsideArg))
	if refused, ok := errors.AsType[*client.Error](err); ok {
		return refused.Message, nil
	}
	if err != nil {
		return "", err
	}
	if !answer.Allowed {
		return answer.Text, nil
	}
	e, err := session.DecodeExplanation(answer.Explanation)
	if err == nil && e.Grant == nil {
		err = errors.New("the daemon's answer has no grant")
	}
	if err != nil {
		return "", err
	}
	who, err := callerNamed("")
	if err != nil {
		return "", err
	}
	place, err := placeOf(e.Grant, who, policy.DynamicRange{})
	if err != nil {
		return "", err
	}
	spec, _ := session.Plan(e.Grant, place)
	g.spec, g.grant, g.report.Profile = spec.Profile, e.Grant, answer.Profile
	return "", nil
}

func (g *ground) spawn(args ...string) proto.Spawn {
	return proto.Spawn{Cmd: append([]string{g.self}, args...), Profile: g.profile, StdinMode: proto.StdinPipe}
}

// attackAll makes the targets, then the attacks that apply, in one pen.
func (g *ground) attackAll(ctx context.Context) (err error) {
	if g.dir, err = os.MkdirTemp("", "pinfold-attack-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(g.dir)) }()
	targets, err := attack.NewTargets(g.dir, g.self, nil)
	defer func() { err = errors.Join(err, targets.Close()) }()
	if err != nil {
		return err
	}
	scene := targets.Scene
	scene.Socket = g.socket
	if g.daemon != nil {
		scene.State = filepath.Join(g.daemon.dir, "state")
	} else {
		scene.State = "/var/lib/pinfold"
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if scene.Stage, err = sandbox.FindStage(program); err != nil {
		return err
	}
	if scene.Daemon, err = findDaemon(); err != nil {
		return err
	}
	other, err := g.neighbour(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.CloseStdin(context.WithoutCancel(ctx))) }()
	scene.Neighbour = other.PID
	reasons := map[string]string{}
	for _, a := range attack.Table() {
		if a.Harmful != "" {
			continue
		}
		if reasons[a.ID] = g.without(a); reasons[a.ID] == "" {
			scene.IDs = append(scene.IDs, a.ID)
		}
	}
	told, err := g.inside(ctx, scene)
	if err != nil {
		return err
	}
	g.judge(told, reasons)
	return nil
}

// neighbour starts a process in another pen of the same profile; what the kernel shows
// of it is what the one under attack has.
func (g *ground) neighbour(ctx context.Context) (*client.Process, error) {
	p, err := g.Spawn(ctx, g.spawn(attack.NeighbourArg))
	if err != nil {
		return nil, errorf("cannot start a neighbour: %s", refusalText(err))
	}
	if err := json.Unmarshal(p.Spawned.Enforcement, &g.record); err != nil {
		return nil, errorf("cannot read the enforcement record: %w", err)
	}
	var said bytes.Buffer
	for said.String() != attack.Ready+"\n" {
		e, err := p.Next(ctx)
		if err != nil {
			return nil, errorf("cannot hear the neighbour: %w", err)
		}
		if e.Final() {
			return nil, errorf("cannot start a neighbour: it ended, and said %q", said.String())
		}
		said.Write(e.Data.Text)
	}
	return p, nil
}

// inside starts the attacker and collects what it was told. What it has left behind
// when it is over counts as a success of the attack that left it.
func (g *ground) inside(ctx context.Context, scene attack.Scene) (map[string]string, error) {
	order, err := json.Marshal(scene)
	if err != nil {
		return nil, err
	}
	p, err := g.Spawn(ctx, g.spawn(attack.InsideArg, string(order)))
	if err != nil {
		return nil, errorf("cannot start the attacker: %s", refusalText(err))
	}
	var out, said bytes.Buffer
	verdict, err := p.Copy(ctx, &out, &said)
	if err != nil {
		return nil, errorf("cannot hear the attacker: %w", err)
	}
	g.report.Spawns = 2
	if verdict == nil || verdict.Code != 0 {
		g.report.End = "the attacker did not end well: " + said.String()
	}
	told := map[string]string{}
	lines := bufio.NewScanner(&out)
	for lines.Scan() {
		var r attack.Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, errorf("cannot read what the attacker says: %w", err)
		}
		told[r.ID] = r.Told
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return told, attack.Settle(told, scene.Word)
}

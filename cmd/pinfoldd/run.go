package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"pinfold/policy"
	"pinfold/sandbox"
	"pinfold/supervisor"
	"pinfold/systemd"
)

// Defaults of the flags.
const (
	defaultSocket = "/run/pinfold/pinfold.sock"
	defaultPolicy = "/etc/pinfold/policy.yaml"
	defaultState  = "/var/lib/pinfold"
)

// Exit codes.
const (
	exitOK    = 0
	exitFail  = 1
	exitUsage = 2
)

// options are the flags.
type options struct {
	socket, policy, state, cgroup, stage string
	readyFD                              int
	version, sweep                       bool
	takeOver                             string
}

func parse(args, env []string, stderr io.Writer) (options, error) {
	var o options
	socket, state := defaults(env, os.Geteuid())
	f := flag.NewFlagSet("pinfoldd", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.socket, "socket", socket, "listen on this Unix `path`; a socket passed by systemd comes first")
	f.StringVar(&o.policy, "policy", "", "read the policy from this `file` and from policy.d/*.yaml beside it (default "+defaultPolicy+" if it is there, else the embedded policy)")
	f.StringVar(&o.state, "state", state, "keep state in this `directory`; made with mode 0700 if absent")
	f.StringVar(&o.cgroup, "cgroup", "", "make cgroups below this `path` (default: the own cgroup, or one below it)")
	f.StringVar(&o.stage, "stage", "", "start this pinfold-stage `program` (default: beside pinfoldd, else in libexec)")
	f.IntVar(&o.readyFD, "ready-fd", -1, "write READY and a newline to this open `descriptor` when requests are taken")
	f.BoolVar(&o.sweep, "sweep", false, "end what a daemon of this state directory that was killed has left, print it, and exit")
	f.StringVar(&o.takeOver, "take-over", "", "take over from the daemon that serves, and its socket, which is `systemd or own`: for that daemon's use (see SIGUSR2)")
	f.BoolVar(&o.version, "version", false, "print the version and exit")
	f.Usage = func() {
		_, _ = fmt.Fprintf(stderr, "Usage: pinfoldd [flags]\n\nThe Pinfold daemon: runs agents' commands in pens, in the foreground.\n\nExit codes: 0 ended on request, 1 failed, 2 bad usage.\n\nFlags:\n")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("cannot take argument %q: pinfoldd has flags only", f.Arg(0))
	}
	if o.takeOver != "" && o.takeOver != fromSystemd && o.takeOver != fromDaemon {
		return o, fmt.Errorf("cannot use --take-over %s: %s or %s", o.takeOver, fromSystemd, fromDaemon)
	}
	return o, nil
}

// run is the daemon from flags to exit code.
func run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	o, err := parse(args[1:], env, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "pinfoldd: %v\n", err)
		return exitUsage
	case o.version:
		_, _ = fmt.Fprintf(stderr, "pinfoldd %s\n", supervisor.Version())
		return exitOK
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level(env)}))
	hup, usr2 := notified(syscall.SIGHUP), notified(syscall.SIGUSR2)
	var before *predecessor
	if o.takeOver != "" {
		before = newPredecessor()
	}
	c, err := config(o, args, env, log, stderr)
	if err == nil {
		err = sandbox.KeepSecrets()
	}
	if before != nil {
		c.TakeOver = before.tell
		if err != nil {
			err = before.tell(err)
		}
	}
	if err == nil && o.sweep {
		err = sweep(ctx, c, stdout)
	} else if err == nil {
		c.Reload, c.Upgrade = hup, usr2
		err = supervisor.Serve(ctx, c)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "pinfoldd: %v\n", err)
		return exitFail
	}
	return exitOK
}

// notified is where a signal arrives. It is caught before the state directory's pid file
// names this process.
func notified(sig os.Signal) chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, sig)
	return c
}

// sweep ends what an earlier daemon has left, whatever the policy says now.
func sweep(ctx context.Context, c supervisor.Config, stdout io.Writer) error {
	read := c.Policy
	c.Policy = func() ([]policy.Source, error) {
		list, err := read()
		if err == nil {
			_, err = policy.Parse(list...)
		}
		if err != nil {
			c.Log.Warn("cannot read the policy, the embedded one will do to end what is left", slog.Any("error", err))
			return []policy.Source{policy.DefaultSource()}, nil
		}
		return list, nil
	}
	ended, err := supervisor.Sweep(ctx, c)
	if len(ended) == 0 && err == nil {
		ended = []string{"nothing: no daemon has left anything there"}
	}
	for _, line := range ended {
		if _, werr := fmt.Fprintf(stdout, "ended %s\n", line); werr != nil {
			return errors.Join(err, fmt.Errorf("cannot tell what was ended: %w", werr))
		}
	}
	return err
}

func config(o options, args, env []string, log *slog.Logger, stderr io.Writer) (supervisor.Config, error) {
	c := supervisor.Config{Socket: o.socket, State: o.state, Cgroup: o.cgroup, Stage: o.stage, Log: log, StageLog: stderr}
	err := passed(&c, o, env)
	if err != nil {
		return c, err
	}
	if err := makeSocketDir(o.socket, env); err != nil {
		return c, fmt.Errorf("cannot make the socket's directory: %w; choose another with --socket", err)
	}
	for _, p := range []*string{&c.Socket, &c.State} {
		if *p, err = filepath.Abs(*p); err != nil {
			return c, fmt.Errorf("cannot use path %q: %w", *p, err)
		}
	}
	if c.Stage == "" {
		self, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("cannot find pinfold-stage: %w", err)
		}
		if c.Stage, err = sandbox.FindStage(self); err != nil {
			return c, err
		}
	}
	c.Policy = func() ([]policy.Source, error) { return sources(o.policy, log) }
	manager, err := systemd.Dial(env)
	if err != nil {
		log.Warn("cannot tell the service manager how this daemon is, going on", slog.Any("error", err))
	}
	if o.takeOver != "" {
		o.readyFD = -1 // it was the first daemon's
	}
	c.Ready = func() error { return ready(manager, o.readyFD) }
	c.Replaced = func(pid int) error { return replaced(manager, pid) }
	c.Ending = func() error { return manager.Notify(systemd.Stopping) }
	c.Alive = func() error { return manager.Notify(systemd.Alive) }
	every, err := systemd.Watchdog(env)
	c.AliveEvery = every / 2 // sd_watchdog_enabled(3) recommends half
	if err != nil {
		return c, err
	}
	c.Successor, err = successor(c, args, env)
	return c, err
}

// passed takes the listening socket that systemd or the daemon before this one has passed.
func passed(c *supervisor.Config, o options, env []string) error {
	if o.takeOver != "" {
		c.Listener, c.OwnFile = inherited(sandbox.SuccessorSocket, "socket"), o.takeOver == fromDaemon
		return nil
	}
	listeners, err := systemd.Listeners(env)
	if err != nil {
		return err
	}
	if len(listeners) > 1 {
		return fmt.Errorf("cannot use %d listening sockets: one is needed; see pinfoldd.socket", len(listeners))
	}
	if len(listeners) == 1 {
		c.Listener = listeners[0]
	}
	return nil
}

// sources reads the policy's files: the named one or the default, then policy.d
// beside it in name order.
func sources(file string, log *slog.Logger) ([]policy.Source, error) {
	named := file != ""
	if !named {
		file = defaultPolicy
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) && !named {
		log.Info("no policy file, the embedded default policy holds", slog.String("looked_for", file))
		return []policy.Source{policy.DefaultSource()}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read policy %q: %w", file, err)
	}
	list := []policy.Source{{Name: file, Data: b}}
	more, err := filepath.Glob(filepath.Join(filepath.Dir(file), "policy.d", "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("cannot list policy.d: %w", err)
	}
	slices.Sort(more)
	for _, name := range more {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("cannot read policy %q: %w", name, err)
		}
		list = append(list, policy.Source{Name: name, Data: b})
	}
	return list, nil
}

// ready tells whoever waits for it that requests are taken.
func ready(manager *systemd.Manager, fd int) error {
	err := manager.Notify(systemd.Ready)
	if fd < 0 {
		return err
	}
	f := os.NewFile(uintptr(fd), "ready")
	if f == nil {
		return errors.Join(err, fmt.Errorf("cannot use descriptor %d for --ready-fd: it is not open", fd))
	}
	_, werr := f.WriteString("READY\n")
	return errors.Join(err, werr, f.Close())
}

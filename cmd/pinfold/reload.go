package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pinfold/supervisor/outcome"
)

// Limits of a reload.
const (
	reloadLimit = 2 * time.Minute       // for the daemon, or its successor, to answer
	reloadEvery = 50 * time.Millisecond // between two looks at the answer
)

// reload holds the flags of the command reload.
type reload struct {
	state  string
	binary bool
}

func (c *cli) reloadCommand() *cobra.Command {
	var r reload
	cmd := &cobra.Command{
		Use:   "reload [flags]",
		Short: "Have the daemon read its policy again, or hand over to its new program",
		Long: "Asks the daemon of a state directory, by a signal, and prints what came of it. With --binary a daemon that is started\n" +
			"from the program as it is on disk now takes over: processes go on, and clients come back to their sessions. Where that\n" +
			"one cannot serve, or the policy cannot be taken, the daemon goes on as it was, and the exit status is 1.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.reload(cmd.Context(), &r) },
	}
	cmd.Flags().StringVar(&r.state, "state", c.defaultState(), "the daemon's state directory `DIR`")
	cmd.Flags().BoolVar(&r.binary, "binary", false, "hand over to the program that is on disk now")
	return cmd
}

func (c *cli) reload(ctx context.Context, r *reload) error {
	of, sig, what := outcome.Policy, syscall.SIGHUP, "read its policy again"
	if r.binary {
		of, sig, what = outcome.Binary, syscall.SIGUSR2, "hand over"
	}
	daemon, err := daemonOf(r.state)
	if err != nil {
		return err
	}
	defer func() { _ = daemon.Release() }()
	before, err := settledOutcome(ctx, r.state)
	if err == nil {
		err = daemon.Signal(sig)
	}
	if err != nil {
		return fail(exitFailed, "run it as the daemon's own user, or root", errorf("cannot ask daemon %d to %s: %w", daemon.Pid, what, cause(err)))
	}
	o, err := answered(ctx, r.state, of, before.Count)
	if err != nil {
		return fail(exitFailed, "its log", errorf("cannot learn what became of it: %w", err))
	}
	if o.Error != "" {
		return fail(exitFailed, "", errorf("daemon %d did not %s: %s", daemon.Pid, what, plain(o.Error)))
	}
	if r.binary {
		return c.printf("daemon %d has taken over from %d\n", o.PID, daemon.Pid)
	}
	return c.printf("daemon %d has read its policy\n", o.PID)
}

// daemonOf finds the daemon of a state directory. It holds the lock as long as it lives,
// and its pid stands beside: the process is opened first, so that it is no other later.
func daemonOf(state string) (*os.Process, error) {
	none := func(err error) error {
		return fail(exitFailed, "pinfold reload --state DIR", errorf("cannot find the daemon of %s: %w", plain(state), cause(err)))
	}
	text, err := os.ReadFile(filepath.Join(state, "pinfoldd.pid"))
	if err != nil {
		return nil, none(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return nil, none(fmt.Errorf("pinfoldd.pid holds %q", text))
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil, none(err)
	}
	lock, err := os.OpenFile(filepath.Join(state, "lock"), os.O_RDWR, 0)
	if err != nil {
		return nil, none(err)
	}
	defer func() { _ = lock.Close() }()
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return p, nil
	}
	if err == nil {
		err = errors.New("none is running")
	}
	return nil, none(err)
}

// settledOutcome reads the last answer, once it is whole.
func settledOutcome(ctx context.Context, state string) (o outcome.Outcome, err error) {
	for ctx.Err() == nil {
		if o, err = outcome.Get(state); !errors.Is(err, outcome.ErrUnfinished) {
			return o, err
		}
		pause(ctx, reloadEvery)
	}
	return o, ctx.Err()
}

// answered waits for the first answer to such a signal after count.
func answered(ctx context.Context, state string, of outcome.Of, count int64) (outcome.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, reloadLimit)
	defer cancel()
	for {
		o, err := settledOutcome(ctx, state)
		if err != nil || o.Count > count && o.Of == of {
			return o, err
		}
		pause(ctx, reloadEvery)
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

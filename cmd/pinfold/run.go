package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"pinfold/proto"
	"pinfold/proto/client"

	"github.com/spf13/cobra"
)

func (c *cli) runCommand() *cobra.Command {
	var r request
	var pty bool
	var token, detach string
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND…",
		Short: "Run a command in a pen",
		Long: "Runs one command. Its input and output are those of this program, byte for byte, and so is its exit status.\n" +
			"If the socket exists its daemon runs the command; otherwise a private daemon is started for it alone,\n" +
			"which is a convenience and no boundary.\n" +
			"With --token-file the command outlives this program for a while, if that is killed or left by the keys of\n" +
			"--detach-keys: attach goes on with it.\n\n" + exitTable(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd.Context(), &r, pty, &way{file: token, keys: detach}, args)
		},
	}
	r.flags(c, cmd)
	cmd.Flags().BoolVar(&pty, "pty", false, "give the command a terminal of its own")
	cmd.Flags().StringVar(&token, "token-file", "", "write what attach needs to go on with the session to `FILE`")
	cmd.Flags().StringVar(&detach, "detach-keys", defaultKeys, "with --token-file: `KEYS` that leave the command running")
	return cmd
}

// way is the way back into the session of a run.
type way struct {
	file string // empty: there is none
	keys string
}

// prepare writes the token of the session, and returns the keys that leave it.
func (w *way) prepare(l *link) (keys, error) {
	if w.file == "" {
		return nil, nil
	}
	if l.daemon != nil || l.hello.Resume == nil {
		return nil, fail(exitRunFailed, "pinfold run without --token-file", errors.New("cannot keep a way back: this session ends with its connection"))
	}
	ks, err := keysOf(w.keys)
	if err != nil {
		return nil, err
	}
	return ks, keepToken(w.file, l.hello.Resume.Token)
}

func (c *cli) run(ctx context.Context, r *request, pty bool, w *way, argv []string) (err error) {
	spawn, err := r.spawn(argv)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGWINCH)
	defer signal.Stop(signals)
	l, err := c.dialOrStart(ctx, r.socket)
	if err != nil {
		return err
	}
	detached := false
	defer func() {
		if detached {
			err = errors.Join(err, l.Close())
			return
		}
		err = errors.Join(err, l.part(ctx))
	}()
	leave, err := w.prepare(l)
	if err != nil {
		return err
	}
	tty := &terminal{stdin: c.stdin, stdout: c.stdout}
	if pty {
		spawn.PTY = tty.size()
	}
	p, err := l.Spawn(ctx, spawn)
	if err != nil {
		return c.spawnFailed(r, err)
	}
	if pty {
		if err := tty.raw(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, tty.restore()) }()
	}
	s := &seat{process: p, signals: signals, tty: tty, keys: leave, asJSON: r.asJSON, command: "run"}
	if w.file != "" {
		s.back = comeBack(l.hello.SessionID, w.file, p.ID)
	}
	err = c.attend(ctx, s)
	if detached = errors.Is(err, errDetached); detached {
		return tty.leave(c, "detached; to come back: "+s.back)
	}
	return err
}

// seat is where somebody sits in front of a process.
type seat struct {
	process *client.Process
	signals <-chan os.Signal
	tty     *terminal
	keys    keys // that leave; none: nothing does
	asJSON  bool
	command string
	back    string // the command that goes on with it; empty: none can
}

// comeBack is the command that goes on with a process of a session.
func comeBack(session, token, process string) string {
	return "pinfold attach --session " + session + " --token-file " + token + " " + process
}

// attend feeds the process, passes signals on and writes its output, until its
// final event, or until it is left: errDetached.
func (c *cli) attend(ctx context.Context, s *seat) error {
	p := s.process
	ctx, cancel := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel(nil)
	f := &forwarder{process: p, tty: s.tty, warn: func(err error) { c.warn(s.command, err) }, leave: func() { cancel(errDetached) }}
	stdin := c.stdin
	if len(s.keys) > 0 && isTerminal(stdin) { // a pipe may carry any bytes
		stdin = &keyReader{r: stdin, keys: s.keys}
	}
	// The reader of standard input cannot be waited for: a read of a terminal ends
	// when somebody types. It ends with this program.
	go f.feed(ctx, stdin)
	work.Go(func() { f.signals(ctx, s.signals) })
	verdict, err := c.output(ctx, s)
	if err != nil && errors.Is(context.Cause(ctx), errDetached) {
		return errDetached
	}
	if err != nil {
		return fail(exitFailed, cmp.Or(s.back, "pinfold ps"), errorf("cannot follow %s: %w", p.ID, err))
	}
	c.exit = runCode(verdict)
	c.tell(s.command, verdict)
	return nil
}

// output writes the output of a process as its bytes, or with --json as events.
func (c *cli) output(ctx context.Context, s *seat) (*proto.Verdict, error) {
	p := s.process
	if !s.asJSON {
		return p.Copy(ctx, c.stdout, c.stderr)
	}
	if err := c.message(p.Spawned); err != nil {
		return nil, err
	}
	for {
		e, err := p.Next(ctx)
		if err != nil {
			return nil, err
		}
		if err := c.message(e); err != nil {
			return nil, err
		}
		if e.Final() {
			return e.Verdict, nil
		}
	}
}

// message prints one message of the wire.
func (c *cli) message(m proto.Message) error {
	line, err := proto.Append(nil, m)
	if err != nil {
		return err
	}
	if _, err := c.stdout.Write(line); err != nil {
		return errorf("cannot write standard output: %w", err)
	}
	return nil
}

// spawnFailed prints the refusal itself with --json, and turns it into a failure.
func (c *cli) spawnFailed(r *request, err error) error {
	var refused *client.Error
	if r.asJSON && errors.As(err, &refused) && refused.Response != nil {
		if err := c.message(refused.Response); err != nil {
			return err
		}
	}
	return refusal(err, "pinfold explain -- COMMAND")
}

// tell says how a process ended where its exit code alone would not.
func (c *cli) tell(command string, v *proto.Verdict) {
	if v == nil || v.Cause == proto.CauseExited || v.Cause == proto.CauseSignaled {
		return
	}
	text := string(v.Cause)
	if v.Scope != "" {
		text += " of the " + v.Scope
	}
	if v.Stage != "" {
		text += ", " + v.Stage
	}
	c.warn(command, errorf("the command was ended: %s, after %.1fs", text, float64(v.Usage.Wall)))
}

// warn says something on standard error that does not change the outcome.
func (c *cli) warn(command string, err error) {
	s := c.style(c.stderr)
	_, _ = io.WriteString(c.stderr, fmt.Sprintf("%s %s\n", s.yellow("pinfold "+command+":"), legible(err.Error())))
}

// runCode is the exit code of run for a verdict.
func runCode(v *proto.Verdict) int {
	switch {
	case v == nil, v.Cause == proto.CauseLost, v.Cause == proto.CauseStartFailed:
		return exitRunFailed
	case v.Code < 0:
		return signalBase - v.Code
	case v.Code == 0 && v.Cause != proto.CauseExited:
		// It took its end for an order and left well; it did not do its work.
		return signalBase + int(syscall.SIGTERM)
	}
	return v.Code
}

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"pinfold/proto"
	"pinfold/proto/client"

	"github.com/spf13/cobra"
)

// attachment holds the flags of the command attach.
type attachment struct {
	socket  string
	session string
	token   string // file of the token
	keys    string
	whole   bool
	raw     bool
}

func (c *cli) attachCommand() *cobra.Command {
	var a attachment
	cmd := &cobra.Command{
		Use:   "attach [flags] PROC",
		Short: "Go on with a process of a session, or watch one",
		Long: "Shows the last screenful of a process's output and what follows, until it ends; the exit status is then its own.\n" +
			"With --session and --token-file (as run --token-file has written it) it goes on with that session: what is typed\n" +
			"goes to the process, signals are passed on, and the keys of --detach-keys leave it running for another attach.\n" +
			"Without them it only watches, and may watch any process that ps lists: Ctrl-C ends the watching alone.\n\n" + exitTable(),
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (a.session == "") != (a.token == "") {
				return usage(errors.New("cannot go on with a session: --session and --token-file come together"))
			}
			if a.session == "" {
				return c.watch(cmd.Context(), &a, args[0])
			}
			return c.goOn(cmd.Context(), &a, args[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&a.socket, "socket", c.defaultSocket(), "the daemon's socket `PATH`")
	f.StringVar(&a.session, "session", "", "go on with session `ID`")
	f.StringVar(&a.token, "token-file", "", "`FILE` with the session's token; the next one is written to it")
	f.StringVar(&a.keys, "detach-keys", defaultKeys, "`KEYS` that leave the process running")
	f.BoolVar(&a.whole, "from-start", false, "begin with all output that is kept")
	f.BoolVar(&a.raw, "raw", false, "when watching: write its bytes to a terminal as they are")
	return cmd
}

// watch shows a process to an operator, who never writes to it.
func (c *cli) watch(ctx context.Context, a *attachment, id string) (err error) {
	l, err := c.dial(ctx, a.socket, proto.RoleOperator)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.part(ctx)) }()
	p, cut, err := c.reach(ctx, l.Client, a, id)
	if err != nil {
		return err
	}
	if isTerminal(c.stdin) && p.Attached.Status == proto.StatusRunning {
		c.warn("attach", errors.New("watching: what is typed here does not reach the process; Ctrl-C ends the watching"))
	}
	v := c.viewer("attach", a.raw)
	for {
		e, err := p.Next(ctx)
		if err != nil {
			return fail(exitRunFailed, "pinfold ps", errorf("cannot follow %s: %w", plain(id), err))
		}
		if e.Final() {
			c.exit = runCode(e.Verdict)
			c.tell("attach", e.Verdict)
			return nil
		}
		cut.whole(e)
		if err := v.show(e); err != nil {
			return err
		}
	}
}

// goOn takes a session up again, with a process of it in front.
func (c *cli) goOn(ctx context.Context, a *attachment, id string) (err error) {
	keys, err := keysOf(a.keys)
	if err != nil {
		return err
	}
	token, err := readToken(a.token)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGWINCH)
	defer signal.Stop(signals)
	conn, hello, err := client.Resume(ctx, a.socket, &proto.Handshake{AgentID: "pinfold"}, a.session, token)
	if err != nil {
		if hello == nil {
			return fail(exitRunFailed, "ls -l "+a.socket, err)
		}
		return fail(exitRunFailed, "pinfold ps", errorf("cannot go on with session %s: %s", plain(a.session), refusalText(err)))
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if hello.Resume != nil {
		if err := keepToken(a.token, hello.Resume.Token); err != nil {
			return fail(exitRunFailed, "attach again: the token in the file is still good", err)
		}
	}
	p, _, err := c.reach(ctx, conn, a, id)
	if err != nil {
		return err
	}
	tty := &terminal{stdin: c.stdin, stdout: c.stdout}
	if p.Attached.PTY {
		if err := tty.raw(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, tty.restore()) }()
		if p.Attached.Status == proto.StatusRunning {
			if err := p.Resize(ctx, *tty.size()); err != nil {
				c.warn("attach", errorf("cannot tell the process the size of this terminal: %s", refusalText(err)))
			}
		}
	}
	err = c.attend(ctx, &seat{process: p, signals: signals, tty: tty, keys: keys, command: "attach", back: comeBack(a.session, a.token, id)})
	if errors.Is(err, errDetached) {
		return tty.leave(c, "detached: the process goes on")
	}
	return err
}

// reach attaches to a process: to all that is kept, or to the last screenful, of which
// the beginning may be cut.
func (c *cli) reach(ctx context.Context, conn *client.Client, a *attachment, id string) (*client.Process, *cutLines, error) {
	failed := func(err error) (*client.Process, *cutLines, error) {
		return nil, nil, fail(exitRunFailed, "pinfold ps", errorf("cannot attach to %s: %s", plain(id), refusalText(err)))
	}
	var from client.Offsets
	if !a.whole {
		r, err := conn.Status(ctx, id)
		if err != nil {
			return failed(err)
		}
		if r.Proc != nil && r.Proc.Output != nil {
			size := (&terminal{stdin: c.stdin, stdout: c.stdout}).size()
			screen := int64(size.Rows) * int64(size.Cols)
			from.Stdout = max(0, int64(r.Proc.Output.Stdout)-screen)
			from.Stderr = max(0, int64(r.Proc.Output.Stderr)-screen)
		}
	}
	p, err := conn.Attach(ctx, id, from)
	if err != nil {
		return failed(err)
	}
	return p, &cutLines{stdout: from.Stdout > 0, stderr: from.Stderr > 0}, nil
}

// cutLines says in which streams the line that comes first has no beginning.
type cutLines struct{ stdout, stderr bool }

// whole drops what an event has of a line without a beginning.
func (l *cutLines) whole(e *proto.ReadEvent) {
	cut := &l.stdout
	if e.StreamType == proto.Stderr {
		cut = &l.stderr
	}
	if !*cut || e.Gap != nil {
		return
	}
	_, rest, found := bytes.Cut(e.Data.Text, []byte{'\n'})
	e.Data.Text = rest
	*cut = !found
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"pinfold/proto"
	"pinfold/proto/client"

	"github.com/spf13/cobra"
)

// tailWait is how long logs waits for the rest of a character that is not written as a
// whole: the daemon holds back its beginning.
const tailWait = 200 * time.Millisecond

// logs holds the flags of the command logs.
type logs struct {
	operator
	follow bool
	stdout bool
	stderr bool
	raw    bool
	lines  int // the last so many; below 0: all
}

func (c *cli) logsCommand() *cobra.Command {
	var f logs
	cmd := &cobra.Command{
		Use:   "logs [flags] PROC",
		Short: "Print what a process has written",
		Long: "Prints the output of a process that is kept, also when it has ended: its standard output here, its errors to\n" +
			"standard error. On a terminal, what is not printable is escaped. What was dropped is told on standard error.\n" +
			"The exit status is 0 however the process ended.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.lines > maxLogLines:
				return usage(errorf("cannot print %d lines: it is 0 to %d", f.lines, maxLogLines))
			case f.lines >= 0 && f.asJSON:
				return usage(errorf("cannot print the last lines as events: --tail and --json exclude each other"))
			}
			return f.with(cmd.Context(), c, func(l *link) error { return c.logs(cmd.Context(), l, &f, args[0]) })
		},
	}
	f.flags(c, cmd)
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "go on with what it writes, until it ends")
	cmd.Flags().IntVarP(&f.lines, "tail", "n", -1, "begin with the last `N` lines; below 0 all")
	cmd.Flags().BoolVar(&f.stdout, "stdout", false, "its standard output alone")
	cmd.Flags().BoolVar(&f.stderr, "stderr", false, "its errors alone")
	cmd.Flags().BoolVar(&f.raw, "raw", false, "write its bytes to a terminal as they are")
	return cmd
}

func (c *cli) logs(ctx context.Context, l *link, f *logs, id string) error {
	p, err := l.Attach(ctx, id, client.Offsets{})
	if err != nil {
		return fail(exitFailed, "pinfold ps", errorf("cannot read the output of %s: %s", plain(id), refusalText(err)))
	}
	v := c.viewer("logs", f.raw)
	v.skipStdout, v.skipStderr = f.stderr && !f.stdout, f.stdout && !f.stderr
	if f.lines >= 0 {
		v.last = &lastLines{most: f.lines}
	}
	goesOn := f.follow || p.Attached.Status != proto.StatusRunning
	for {
		e, err := next(ctx, p, goesOn && v.last == nil)
		switch {
		case err != nil:
			return fail(exitFailed, "pinfold ps", errorf("cannot follow %s: %w", plain(id), err))
		case e == nil:
			if err := v.release(); err != nil || !goesOn {
				return err
			}
			continue
		case f.asJSON:
			err = c.message(e)
		case e.Final():
			err = v.release()
		default:
			err = v.show(e)
		}
		if err != nil || e.Final() {
			return err
		}
	}
}

// next waits for the next event, or only for what was there at first; nil: all of that has
// come.
func next(ctx context.Context, p *client.Process, ever bool) (*proto.ReadEvent, error) {
	if ever {
		return p.Next(ctx)
	}
	at := p.Offsets()
	left := max(int64(p.Attached.Stdout.To)-at.Stdout, 0) + max(int64(p.Attached.Stderr.To)-at.Stderr, 0)
	const held = 2 * (utf8.UTFMax - 1) // of a character's bytes in both streams
	switch {
	case left == 0:
		return nil, nil //nolint:nilnil // all that there was has come
	case left > held:
		return p.Next(ctx)
	}
	short, cancel := context.WithTimeout(ctx, tailWait)
	defer cancel()
	e, err := p.Next(short)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, nil //nolint:nilnil // what is left is not a whole character
	}
	return e, err
}

// viewer shows the output of another session's process.
type viewer struct {
	stdout, stderr         io.Writer
	skipStdout, skipStderr bool
	gap                    func(proto.Stream, *proto.Gap)
	last                   *lastLines // what is shown once all has come that was there at first; nil: all is shown as it comes
}

// viewer returns one for a command; bytes of a process that may be hostile reach a
// terminal raw only where that was asked for.
func (c *cli) viewer(command string, raw bool) *viewer {
	v := &viewer{stdout: c.stdout, stderr: c.stderr, gap: func(s proto.Stream, g *proto.Gap) {
		c.warn(command, errorf("bytes %d to %d of %s are gone", g.From, g.To, s))
	}}
	if !raw && isTerminal(c.stdout) {
		v.stdout = &legibleWriter{c.stdout}
	}
	if !raw && isTerminal(c.stderr) {
		v.stderr = &legibleWriter{c.stderr}
	}
	return v
}

func (v *viewer) show(e *proto.ReadEvent) error {
	if e.StreamType == proto.Stderr && v.skipStderr || e.StreamType != proto.Stderr && v.skipStdout {
		return nil
	}
	if e.Gap != nil {
		v.gap(e.StreamType, e.Gap)
		return nil
	}
	if v.last != nil {
		v.last.add(e.StreamType, e.Data.Text)
		return nil
	}
	return v.write(e.StreamType, e.Data.Text)
}

func (v *viewer) write(s proto.Stream, text []byte) error {
	w := v.stdout
	if s == proto.Stderr {
		w = v.stderr
	}
	if _, err := w.Write(text); err != nil {
		return errorf("cannot write the output of the process: %w", err)
	}
	return nil
}

// legibleWriter escapes what could move the cursor of a terminal or tell it things.
type legibleWriter struct{ w io.Writer }

func (l *legibleWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(l.w, viewable(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// viewable is legible for output: tabs stay, and so does the end of a line as terminals
// have it.
func viewable(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == '\n', r == '\t', strconv.IsPrint(r) && (r != utf8.RuneError || n > 1):
			b.WriteString(text[:n])
		case r == '\r' && (len(text) == 1 || text[1] == '\n'):
		case r == utf8.RuneError:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		default:
			q := strconv.Quote(text[:n])
			b.WriteString(q[1 : len(q)-1])
		}
		text = text[n:]
	}
	return b.String()
}

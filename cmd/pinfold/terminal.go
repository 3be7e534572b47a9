package main

import (
	"io"
	"os"

	"pinfold/proto"

	"golang.org/x/term"
)

// Size of a terminal that cannot be asked.
const (
	defaultRows = 24
	defaultCols = 80
)

// terminal is the terminal that this program runs on, where it does.
type terminal struct {
	stdin  io.Reader
	stdout io.Writer
	used   bool        // the command has a terminal of its own
	saved  *term.State // of standard input before raw; nil: it is no terminal
}

// size asks the terminal for its size.
func (t *terminal) size() *proto.PTY {
	for _, stream := range []any{t.stdout, t.stdin} {
		f, ok := stream.(*os.File)
		if !ok {
			continue
		}
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && rows > 0 && cols > 0 {
			return &proto.PTY{Rows: uint16(rows), Cols: uint16(cols)}
		}
	}
	return &proto.PTY{Rows: defaultRows, Cols: defaultCols}
}

// raw hands every key to the command.
func (t *terminal) raw() error {
	t.used = true
	f, ok := t.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	saved, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return fail(exitFailed, "run without --pty", errorf("cannot make the terminal raw: %w", err))
	}
	t.saved = saved
	return nil
}

// leave gives the terminal back and says on standard error that the process goes on.
func (t *terminal) leave(c *cli, text string) error {
	err := t.restore()
	if _, werr := io.WriteString(c.stderr, "\n"+text+"\n"); werr != nil && err == nil {
		err = errorf("cannot write standard error: %w", werr)
	}
	return err
}

// restore gives the terminal back as it was.
func (t *terminal) restore() error {
	f, ok := t.stdin.(*os.File)
	if t.saved == nil || !ok {
		return nil
	}
	if err := term.Restore(int(f.Fd()), t.saved); err != nil {
		return fail(exitFailed, "stty sane", errorf("cannot restore the terminal: %w", err))
	}
	return nil
}

package stage

import (
	"context"
	"errors"
	"fmt"
	"os"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// A pen of an earlier stage of an ordinary user's is in that one's user namespace, and
// the next stage in another, which has no right over it. The stage outside has: who owns a
// user namespace has every capability in it and in those below, from where it was made
// (user_namespaces(7)), CAP_SYS_PTRACE among them.

// find asks the stage outside for the pen of a mark.
func (o *owners) find(m *sandbox.Mark) (*found, error) {
	k := *m
	k.Watches = nil // what is looked for, is looked for here
	b, err := stagewire.Marshal(k)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := linux.Send(o.conn, append([]byte{askPen}, b...)); err != nil {
		return nil, fmt.Errorf("cannot ask for the pen: %w", err)
	}
	a, fds, err := stagewire.Receive(o.conn, make([]byte, stagewire.MaxInline))
	if err != nil {
		return nil, fmt.Errorf("cannot ask for the pen: %w", err)
	}
	h, files := &found{}, linux.Files(fds)
	var names []string
	switch {
	case a.Error != nil && a.Error.Kind == stagewire.KindGone:
		err = gonePenError(a.Error.Say)
	case a.Error != nil:
		err = errors.New(a.Error.Say)
	default:
		err = stagewire.Unmarshal(a.Body, &names)
	}
	if err == nil && len(names) != len(files) {
		err = fmt.Errorf("cannot ask for the pen: %d descriptors for %d names", len(files), len(names))
	}
	if err != nil {
		linux.CloseAll(files...)
		return nil, err
	}
	for i, n := range names {
		h.add(n, files[i])
		if n == sandbox.FileInit {
			h.init, err = linux.Dup(files[i])
		}
	}
	if err == nil && h.init == nil {
		err = errors.New("cannot ask for the pen: there is no PID 1 in the answer")
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// answerPen is the other side of find.
func answerPen(ctx context.Context, conn *os.File, c *Config, raw []byte) error {
	h, err := findOutside(ctx, c, raw)
	if err != nil {
		return stagewire.Send(conn, stagewire.Message{Error: answerOf(err)})
	}
	defer h.close()
	var names []string
	var files []*os.File
	for _, d := range h.held {
		names, files = append(names, d.name), append(files, d.file)
	}
	b, err := stagewire.Marshal(names)
	if err != nil {
		return err
	}
	return stagewire.Send(conn, stagewire.Message{Body: b}, files...)
}

func findOutside(ctx context.Context, c *Config, raw []byte) (*found, error) {
	var m sandbox.Mark
	if err := stagewire.Unmarshal(raw, &m); err != nil {
		return nil, refused("cannot read the mark: %w", err)
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	return (&finder{config: c, boot: boot, uid: uint32(os.Geteuid())}).find(ctx, &m)
}

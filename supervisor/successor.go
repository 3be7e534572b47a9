package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pinfold/audit"
	"pinfold/sandbox"
	"pinfold/supervisor/outcome"
	"pinfold/supervisor/record"
)

// A daemon hands over to its successor, most often a newer program, as if it were killed:
// pens, records and spools stay as they are, and the successor adopts them. What is
// different from a crash is that the successor has looked first whether it can, while
// the daemon goes on serving, and that the listening socket never closes.

// Limits of handing over.
const (
	succeedTime = 45 * time.Second // for a successor to say whether it can take over
	enterTime   = time.Second      // for connections under way to get their sessions before that
	awaitTime   = 20 * time.Second // for the daemon before to be gone, once its successor has said so
	MaxSaid     = 4 << 10          // bytes of what a successor says
)

// Says is what a successor that can take over writes to the daemon before it; anything
// else is why it cannot.
const Says = "READY\n"

// next is a successor that was started.
type next struct {
	heir *sandbox.Heir // nil: it was not
	err  error         // why it does not take over
}

// end ends a successor that is not to take over.
func (n next) end() {
	if n.heir != nil {
		n.heir.End()
	}
}

// upgrade is the start of one successor at a time.
type upgrade struct {
	ask   <-chan os.Signal
	ready chan next // nil: none is being started

	waiting <-chan os.Signal
	cancel  context.CancelFunc
}

// start starts a successor. Until it is known what becomes of it, no other is.
func (u *upgrade) start(ctx context.Context, d *daemon) {
	ctx, u.cancel = context.WithTimeout(ctx, succeedTime)
	ready := make(chan next, 1)
	u.ready, u.waiting, u.ask = ready, u.ask, nil
	go func() { ready <- d.startSuccessor(ctx) }()
}

// drop ends a successor that is being started.
func (u *upgrade) drop() {
	if u.ready == nil {
		return
	}
	u.cancel()
	(<-u.ready).end()
}

// upgraded returns the successor if it can take over. Else this daemon goes on.
func (d *daemon) upgraded(u *upgrade, n next) *sandbox.Heir {
	u.cancel()
	u.ready, u.ask = nil, u.waiting
	if n.err == nil {
		return n.heir
	}
	n.end()
	err := fmt.Errorf("cannot hand over to a new daemon, this one goes on: %w", n.err)
	d.log.Error("not upgraded", slog.Any("error", err))
	d.note(audit.Subject{}, audit.NotUpgraded{Reason: n.err.Error()})
	d.answer(outcome.Binary, err)
	return nil
}

// startSuccessor has the stage start the successor and hears whether it can take over.
func (d *daemon) startSuccessor(ctx context.Context) next {
	r, w, err := os.Pipe()
	if err != nil {
		return next{err: err}
	}
	defer closing(d.log, r)
	sock, err := d.listener.File()
	if err != nil {
		closing(d.log, w)
		return next{err: err}
	}
	h, err := d.stage.Succeed(ctx, sock, w)
	closing(d.log, sock)
	closing(d.log, w)
	if err != nil {
		return next{err: err}
	}
	d.log.Info("a successor looks whether it can take over", slog.Int("pid", h.Pid))
	return next{heir: h, err: hear(ctx, r)}
}

// hear takes what a successor says.
func hear(ctx context.Context, r *os.File) error {
	defer context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })() // a closed pipe wakes the reader by itself
	said, err := io.ReadAll(io.LimitReader(r, MaxSaid))
	text := strings.TrimSpace(string(said))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("it has not said within %s whether it can take over", succeedTime)
	case err != nil:
		return err
	case string(said) == Says:
		return nil
	case text == "":
		return errors.New("it has ended without a word: see the log; a pinfoldd that knows no --take-over is too old")
	}
	return errors.New(text)
}

// leaveTo lets everything be as it is for the successor, which goes on once this process
// has exited. Who is being taken as a client gets a session first, which can be resumed.
func (d *daemon) leaveTo(h *sandbox.Heir) error {
	d.log.Info("leaving everything to the successor", slog.Int("pid", h.Pid), slog.Int("sessions", d.host.Registry.Sessions()))
	d.crashed = true
	if err := d.listener.Leave(); err != nil {
		d.log.Error("cannot leave the socket", slog.Any("error", err))
	}
	entered := make(chan struct{})
	go func() {
		d.entering.Wait()
		close(entered)
	}()
	late := time.NewTimer(enterTime)
	defer late.Stop()
	select {
	case <-entered:
	case <-late.C: // who says nothing connects again
	}
	d.note(audit.Subject{}, audit.DaemonStopped{Reason: fmt.Sprintf("process %d takes over", h.Pid)})
	if err := d.c.Replaced(h.Pid); err != nil {
		d.log.Warn("cannot tell that another process takes over, going on", slog.Any("error", err))
	}
	return nil
}

// answer tells who asked by a signal what became of that.
func (d *daemon) answer(of outcome.Of, err error) {
	if err := outcome.Put(d.c.State, of, err); err != nil {
		d.log.Error("cannot tell what became of a signal", slog.Any("error", err))
	}
}

// canServe is all that can keep a successor from serving and that can be found out while
// the daemon before it serves. It changes nothing.
func canServe(ctx context.Context, c Config) error {
	if err := checkState(c.State); err != nil {
		return err
	}
	if _, _, err := readPolicy(c); err != nil {
		return err
	}
	found, err := record.Read(filepath.Join(c.State, "run", "record"))
	if err == nil {
		err = found.Err()
	}
	for _, b := range found.Broken {
		if !errors.Is(b.Why, os.ErrNotExist) { // else it was forgotten while it was read
			err = errors.Join(err, fmt.Errorf("the record %q cannot be read: %w", b.File, b.Why))
		}
	}
	if err != nil {
		return err
	}
	_, err = sandbox.ProbeStage(ctx, c.Stage)
	return err
}

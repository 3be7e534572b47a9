package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"pinfold/audit"
	"pinfold/supervisor/record"
)

// Sweep ends what a daemon of the state directory has left that was killed, when no other
// is to take it over: as that daemon would have ended it on SIGTERM, each process by its
// grace period. It listens nowhere. A record that cannot be read, and one of a later
// version, keeps nothing: what it names is killed. It returns a line for each session and
// process that it ended, and fails while another daemon has the state directory.
func Sweep(ctx context.Context, c Config) ([]string, error) {
	if _, err := os.Stat(c.State); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var told []string
	err := run(ctx, c, func(d *daemon) ([]opener, func(context.Context) error) {
		opens := []opener{d.readAnyRecords, d.openPolicy, d.openAudit, d.openCgroups, d.openState, d.openStage, d.tellStart, d.adopt}
		return opens, func(ctx context.Context) error {
			told = d.tell()
			return d.sweep(ctx)
		}
	})
	return told, err
}

// readAnyRecords is readRecords where what a record says need not be known.
func (d *daemon) readAnyRecords(ctx context.Context) (func() error, error) {
	undo, err := d.readRecords(ctx)
	if len(d.found.Newer) == 0 {
		return undo, err
	}
	for _, n := range d.found.Newer {
		d.found.Broken = append(d.found.Broken, record.Broken{File: n.File, Kind: n.Kind, ID: n.ID, Why: n})
	}
	d.found.Newer = nil
	return nothing, nil
}

// tell says what there is to be ended.
func (d *daemon) tell() []string {
	var out []string
	for _, r := range d.found.Sessions {
		out = append(out, fmt.Sprintf("session %s of uid %d", r.ID, r.Caller.UID))
	}
	for _, r := range d.found.Processes {
		if len(r.Verdict) == 0 {
			out = append(out, fmt.Sprintf("process %s (pid %d) of session %s: %s", r.ID, r.PID, r.Session, strings.Join(r.Argv, " ")))
		}
	}
	for _, b := range d.found.Broken {
		out = append(out, fmt.Sprintf("whatever %s named, which cannot be read: %v", b.File, b.Why))
	}
	return out
}

// sweep ends the sessions that were adopted.
func (d *daemon) sweep(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel() // their end begins at once
	for _, s := range d.adopted {
		d.wg.Go(func() { d.serveSession(ctx, s) })
	}
	d.wg.Wait()
	left, err := d.cgroups.Leftovers()
	for _, l := range left {
		d.log.Error("left behind", slog.String("cgroup", l))
	}
	d.note(audit.Subject{}, audit.DaemonStopped{Reason: "swept"})
	d.lives, d.stopped = false, true
	return err
}

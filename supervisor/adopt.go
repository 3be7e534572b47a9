package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"pinfold/audit"
	"pinfold/cgroup"
	"pinfold/sandbox"
	"pinfold/supervisor/record"
	"pinfold/supervisor/session"
)

// A daemon that was killed leaves its pens: each PID 1 holds what a daemon needs of it,
// and a record says where to look. The next daemon of the same state directory takes
// all of it over before it listens, and ends what it cannot. Until the last step here no
// record is changed, so that a daemon that is killed in between leaves to the one after it
// what it has found itself, but for what it has ended.

const (
	adoptAtOnce = 16               // pens that are being adopted at once
	adoptTime   = 20 * time.Second // for one of them
	sweepTime   = 30 * time.Second // for what is not adopted to end
)

// readRecords reads what an earlier daemon has left. It is the first thing that a start
// does: where it cannot know what a record says, nothing is touched.
func (d *daemon) readRecords(context.Context) (func() error, error) {
	var err error
	if d.found, err = record.Read(d.recordDir()); err != nil {
		return nil, err
	}
	d.lives = len(d.found.Sessions)+len(d.found.Processes) > 0 // what this start cannot take over stays for the next
	return nothing, d.found.Err()
}

// openBase opens the cgroups of an earlier daemon where that had them, if it has left
// something there; else those that this one is to have.
func (d *daemon) openBase() (*cgroup.Base, error) {
	if !d.lives || d.found.Daemon.Boot != record.Boot() || len(d.found.Daemon.Hierarchies) == 0 {
		return cgroup.Open(d.c.Cgroup, d.c.State)
	}
	var there []cgroup.Hierarchy
	for _, h := range d.found.Daemon.Hierarchies {
		there = append(there, cgroup.Hierarchy(h))
	}
	b, err := cgroup.Reopen(there)
	if errors.Is(err, cgroup.ErrGone) {
		return cgroup.Open(d.c.Cgroup, d.c.State) // nothing can live where there is no base
	}
	if err != nil {
		return nil, fmt.Errorf("cannot take over the cgroups of an earlier daemon at %s: %w", there[0].Dir, err)
	}
	return b, nil
}

// record is what the next daemon must know of this one.
func (d *daemon) record() record.Daemon {
	r := record.Daemon{Boot: record.Boot()}
	for _, h := range d.cgroups.Hierarchies() {
		r.Hierarchies = append(r.Hierarchies, record.Hierarchy(h))
	}
	return r
}

// adopt takes over the sessions and processes that an earlier daemon has left, and ends
// and removes whatever else there is of it.
func (d *daemon) adopt(ctx context.Context) (func() error, error) {
	d.setAside()
	sessions := map[string]record.Session{}
	for _, r := range d.found.Sessions {
		if r.Boot == d.host.Boot {
			sessions[r.ID] = r
			continue
		}
		d.note(audit.Subject{Session: r.ID, Caller: r.Admission.Caller, UID: r.Caller.UID}, audit.SessionClosed{Reason: "the host has booted since"})
	}
	found := map[string][]session.Found{}
	var keep []string
	all, rest := d.findAll(ctx, sessions)
	for _, f := range all {
		if f.Job != nil {
			keep = append(keep, f.Job.Path())
		}
		found[f.Record.Session] = append(found[f.Record.Session], f)
	}
	sweep, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	if err := d.cgroups.Sweep(sweep, keep...); err != nil {
		return nil, fmt.Errorf("cannot end what an earlier daemon left: %w", err)
	}
	if err := d.stage.Settle(ctx); err != nil {
		return nil, fmt.Errorf("cannot remove what pens of an earlier daemon left: %w", err)
	}
	d.tellEnds(rest)
	if err := d.clear(sessions, found); err != nil {
		return nil, err
	}
	for id, r := range sessions {
		d.adopted = append(d.adopted, session.Restore(d.host, r, found[id]))
	}
	return nothing, nil
}

// setAside puts records that cannot be read out of the way. What they name is not
// known, and so not adopted: it is ended with everything else.
func (d *daemon) setAside() {
	for _, b := range d.found.Broken {
		d.log.Error("a record of an earlier daemon cannot be read, ending what it names", slog.String("file", b.File), slog.Any("error", b.Why))
		now, err := d.records.SetAside(b)
		if err != nil {
			d.log.Error("cannot set a broken record aside, removing it", slog.Any("error", err))
		}
		d.note(audit.Subject{}, audit.SetAside{File: b.File, Now: now, Reason: b.Why.Error()})
	}
}

// findAll looks for every process of a session that goes on; rest are those of others.
func (d *daemon) findAll(ctx context.Context, sessions map[string]record.Session) (all, rest []session.Found) {
	for _, r := range d.found.Processes {
		f := session.Found{Record: r, Ended: r.Audited}
		if _, ok := sessions[r.Session]; ok {
			all = append(all, f)
			continue
		}
		d.log.Error("a process of an earlier daemon has no session any more, ending what there is of it", slog.String("process", r.ID), slog.String("session", r.Session))
		rest = append(rest, f)
	}
	d.findEnds(all, rest)
	turns := make(chan struct{}, adoptAtOnce)
	var wg sync.WaitGroup
	for i := range all {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			d.find(ctx, &all[i])
		})
	}
	wg.Wait()
	return all, rest
}

// findEnds finds out which ends the audit record tells of: of one that was only just
// noted it may, and so it may of one of rest that a start before this one has told.
func (d *daemon) findEnds(all, rest []session.Found) {
	open := map[string]*session.Found{}
	for i := range all {
		if f := &all[i]; len(f.Record.Verdict) > 0 && !f.Ended {
			open[f.Record.ID] = f
		}
	}
	for i := range rest {
		if f := &rest[i]; !f.Ended {
			open[f.Record.ID] = f
		}
	}
	if len(open) == 0 {
		return
	}
	names, err := audit.Files(d.auditFile())
	for _, name := range names[max(0, len(names)-2):] { // it may have been closed since
		err = errors.Join(err, d.markEnds(name, open))
	}
	if err != nil {
		d.log.Error("cannot look for ends in the audit record, telling them again", slog.Any("error", err))
	}
}

// markEnds marks those whose end an audit file tells of.
func (d *daemon) markEnds(name string, open map[string]*session.Found) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer closing(d.log, f)
	for r, err := range audit.Read(f) {
		if err != nil || r.Kind != audit.KindEnded {
			continue // what is wrong with the file its opening has told
		}
		e, err := r.Event()
		if err != nil {
			continue
		}
		if ended, ok := e.(*audit.Ended); ok && open[ended.Process] != nil {
			open[ended.Process].Ended = true
		}
	}
	return nil
}

// tellEnds tells the audit record of processes that have no session any more, and of which
// nothing is left.
func (d *daemon) tellEnds(rest []session.Found) {
	for i := range rest {
		if rest[i].Ended {
			continue
		}
		r := &rest[i].Record
		e, err := session.End(r)
		if err != nil {
			d.log.Error("cannot read the verdict of a process", slog.String("process", r.ID), slog.Any("error", err))
		}
		d.note(audit.Subject{Session: r.Session}, e)
	}
}

// find looks for the pen and the cgroup of one process. A pen that is there and cannot
// be adopted is ended.
func (d *daemon) find(ctx context.Context, f *session.Found) {
	log := d.log.With(slog.String("process", f.Record.ID))
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	var err error
	if f.Job, err = d.cgroups.Adopt(f.Record.Cgroup); err != nil && !errors.Is(err, cgroup.ErrGone) {
		log.Error("cannot adopt the cgroup of a process", slog.Any("error", err))
	}
	if errors.Is(err, cgroup.ErrGone) && len(f.Record.Verdict) > 0 {
		f.Why = sandbox.ErrGone // an earlier daemon has seen its end and taken its pen away
		return
	}
	if f.Why = json.Unmarshal(f.Record.Mark, &f.Mark, json.RejectUnknownMembers(true)); f.Why == nil {
		f.Proc, f.Why = d.stage.Adopt(ctx, f.Mark)
	}
	if f.Proc != nil && f.Job == nil {
		f.Why = errors.Join(errors.New("its cgroup is gone"), f.Proc.Kill(), f.Proc.Release(ctx))
		f.Proc = nil
	}
	if f.Why == nil || errors.Is(f.Why, sandbox.ErrGone) && f.Job == nil {
		return
	}
	if !errors.Is(f.Why, sandbox.ErrGone) {
		log.Error("cannot adopt a pen, ending it", slog.Any("error", f.Why))
	}
	if f.Job == nil {
		return // what there is of it, the sweep ends
	}
	if err := f.Job.KillAll(); err != nil && !errors.Is(err, cgroup.ErrGone) {
		log.Error("cannot end a pen that is not adopted", slog.Any("error", err))
	}
}

// clear removes what is left of sessions and processes that are not adopted: scratch
// file systems, spools, records.
func (d *daemon) clear(sessions map[string]record.Session, found map[string][]session.Found) error {
	ids, trees := map[string]bool{}, map[string]bool{}
	for id, r := range sessions {
		for _, c := range r.Scratch {
			trees[c.Name] = true
		}
		for _, f := range found[id] {
			ids[f.Record.ID] = true
		}
	}
	err := d.clearRun(filepath.Join(d.c.State, "run"), func(sub, name string) bool {
		return sub == "scratch" && trees[name] || sub == "spool" && ids[name]
	})
	if err != nil {
		return err
	}
	err = d.records.Clear(func(kind, id string) bool {
		_, session := sessions[id]
		return kind == "session" && session || kind == "process" && ids[id]
	})
	if err != nil {
		return fmt.Errorf("cannot remove records of an earlier daemon: %w", err)
	}
	return nil
}

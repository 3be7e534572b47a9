// Package supervisor owns the daemon's life: the state directory, the policy in
// force, the stage, the listening socket and the list of sessions. It never parses
// policy, confines nothing by itself, and moves no bytes: its rooms do.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"pinfold/audit"
	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/sandbox"
	"pinfold/supervisor/outcome"
	"pinfold/supervisor/record"
	"pinfold/supervisor/relay"
	"pinfold/supervisor/session"
	"pinfold/supervisor/socket"
)

const (
	hashedPrograms = 4096        // programs whose hashes are remembered
	acceptAgain    = time.Second // wait after an error of the listening socket
)

// Config is what a daemon is started with.
type Config struct {
	Socket   string   // path of the listening socket
	Listener *os.File // a listening socket that was passed, or nil
	OwnFile  bool     // Listener's file is the daemon's own: the one before it has made it
	State    string   // state directory; made with mode 0700 where absent
	Cgroup   string   // base for the daemon's cgroups; empty: found
	Stage    string   // path of pinfold-stage
	Policy   func() ([]policy.Source, error)
	Reload   <-chan os.Signal    // read and apply the policy again
	Ready    func() error        // called once requests are taken
	Ending   func() error        // called when the end begins
	Alive    func() error        // called every AliveEvery while the daemon is well
	Upgrade  <-chan os.Signal    // start the successor, and leave everything to it
	Replaced func(pid int) error // called before this process leaves to that one
	TakeOver func(error) error   // of a successor, nil else: called with why it cannot take over, or nil
	Log      *slog.Logger
	StageLog io.Writer // what the stage says, line by line

	AliveEvery time.Duration      // 0: nobody asks
	Successor  *sandbox.Successor // how the next daemon is started; nil: none can take over
}

// daemon is a running supervisor.
type daemon struct {
	c        Config
	log      *slog.Logger
	policy   atomic.Pointer[policy.Policy]
	first    *policy.Policy                     // the one that stage and audit log were started with
	loaded   atomic.Pointer[audit.PolicyLoaded] // what policy is
	host     *session.Host
	stage    *sandbox.Stage
	cgroups  *cgroup.Base
	records  *record.Store
	found    record.Found       // what an earlier daemon has left
	adopted  []*session.Session // of it, to be served
	lives    bool               // pens live on when this daemon ends: their records, spools and cgroups stay
	crashed  bool               // it ends with sessions at work, as if it were killed
	stopped  bool               // the audit record says that it has stopped
	audit    *audit.Log
	hasher   *audit.Hasher
	floods   *audit.Tally
	listener *socket.Listener
	wg       sync.WaitGroup
	entering sync.WaitGroup // connections that have no session yet, and what takes them
}

// Version is the version of this build, as its module or revision says.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

// opener opens one of the things that a daemon works with, and returns what undoes that.
type opener func(context.Context) (func() error, error)

// Serve runs the daemon until ctx is cancelled; then it returns after every session has
// ended and nothing of them is left. What an earlier daemon has left that was killed it
// takes over first. When its stage dies it returns at once, with sessions at work: the
// process is to exit then, and leaves to the next what a killed one leaves.
func Serve(ctx context.Context, c Config) error {
	return run(ctx, c, func(d *daemon) ([]opener, func(context.Context) error) {
		return []opener{
			d.readRecords, d.openPolicy, d.openAudit, d.openCgroups, d.openState, d.openStage, d.tellStart, d.adopt, d.openSocket, d.confineSelf,
		}, d.serve
	})
}

// run opens what a daemon works with, in this order, lets it work, and undoes all.
func run(ctx context.Context, c Config, plan func(*daemon) ([]opener, func(context.Context) error)) (err error) {
	wait := time.Duration(0)
	if c.TakeOver != nil {
		if err := c.TakeOver(canServe(ctx, c)); err != nil {
			return err
		}
		wait = awaitTime
	}
	lock, err := lockState(c.State, wait)
	if err != nil {
		return err
	}
	if c.State, err = filepath.EvalSymlinks(c.State); err != nil {
		return errors.Join(fmt.Errorf("cannot find the state directory: %w", err), lock.release())
	}
	d := &daemon{c: c, log: c.Log}
	if err := lazyTimers(); err != nil {
		d.log.Debug("timers stay exact, spawns cost a little more", slog.Any("error", err))
	}
	closers := []func() error{lock.release}
	defer func() {
		if d.crashed {
			return
		}
		for _, undo := range slices.Backward(closers) {
			err = errors.Join(err, undo())
		}
	}()
	opens, work := plan(d)
	for _, open := range opens {
		undo, err := open(ctx)
		if err != nil {
			return err
		}
		closers = append(closers, undo)
	}
	return work(ctx)
}

func nothing() error { return nil }

func (d *daemon) openPolicy(context.Context) (func() error, error) {
	return nothing, d.loadPolicy()
}

// note writes an audit record of the daemon itself.
func (d *daemon) note(s audit.Subject, e audit.Event) {
	if err := d.audit.Append(s, e); err != nil {
		d.log.Error("cannot write the audit record", slog.Any("error", err))
	}
}

// tellFlood records and logs what was only counted.
func (d *daemon) tellFlood(s audit.Subject, f audit.Flood) {
	d.log.Warn("flood", slog.String("of", string(f.Of)), slog.Int("uid", int(s.UID)), slog.Int64("count", f.Count))
	d.note(s, f)
}

func (d *daemon) auditFile() string { return filepath.Join(d.c.State, "audit.log") }

func (d *daemon) openAudit(ctx context.Context) (func() error, error) {
	s := d.policy.Load().Audit()
	warn := func(err error) { d.log.Warn("audit", slog.Any("error", err)) }
	l, err := audit.Open(d.auditFile(), audit.Options{Sync: audit.Sync(s.Sync), Interval: s.Interval, Warn: warn})
	if err != nil {
		return nil, err
	}
	d.log.Info("audit begins", slog.String("head", l.Head().String()))
	d.audit, d.hasher, d.floods = l, audit.NewHasher(l, hashedPrograms), audit.NewTally()
	hctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	hash := func(ctx context.Context) error {
		return d.hasher.Serve(ctx, func(f func()) { go f() }) // not waited for: what hangs in it never comes back
	}
	flood := func(ctx context.Context) error { return d.floods.Serve(ctx, d.tellFlood) }
	for _, serve := range []func(context.Context) error{l.Serve, hash, flood} {
		wg.Go(func() {
			if err := serve(hctx); err != nil && hctx.Err() == nil {
				d.log.Error("audit", slog.Any("error", err))
			}
		})
	}
	return func() error {
		cancel()
		wg.Wait()
		err := l.Close()
		d.log.Info("audit ends", slog.String("head", l.Head().String()))
		return err
	}, nil
}

func (d *daemon) openCgroups(context.Context) (func() error, error) {
	b, err := d.openBase()
	if err != nil {
		return nil, err
	}
	d.cgroups = b
	return func() error {
		if d.lives {
			return nil
		}
		return b.Close()
	}, nil
}

func (d *daemon) openStage(ctx context.Context) (func() error, error) {
	r := d.policy.Load().Dynamic()
	spools, err := d.spoolSize()
	if err != nil {
		return nil, err
	}
	c := sandbox.StageConfig{
		Path: d.c.Stage, State: d.c.State, DynamicFirst: r.First, DynamicCount: r.Count, Stderr: d.c.StageLog,
		Named: d.policy.Load().NamedUIDs(), Successor: d.c.Successor,
	}
	for _, h := range d.cgroups.Hierarchies() {
		c.Cgroups = append(c.Cgroups, sandbox.CgroupHier{Controller: h.Controller, Dir: h.Dir})
	}
	s, err := sandbox.StartStage(ctx, c)
	if err != nil {
		return nil, err
	}
	d.stage = s
	d.host = &session.Host{
		Stage: s, Cgroups: d.cgroups, Audit: d.audit, Hasher: d.hasher, Floods: d.floods, Registry: session.NewRegistry(r.First, r.Count), Buffers: relay.NewBuffers(),
		Policy: d.policy.Load, State: d.c.State, Records: d.records, Boot: record.Boot(), Started: time.Now(), Log: d.log,
	}
	d.host.Registry.BoundSpools(spools)
	return func() error {
		if d.lives {
			return s.Close()
		}
		return errors.Join(d.endState(context.WithoutCancel(ctx)), s.Close())
	}, nil
}

func (d *daemon) openSocket(context.Context) (func() error, error) {
	mode, gid := os.FileMode(0o660), -1
	if d.stage.Features().Rootless {
		mode = 0o600 // it serves its own user only: see open
	} else if g, err := user.LookupGroup("pinfold"); err == nil {
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return nil, fmt.Errorf("cannot read the id of group pinfold: %w", err)
		}
	} else if d.c.Listener == nil {
		mode = 0o600
		d.log.Warn("there is no group pinfold: only this daemon's own user can connect", slog.String("cure", "groupadd --system pinfold"))
	}
	l, err := socket.Listen(socket.Config{
		Path: d.c.Socket, Mode: mode, GID: gid, Listener: d.c.Listener, OwnFile: d.c.OwnFile, RefuseBelow: d.cgroups.CallersPath(), Refusal: refusal,
	})
	if err != nil {
		return nil, err
	}
	d.listener = l
	return nothing, nil
}

// refusal is the line that a refused peer gets.
func refusal(r *socket.RefusedError) []byte {
	line, err := proto.Append(nil, proto.NewError("", proto.CodeUnauthorized, r.Error()))
	if err != nil {
		return nil
	}
	return line
}

// tellStart begins this daemon's run in the audit record.
func (d *daemon) tellStart(context.Context) (func() error, error) {
	d.note(audit.Subject{}, audit.DaemonStarted{
		Version: Version(), PID: os.Getpid(), BootID: d.host.Boot, Backend: string(d.cgroups.Backend()),
		Sessions: len(d.found.Sessions), Processes: len(d.found.Processes),
	})
	d.note(audit.Subject{}, *d.loaded.Load())
	return func() error {
		if !d.stopped {
			d.note(audit.Subject{}, audit.DaemonStopped{Reason: "failed to start"})
		}
		return nil
	}, nil
}

// serve takes connections until asked ends. Sessions end when it says so, never because
// who called it is done: those of a daemon that has lost its stage stay as they are.
func (d *daemon) serve(asked context.Context) error {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(asked))
	defer func() {
		if !d.crashed {
			cancel(nil)
		}
	}()
	for _, s := range d.adopted {
		d.wg.Go(func() { d.serveSession(ctx, s) })
	}
	for _, s := range d.adopted {
		<-s.TakenUp()
	}
	d.entering.Add(1)
	d.wg.Go(func() {
		defer d.entering.Done()
		d.accept(ctx)
	})
	if err := d.c.Ready(); err != nil {
		d.log.Warn("cannot tell that the daemon is ready, going on", slog.Any("error", err))
	}
	if d.c.TakeOver != nil {
		d.answer(outcome.Binary, nil)
	}
	d.log.Info("ready", slog.String("socket", d.c.Socket), slog.String("state", d.c.State), slog.String("cgroups", string(d.cgroups.Backend())))
	heir, ended := d.watch(asked)
	if heir != nil {
		return d.leaveTo(heir)
	}
	d.log.Info("ending", slog.Int("sessions", d.host.Registry.Sessions()))
	if ended != nil {
		// Without a stage a session can end nothing cleanly, and has no need to: pens live on.
		// So this daemon goes as if it were killed, and the next one adopts them.
		d.note(audit.Subject{}, audit.DaemonStopped{Reason: ended.Error()})
		d.crashed = true
		return ended
	}
	if err := d.c.Ending(); err != nil {
		d.log.Warn("cannot tell that the daemon ends, going on", slog.Any("error", err))
	}
	err := d.listener.Close()
	if errors.Is(err, fs.ErrPermission) {
		d.log.Warn("the socket stays, and the next start replaces it", slog.Any("error", err), slog.String("cure", "put it into a directory of this daemon's user"))
		err = nil
	}
	cancel(errors.New("the daemon ends"))
	d.wg.Wait()
	left, lerr := d.cgroups.Leftovers()
	for _, l := range left {
		d.log.Error("left behind", slog.String("cgroup", l))
	}
	d.note(audit.Subject{}, audit.DaemonStopped{Reason: "asked to end"})
	d.lives, d.stopped = false, true
	return errors.Join(err, lerr)
}

// watch returns when the daemon is to end: the successor that is to go on, or why, which
// is nil when it was asked to.
func (d *daemon) watch(ctx context.Context) (*sandbox.Heir, error) {
	var alive <-chan time.Time
	if d.c.AliveEvery > 0 {
		tick := time.NewTicker(d.c.AliveEvery)
		defer tick.Stop()
		alive = tick.C
	}
	u := upgrade{ask: d.c.Upgrade}
	defer u.drop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case <-d.stage.Done():
			text := "the stage has ended: no pen can be started; starting the daemon again takes a new one"
			if err := d.stage.Err(); err != nil {
				return nil, fmt.Errorf("%s (%w)", text, err)
			}
			return nil, errors.New(text)
		case <-u.ask:
			u.start(ctx, d)
		case n := <-u.ready:
			if h := d.upgraded(&u, n); h != nil {
				return h, nil
			}
		case <-alive:
			if err := d.c.Alive(); err != nil {
				d.log.Warn("cannot tell that the daemon is alive, going on", slog.Any("error", err))
			}
		case <-d.c.Reload:
			d.reload()
		}
	}
}

// accept takes connections until the listener is closed.
func (d *daemon) accept(ctx context.Context) {
	for {
		c, err := d.listener.Accept()
		var refused *socket.RefusedError
		switch {
		case errors.As(err, &refused):
			if !d.floods.First(refused.Peer.UID, audit.FloodRefused) {
				continue
			}
			d.log.Warn("connection refused", slog.Any("error", err))
			d.note(audit.Subject{UID: refused.Peer.UID}, audit.Refused{
				PID: refused.Peer.PID, Unit: refused.Peer.Unit, Code: string(proto.CodeUnauthorized), Reason: refused.Error(),
			})
			continue
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			d.log.Error("cannot take connections, trying again", slog.Any("error", err))
			select {
			case <-ctx.Done():
				return
			case <-time.After(acceptAgain):
			}
			continue
		}
		d.entering.Add(1)
		d.wg.Go(func() { d.serveConn(ctx, c) })
	}
}

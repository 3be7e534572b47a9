package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/sandbox"
	"pinfold/supervisor/relay"
)

func newStarted(g *policy.Grant, job *cgroup.Job, shown proof) *started {
	return &started{grant: g, job: job, workspace: g.Workspace.Path, proof: shown, pumped: make(chan struct{})}
}

// begun records a pen that waits at its last gate, and opens that.
// pol has decided; it may be in force no more.
func (s *Session) begun(ctx context.Context, p *process, pol *policy.Policy, st *started, pen *sandbox.Pen, records encoded) (*started, error) {
	err := records.write()
	if err != nil && (pol.Audit().OnFailure == policy.FailureRefuse || s.host.Policy().Audit().OnFailure == policy.FailureRefuse) {
		return nil, errors.Join(&auditError{err}, pen.Abort(context.WithoutCancel(ctx)), st.disconnect())
	}
	p.laps.Lap("record-start")
	if err := s.open(ctx, p, st, pen); err != nil {
		return nil, errors.Join(err, st.disconnect())
	}
	p.laps.Lap("exec")
	s.pump(p, st)
	return st, nil
}

// pump takes what a process writes.
func (s *Session) pump(p *process, st *started) {
	s.wg.Go(func() {
		defer close(st.pumped)
		if err := st.out.Serve(p.ctx); err != nil && p.ctx.Err() == nil {
			s.log.Error("output is not relayed any more", attrProc(p.id), attrErr(err))
		}
	})
}

// open opens the last gate, and joins the pipes to the relay while the target makes its
// exec. After an error nothing runs.
func (s *Session) open(ctx context.Context, p *process, st *started, pen *sandbox.Pen) error {
	p.begun.Store(true)
	proc, err := pen.Open(ctx)
	if err != nil {
		return err
	}
	st.proc = proc
	joined := s.connect(p, st)
	if err := pen.Started(ctx, proc); err != nil {
		if _, ok := errors.AsType[*sandbox.StepError](err); ok {
			p.begun.Store(false) // the kernel refused the program
		}
		return errors.Join(err, joined)
	}
	if joined == nil {
		return nil
	}
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime) // ctx may be what has ended
	defer cancel()
	return errors.Join(joined, st.job.Kill(), proc.Release(rctx))
}

// disconnect gives up what a process that did not come to run would have written to.
func (st *started) disconnect() error {
	var err error
	if st.out != nil {
		err = st.out.Close()
	}
	return errors.Join(err, os.RemoveAll(st.spool))
}

// register makes what a process will write to, and stores where a next daemon finds it.
func (s *Session) register(p *process, st *started, pid int, m sandbox.Mark) error {
	st.pid, st.at = pid, time.Now()
	st.shown = st.at
	st.spool = filepath.Join(s.host.State, "run", "spool", p.id)
	if err := os.Mkdir(st.spool, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot make the spool: %w", err)
	}
	return s.noteProcess(p, st, m)
}

// connect joins the pen's pipes to the relay.
func (s *Session) connect(p *process, st *started) error {
	c := s.outputConfig(p, st)
	c.Stdout, c.Stderr, c.PTY, c.Relay = st.proc.Stdout, st.proc.Stderr, st.proc.PTY, st.proc.Relay
	out, err := relay.NewOutput(c)
	if err != nil {
		return fmt.Errorf("cannot relay output: %w", err)
	}
	st.out = out
	if st.in, err = newInput(st.proc); err != nil {
		return fmt.Errorf("cannot feed stdin: %w", err)
	}
	return nil
}

// outputConfig is how the output of a process is relayed, but for where it comes from.
func (s *Session) outputConfig(p *process, st *started) relay.OutputConfig {
	o := st.grant.Output
	c := relay.OutputConfig{
		Dir: st.spool, ProcID: p.id, ReqID: p.req.Base().ID,
		Buffers: s.host.Buffers, Budget: s.host.Registry.budget(s.account(), int64(st.grant.Quota.Output)), Keep: max(int64(o.Keep), relay.MinKeep), Limit: max(int64(o.Limit), 0),
	}
	c.Warn = func(err error) { s.log.Error("output waits", attrProc(p.id), attrErr(err)) }
	if o.Overflow == policy.OverflowDrop {
		c.Overflow = relay.Drop
	}
	return c
}

// newInput feeds a pen's standard input; nil where it is null.
func newInput(p *sandbox.Process) (*relay.Input, error) {
	switch {
	case p.PTY != nil:
		return relay.NewInput(relay.InputConfig{Stdin: p.PTY, Kind: relay.Terminal, MaxQueue: maxStdin})
	case p.Stdin != nil:
		return relay.NewInput(relay.InputConfig{Stdin: p.Stdin, Kind: relay.Pipe, MaxQueue: maxStdin, CloseStdin: p.CloseStdin})
	}
	return nil, nil //nolint:nilnil // stdin is null: there is nothing to feed
}

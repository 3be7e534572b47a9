package host

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// agent is a client as it should be: it has one session, comes back into it whenever
// its connection ends, asks what became of what it had asked for, and goes on
// accordingly. What it finds wrong is an error; it never gives up by itself.
type agent struct {
	d     *daemon
	id    string
	score *score

	mu    sync.Mutex
	c     *client.Client
	token string
	ops   int
}

// score counts what happened to agents.
type score struct {
	mu     sync.Mutex
	counts map[string]int
	times  map[string][]time.Duration
}

func newScore() *score { return &score{counts: map[string]int{}, times: map[string][]time.Duration{}} }

func (s *score) add(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

func (s *score) took(what string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times[what] = append(s.times[what], d)
}

// reach connects as who may: root, or the user whose daemon it is.
func (d *daemon) reach(ctx context.Context) (*client.Client, error) {
	if !d.users {
		return client.Dial(ctx, d.sock)
	}
	j := &joined{cmd: exec.Command(filepath.Join(os.Getenv(binVar), "helper"))}
	j.cmd.Env = []string{helperVar + "=join", helperArg + "=" + d.sock}
	j.cmd.Dir = "/"
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: callerUID, Gid: callerUID}}
	in, err1 := j.cmd.StdinPipe()
	out, err2 := j.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, j.cmd.Start()); err != nil {
		return nil, err
	}
	j.in, j.Reader = in, out
	return client.New(j), nil //nolint:contextcheck // ctx is for the dialing alone
}

// refusal of a request by a daemon that was there; nil: the connection ended.
func refusalOf(err error) *client.Error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || errors.Is(err, client.ErrClosed) {
		return nil
	}
	return e
}

// join opens the agent's session.
func (a *agent) join(ctx context.Context) error {
	for {
		c, err := a.d.reach(ctx)
		if err == nil {
			var r *proto.HandshakeResp
			if r, err = c.Handshake(ctx, &proto.Handshake{}); err == nil {
				a.c, a.id, a.token = c, r.SessionID, r.Resume.Token
				return nil
			}
			_ = c.Close() // it is of no use
		}
		if refusalOf(err) != nil || ctx.Err() != nil {
			return fmt.Errorf("cannot open a session: %w", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// now is the agent's connection, a new one where the last has ended.
func (a *agent) now(ctx context.Context) (*client.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.c.Done():
	default:
		return a.c, nil
	}
	_ = a.c.Close()
	left := time.Now()
	for {
		c, err := a.d.reach(ctx)
		if err == nil {
			h := proto.Handshake{Proc: proto.ProcOptions{Batch: rand.IntN(2) == 0}, Resume: proto.ResumeRequest{SessionID: a.id, Token: a.token}}
			var r *proto.HandshakeResp
			if r, err = c.Handshake(ctx, &h); err == nil {
				a.c, a.token = c, r.Resume.Token
				a.score.add("resumes")
				a.score.took("resume", time.Since(left))
				return c, nil
			}
			_ = c.Close()
		}
		if refusalOf(err) != nil || ctx.Err() != nil {
			return nil, fmt.Errorf("cannot resume session %s: %w", a.id, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// leave cuts the agent's connection, as a network does.
func (a *agent) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.c.Close()
}

// op is a name for an operation.
func (a *agent) op(of string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ops++
	return fmt.Sprintf("%s-%d", of, a.ops)
}

// ask does something that may be done twice, until a daemon has answered.
func (a *agent) ask(ctx context.Context, do func(*client.Client) error) error {
	for {
		c, err := a.now(ctx)
		if err != nil {
			return err
		}
		if err = do(c); err == nil || refusalOf(err) != nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond) // until the connection is known to have ended
	}
}

// operate carries out a request with a name, once: where its answer was lost it asks
// what became of it, and sends it again only if it was not sent. known is what was
// answered about it; nil: the answer itself came. A refusal is an error.
func (a *agent) operate(ctx context.Context, op string, do func(*client.Client) error) (outcome proto.Outcome, known *proto.OpsGetResp, err error) {
	for {
		c, err := a.now(ctx)
		if err != nil {
			return "", nil, err
		}
		err = do(c)
		refused := refusalOf(err)
		switch {
		case err == nil:
			return proto.OutcomeApplied, nil, nil
		case refused != nil && refused.Code == proto.CodeBusy, refused != nil && refused.Retryable:
			a.score.add("asked again, " + string(refused.Code))
			time.Sleep(10 * time.Millisecond)
			continue
		case refused != nil && refused.Code == proto.CodeOutcomeUnknown:
			a.score.add("told outcome_unknown")
			return proto.OutcomeUnknown, nil, nil
		case refused != nil, ctx.Err() != nil:
			return proto.OutcomeRejected, nil, err
		}
		if known, err = a.outcome(ctx, op); err != nil {
			return "", nil, err
		}
		a.score.add("lost answer, " + string(known.Outcome))
		if known.Outcome != proto.OutcomeNotSent {
			return known.Outcome, known, nil
		}
	}
}

// outcome asks what became of an operation until that is settled.
func (a *agent) outcome(ctx context.Context, op string) (*proto.OpsGetResp, error) {
	for {
		var r *proto.OpsGetResp
		err := a.ask(ctx, func(c *client.Client) (err error) {
			r, err = c.OpsGet(ctx, op)
			return err
		})
		if err != nil || !r.Open {
			return r, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// errNotStarted is a spawn that was refused since its daemon or its stage was going.
var errNotStarted = errors.New("not started")

// errNotKnown is a spawn of which nobody knows whether its program ran: its daemon was
// killed between the record of it and its last gate.
var errNotKnown = errors.New("not known whether it started")

// spawn starts a process, once. Its events come over the connection that started it,
// unless its answer was lost.
func (a *agent) spawn(ctx context.Context, s proto.Spawn) (id string, p *client.Process, err error) {
	outcome, known, err := a.operate(ctx, s.OpID, func(c *client.Client) (err error) {
		p, err = c.Spawn(ctx, s)
		return err
	})
	refused := refusalOf(err)
	switch {
	case refused != nil && (refused.Code == proto.CodeStartFailed || refused.Code == proto.CodeInternal || refused.Code == proto.CodeShuttingDown):
		a.score.add("spawn refused, " + string(refused.Code))
		return "", nil, errNotStarted
	case err != nil:
		return "", nil, err
	case known == nil && outcome == proto.OutcomeApplied:
		return p.ID, p, nil
	case outcome == proto.OutcomeApplied:
		return known.Operation.ProcID, nil, nil
	}
	a.score.add("spawn " + string(outcome))
	return "", nil, errNotKnown
}

// kill ends a process. Where nobody knows whether a signal was sent, it is sent again.
func (a *agent) kill(ctx context.Context, id string, sig proto.Signal) error {
	for again := false; ; again = true {
		op := a.op("kill")
		outcome, _, err := a.operate(ctx, op, func(c *client.Client) error {
			_, err := c.Do(ctx, &proto.KillReq{ProcID: id, Signal: sig, OpID: op})
			return err
		})
		if refused := refusalOf(err); again && refused != nil && refused.Code == proto.CodeProcDead {
			return nil
		}
		if err != nil || outcome == proto.OutcomeApplied {
			return err
		}
	}
}

// captured is what an agent has of a process.
type captured struct {
	mu          sync.Mutex
	stdout      []byte
	stderr      []byte
	verdict     *proto.Verdict
	connections int
}

func (o *captured) text() (stdout, stderr string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.stdout), string(o.stderr)
}

// take adds an event, which must begin where the last one ended.
func (o *captured) take(e *proto.ReadEvent) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := &o.stdout
	if e.StreamType == proto.Stderr {
		at = &o.stderr
	}
	switch {
	case e.Final():
		if o.verdict = e.Verdict; o.verdict == nil {
			return errors.New("the final event has no verdict")
		}
		return nil
	case e.Gap != nil:
		return fmt.Errorf("%s has the gap %+v", e.StreamType, *e.Gap)
	case e.Offset != int64(len(*at)):
		return fmt.Errorf("%s goes on at byte %d; want %d", e.StreamType, e.Offset, len(*at))
	}
	*at = append(*at, e.Data.Text...)
	return nil
}

// follow takes the output of a process up to its end, over as many connections as it
// needs, each from the byte at which the one before stopped.
func (a *agent) follow(ctx context.Context, id string, p *client.Process, o *captured) error {
	for {
		for p != nil {
			e, err := p.Next(ctx)
			if err != nil {
				break
			}
			if err := o.take(e); err != nil {
				return err
			}
			if o.verdict != nil {
				return nil
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err := a.ask(ctx, func(c *client.Client) (err error) {
			stdout, stderr := o.text()
			p, err = c.Attach(ctx, id, client.Offsets{Stdout: int64(len(stdout)), Stderr: int64(len(stderr))})
			return err
		})
		if err != nil {
			return fmt.Errorf("cannot go on with the output of %s: %w", id, err)
		}
		o.connections++
	}
}

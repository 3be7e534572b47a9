package host

import (
	"bufio"
	"context"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// checkOnce: each spawn that was carried out started one process, no other started any.
func (s *crashes) checkOnce(ctx context.Context) {
	for _, a := range s.agents {
		for label, want := range s.labels[a] {
			var have []proto.ProcStatus
			err := a.ask(ctx, func(c *client.Client) (err error) {
				have, err = c.List(ctx, label)
				return err
			})
			if err != nil || len(have) != want {
				s.t.Errorf("%s of session %s has %d processes, %v; want %d", label, a.id, len(have), err, want)
			}
		}
	}
}

// checkQuotas: the caller has all of its places again, no more, and over one more kill.
func (s *crashes) checkQuotas(ctx context.Context) {
	extra := make([]*agent, crashSessions-crashAgents)
	for i := range extra {
		extra[i] = &agent{d: s.d, score: s.score}
		if err := extra[i].join(ctx); err != nil {
			s.t.Errorf("session %d of %d = %v; want it", crashAgents+i+1, crashSessions, err)
			return
		}
		defer extra[i].leave()
	}
	procs := s.fill(ctx, s.agents[0])
	if len(procs) != crashProcs {
		s.t.Errorf("%d processes at once; want %d, as the quota says", len(procs), crashProcs)
	}
	s.d.crash(0)
	for _, a := range append(extra, s.agents...) {
		if _, err := a.now(ctx); err != nil {
			s.t.Errorf("after the last kill %v", err)
			return
		}
	}
	if err := (&agent{d: s.d, score: s.score}).join(ctx); err == nil {
		s.t.Errorf("session %d = nil; want it refused: the quota is %d", crashSessions+1, crashSessions)
	}
	if more := s.fill(ctx, s.agents[1]); len(more) > 0 {
		s.t.Errorf("%d processes more over a kill; want none: the quota is used up", len(more))
	}
	for _, id := range procs {
		if err := s.agents[0].kill(ctx, id, proto.SigKill); err != nil {
			s.t.Errorf("kill of %s = %v", id, err)
		}
	}
	if again := s.fill(ctx, s.agents[1]); len(again) != crashProcs {
		s.t.Errorf("%d processes once those are ended; want %d", len(again), crashProcs)
	}
	s.shut(ctx, extra[0])
	last := &agent{d: s.d, score: s.score}
	if err := last.join(ctx); err != nil {
		s.t.Errorf("a session once another is over = %v; want it", err)
		return
	}
	last.leave()
}

// shut ends a session.
func (s *crashes) shut(ctx context.Context, a *agent) {
	c, err := a.now(ctx)
	if err == nil {
		err = c.Shutdown(ctx, time.Second)
	}
	if err != nil {
		s.t.Errorf("Shutdown() = %v", err)
		return
	}
	<-c.Done()
}

// fill starts processes until the quota is used up.
func (s *crashes) fill(ctx context.Context, a *agent) (ids []string) {
	for {
		c, err := a.now(ctx)
		if err != nil {
			s.t.Errorf("cannot spawn: %v", err)
			return ids
		}
		p, err := c.Spawn(ctx, proto.Spawn{Cmd: []string{"sleep", "600"}, StdinMode: proto.StdinNull})
		if r := refusalOf(err); r != nil && r.Code == proto.CodeProcLimit {
			return ids
		}
		if err != nil {
			s.t.Errorf("spawn %d = %v; want it, or proc_limit", len(ids), err)
			return ids
		}
		p.Discard()
		ids = append(ids, p.ID)
	}
}

// plainEOF is the time from the close of a pipe until its reader, which is in no pen,
// has seen that.
func plainEOF(ctx context.Context) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, "python3", "-c", "import sys, time\nprint('ready', flush=True)\nsys.stdin.read()\nprint(time.monotonic_ns())")
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	said := bufio.NewReader(out)
	if _, err := said.ReadString('\n'); err != nil {
		return 0, err
	}
	closed := monotonic()
	if err := in.Close(); err != nil {
		return 0, err
	}
	line, err := said.ReadString('\n')
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return 0, err
	}
	return max(time.Duration(ns)-closed, 0), cmd.Wait()
}

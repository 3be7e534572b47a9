package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pinfold/proto"
)

// ask sends a request and returns its answer as the type that it must have. With
// a refusal both the answer and the error are there.
func ask[R proto.Message](ctx context.Context, c *Client, req proto.Request) (R, error) {
	m, err := c.Do(ctx, req)
	answer, ok := m.(R)
	if !ok && err == nil {
		return answer, fmt.Errorf("cannot use the answer to %s: it is %s", req.Kind(), m.Kind())
	}
	return answer, err
}

// Handshake opens the session; it must be the first request. Without agent_caps
// it asks for proc.
func (c *Client) Handshake(ctx context.Context, h *proto.Handshake) (*proto.HandshakeResp, error) {
	if len(h.AgentCaps) == 0 {
		h.AgentCaps = []string{proto.Capability}
	}
	return ask[*proto.HandshakeResp](ctx, c, h)
}

// Resume connects to a daemon's socket and goes on with a session that another
// connection had, which ends. h may choose what a handshake chooses. Nothing of the
// session's processes comes before Attach asks for it. The answer has the next token:
// keep it in place of the one that was used.
func Resume(ctx context.Context, path string, h *proto.Handshake, session, token string) (*Client, *proto.HandshakeResp, error) {
	c, err := Dial(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	h.Resume = proto.ResumeRequest{SessionID: session, Token: token}
	r, err := c.Handshake(ctx, h)
	if err != nil {
		return nil, r, errors.Join(err, c.Close())
	}
	return c, r, nil
}

// Attach asks for the output of a process from these offsets on, and then live: of a
// process of this session after Resume, or, for an operator, of another's. It takes the
// place of an earlier one on this connection.
func (c *Client) Attach(ctx context.Context, procID string, from Offsets) (*Process, error) {
	waiting := &call{answer: make(chan proto.Message, 1), from: &from}
	req := &proto.AttachReq{ProcID: procID, StdoutFrom: proto.Size(from.Stdout), StderrFrom: proto.Size(from.Stderr)}
	m, err := c.do(ctx, req, waiting)
	if err != nil {
		return nil, err
	}
	if waiting.proc == nil {
		return nil, fmt.Errorf("cannot use the answer to %s: it is %s", req.Kind(), m.Kind())
	}
	return waiting.proc, nil
}

// Spawn starts a process. Its events wait in its queue: take them with
// Process.Next or Process.Copy, or call Process.Discard. If ctx ends before the
// answer came, the spawn is cancelled, and a process that starts after all is ended by
// SIGKILL.
//
// Spawns with one op_id give one and the same Process, and it is ended only when all of
// them were given up. If its events went elsewhere, or were taken before, Process.Next
// fails with ErrRepeated.
func (c *Client) Spawn(ctx context.Context, s proto.Spawn) (*Process, error) {
	waiting := &call{answer: make(chan proto.Message, 1), op: s.OpID}
	req := &proto.SpawnReq{Spawn: s}
	m, err := c.do(ctx, req, waiting)
	if err != nil {
		if ctx.Err() != nil {
			c.takeBack(req) //nolint:contextcheck // ctx is over; this has a time of its own
		}
		return nil, err
	}
	if waiting.proc == nil {
		return nil, fmt.Errorf("cannot use the answer to %s: it is %s", req.Kind(), m.Kind())
	}
	return waiting.proc, nil
}

// Write feeds standard input of a process by its id. Process.Write does so for
// any bytes of any number.
func (c *Client) Write(ctx context.Context, w *proto.WriteReq) error {
	_, err := ask[*proto.WriteResp](ctx, c, w)
	return err
}

// Kill signals a process by its id. After SIGTERM and SIGKILL it waits for the
// outcome, after any other signal the status is running.
func (c *Client) Kill(ctx context.Context, procID string, sig proto.Signal) (proto.Status, error) {
	r, err := ask[*proto.KillResp](ctx, c, &proto.KillReq{ProcID: procID, Signal: sig})
	if err != nil {
		return "", err
	}
	return r.State, nil
}

// Status asks about one process, or with an empty id about all of the session.
func (c *Client) Status(ctx context.Context, procID string) (*proto.StatusResp, error) {
	return ask[*proto.StatusResp](ctx, c, &proto.StatusReq{ProcID: procID})
}

// List asks for all processes, live and retained; label, if not empty, for those
// that have it.
func (c *Client) List(ctx context.Context, label string) ([]proto.ProcStatus, error) {
	r, err := ask[*proto.ListResp](ctx, c, &proto.ListReq{Label: label})
	if err != nil {
		return nil, err
	}
	return r.Procs, nil
}

// Wait waits for the end of a process, at most timeout (0: as long as ctx
// lasts). When that is over the error has code timeout. If ctx ends first the daemon is
// told that nobody waits any more.
func (c *Client) Wait(ctx context.Context, procID string, timeout time.Duration) (*proto.Verdict, error) {
	req := &proto.WaitReq{ProcID: procID, TimeoutMS: proto.Milliseconds(timeout.Milliseconds())}
	if timeout > 0 && req.TimeoutMS == 0 {
		req.TimeoutMS = 1
	}
	r, err := ask[*proto.WaitResp](ctx, c, req)
	if err != nil {
		if ctx.Err() != nil {
			c.takeBack(req) //nolint:contextcheck // ctx is over; this has a time of its own
		}
		return nil, err
	}
	return r.Verdict, nil
}

// Stats asks for live figures of a process.
func (c *Client) Stats(ctx context.Context, procID string) (*proto.StatsResp, error) {
	return ask[*proto.StatsResp](ctx, c, &proto.StatsReq{ProcID: procID})
}

// Explain asks what would be decided of a spawn; a refusal that is explained is
// an answer, not an error.
func (c *Client) Explain(ctx context.Context, s proto.Spawn) (*proto.ExplainResp, error) {
	return ask[*proto.ExplainResp](ctx, c, &proto.ExplainReq{Spawn: s})
}

// OpsGet asks what became of the operation that a spawn, write or kill of this session
// named with its op_id.
func (c *Client) OpsGet(ctx context.Context, opID string) (*proto.OpsGetResp, error) {
	return ask[*proto.OpsGetResp](ctx, c, &proto.OpsGetReq{OpID: opID})
}

// Cancel takes back a request of this connection by its id. That request's own answer
// says what became of it. An error with code unknown_req says that it was answered, one
// with code unsupported that it is being carried out; then nothing has changed.
func (c *Client) Cancel(ctx context.Context, reqID string) error {
	_, err := ask[*proto.CancelResp](ctx, c, &proto.Cancel{ReqID: reqID})
	return err
}

// Resize sets the size of a process's terminal.
func (c *Client) Resize(ctx context.Context, procID string, size proto.PTY) error {
	_, err := ask[*proto.ResizeResp](ctx, c, &proto.ResizeReq{ProcID: procID, Rows: size.Rows, Cols: size.Cols})
	return err
}

// Ping asks for a sign of life and returns for how long the daemon has been up.
func (c *Client) Ping(ctx context.Context) (time.Duration, error) {
	pong, err := ask[*proto.Pong](ctx, c, &proto.Ping{})
	if err != nil {
		return 0, err
	}
	return time.Duration(float64(pong.UptimeSeconds) * float64(time.Second)), nil
}

// Shutdown ends the session with all its processes and waits until the daemon
// has closed the connection. grace 0 leaves the profiles' own; it is rounded up
// to seconds.
func (c *Client) Shutdown(ctx context.Context, grace time.Duration) error {
	req := &proto.Shutdown{Timeout: proto.WholeSeconds((grace + time.Second - 1) / time.Second)}
	if err := c.send(ctx, req); err != nil {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for the end of the session: %w", ctx.Err())
	}
}

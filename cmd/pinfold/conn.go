package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// partLimit is how long the end of a session may take before the connection is
// just closed.
const partLimit = 10 * time.Second

// link is a connection with a session, and the private daemon behind it, if any.
type link struct {
	*client.Client
	hello  *proto.HandshakeResp
	daemon *privateDaemon
}

// dial opens a session with the daemon at socket.
func (c *cli) dial(ctx context.Context, socket string, role proto.Role) (*link, error) {
	conn, err := client.Dial(ctx, socket)
	if err != nil {
		return nil, dialFailure(socket, err)
	}
	h := &proto.Handshake{AgentID: "pinfold", Role: role}
	h.Proc.Batch = role == proto.RoleOperator // who only reads
	hello, err := conn.Handshake(ctx, h)
	if err != nil {
		err = errorf("cannot open a session with %s: %s", socket, refusalText(err))
		return nil, errors.Join(fail(exitRefused(role), "pinfold policy check", err), conn.Close())
	}
	return &link{Client: conn, hello: hello}, nil
}

// exitRefused is the exit code of a handshake that was refused: for an agent it is
// policy's no to whatever it wanted to run.
func exitRefused(role proto.Role) int {
	if role == proto.RoleOperator {
		return exitFailed
	}
	return exitRunRefused
}

// dialOrStart opens a session with the daemon at socket, or, where there is no such
// file, with a private daemon. A socket that is there and refuses is an error.
func (c *cli) dialOrStart(ctx context.Context, socket string) (*link, error) {
	_, err := os.Lstat(socket)
	if !errors.Is(err, fs.ErrNotExist) {
		return c.dial(ctx, socket, proto.RoleAgent)
	}
	daemon, err := c.startDaemon(ctx)
	if err != nil {
		return nil, err
	}
	l, err := c.dial(ctx, daemon.socket, proto.RoleAgent)
	if err != nil {
		return nil, errors.Join(err, daemon.stop()) //nolint:contextcheck // also after what ended ctx
	}
	l.daemon = daemon
	return l, nil
}

// part ends the session, the connection and the private daemon.
func (l *link) part(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), partLimit)
	defer cancel()
	err := l.Shutdown(ctx, 0)
	if errors.Is(err, client.ErrClosed) {
		err = nil
	}
	err = errors.Join(err, l.Close())
	if l.daemon != nil {
		err = errors.Join(err, l.daemon.stop()) //nolint:contextcheck // also after what ended ctx
	}
	return err
}

func dialFailure(socket string, err error) error {
	hint := "ls -l " + socket
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint = "systemctl start pinfoldd.socket, or --socket PATH"
	case errors.Is(err, syscall.ECONNREFUSED):
		hint = "systemctl restart pinfoldd, or remove " + socket
	case errors.Is(err, fs.ErrPermission):
		hint = "usermod -aG pinfold USER, then log in again"
	}
	return fail(exitFailed, hint, errorf("cannot connect to %s: %w", socket, cause(err)))
}

// refusalText is what the daemon said, without the request's name.
func refusalText(err error) string {
	if refused, ok := errors.AsType[*client.Error](err); ok {
		return refused.Message
	}
	return err.Error()
}

// refusal turns the daemon's no into a failure that keeps its sentence and hint.
func refusal(err error, fallback string) error {
	refused, ok := errors.AsType[*client.Error](err)
	if !ok {
		return fail(exitFailed, fallback, err)
	}
	hint := refused.Hint
	if hint == "" {
		hint = fallback
	}
	codes := map[proto.Code]int{
		proto.CodeDenied: exitRunRefused, proto.CodeUnauthorized: exitRunRefused, proto.CodeNotFound: exitRunAbsent,
	}
	code, ok := codes[refused.Code]
	if !ok {
		code = exitFailed
	}
	return fail(code, hint, errors.New(refused.Message))
}

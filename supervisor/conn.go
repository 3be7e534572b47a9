package supervisor

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"pinfold/audit"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/supervisor/session"
	"pinfold/supervisor/socket"
)

// handshakeTime is how long a new connection may take to say who it is.
const handshakeTime = 10 * time.Second

// serveConn is the life of one connection: handshake, then requests until the client
// leaves, and answers and output until its session is done with it.
func (d *daemon) serveConn(ctx context.Context, c *socket.Conn) {
	log := d.log.With(slog.Int("uid", int(c.Peer().UID)), slog.Int("pid", c.Peer().PID))
	defer closing(log, c)
	stop := context.AfterFunc(ctx, func() {
		if err := c.CloseRead(); err != nil {
			log.Debug("cannot stop reading", slog.Any("error", err))
		}
	})
	defer stop()
	file, err := c.File()
	if err != nil {
		d.entering.Done()
		log.Error("cannot hand the connection on", slog.Any("error", err))
		return
	}
	cl, err := d.handshake(ctx, c, file)
	d.entering.Done()
	if err != nil {
		closing(log, file)
		d.refusedConn(log, c.Peer(), err)
		return
	}
	d.wg.Go(func() { //nolint:contextcheck // what a session starts ends with the session, not with its connection
		d.read(log, c, cl)
		cl.Left()
		c.AwaitGone()
		cl.Gone()
	})
	cl.Serve()
	closing(log, c)
	cl.Wait()
}

// refusedConn tells of a connection that got no session.
func (d *daemon) refusedConn(log *slog.Logger, peer socket.Peer, err error) {
	refused, ok := errors.AsType[*refusedError](err)
	of := audit.FloodBroken
	if ok {
		of = audit.FloodRefused
	}
	if !d.floods.First(peer.UID, of) {
		return
	}
	log.Info("connection refused", slog.Any("error", err))
	if ok {
		d.note(audit.Subject{UID: peer.UID}, audit.Refused{PID: peer.PID, Unit: peer.Unit, Code: string(refused.code), Reason: refused.text})
	}
}

// serveSession owns a session until its end.
func (d *daemon) serveSession(ctx context.Context, s *session.Session) {
	log := d.log.With(slog.String("session", s.ID()))
	log.Info("session opened")
	s.Serve(ctx)
	log.Info("session ended")
}

func closing(log *slog.Logger, c io.Closer) {
	if err := c.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		log.Debug("cannot close a connection", slog.Any("error", err))
	}
}

// read takes frames until the client sends no more.
func (d *daemon) read(log *slog.Logger, c *socket.Conn, cl *session.Client) {
	for {
		line, err := c.ReadFrame()
		var fault *proto.ErrorMsg
		var req proto.Request
		switch {
		case errors.Is(err, socket.ErrTooLong):
			fault = proto.TooLarge()
		case errors.Is(err, socket.ErrOtherUID):
			log.Warn("bytes of another uid over a passed connection, closing it", slog.String("session", cl.Session().ID()))
			cl.Refuse(proto.NewError("", proto.CodeUnauthorized, "cannot take a frame: it was sent by another uid than the one that connected"))
			return
		case err != nil:
			return
		default:
			req, fault = proto.Decode(line)
		}
		if hs, ok := req.(*proto.Handshake); ok {
			fault = proto.NewError(hs.ID, proto.CodeSchemaViolation, "cannot take a second handshake on one connection")
		}
		if fault != nil {
			if !cl.Refuse(fault) {
				return
			}
			continue
		}
		if !cl.Handle(req) {
			return
		}
	}
}

// refusedError is why a connection got no session.
type refusedError struct {
	reason proto.Reason
	code   proto.Code
	text   string
}

func (e *refusedError) Error() string { return e.text }

// handshake reads the first message and opens a session, or goes on with one, or refuses.
// file is the session's where there is no error.
func (d *daemon) handshake(ctx context.Context, c *socket.Conn, file *os.File) (*session.Client, error) {
	if err := c.SetReadDeadline(time.Now().Add(handshakeTime)); err != nil {
		return nil, err
	}
	line, err := c.ReadFrame()
	if errors.Is(err, socket.ErrTooLong) {
		return nil, d.send(c, proto.TooLarge(), err)
	}
	if err != nil {
		return nil, err
	}
	req, fault := proto.Decode(line)
	h, ok := req.(*proto.Handshake)
	switch {
	case ok && fault != nil:
		return nil, d.send(c, &proto.HandshakeResp{
			Reply: proto.Refused(h, fault.Code, fault.Message, ""), Reason: proto.ReasonVersionMismatch, AcceptedCaps: []proto.AcceptedCap{},
		}, errors.New(fault.Message))
	case fault != nil && fault.Code != proto.CodeVersionMismatch:
		return nil, d.send(c, fault, errors.New(fault.Message))
	case fault != nil:
		return nil, d.send(c, proto.NewError(fault.ReqID, proto.CodeUnauthorized, "cannot take a message before the handshake"), errors.New(fault.Message))
	case !ok:
		text := fmt.Sprintf("cannot take a %s before the handshake", req.Kind())
		return nil, d.send(c, proto.NewError(req.Base().ID, proto.CodeUnauthorized, text), errors.New(text))
	}
	a, err := d.admit(c, h)
	if err != nil {
		return nil, d.refuse(c, h, err)
	}
	if h.Resume != (proto.ResumeRequest{}) {
		return d.resume(c, file, h, a)
	}
	return d.open(ctx, c, file, h, a)
}

// refuse answers a handshake that got no session, and returns why.
func (d *daemon) refuse(c *socket.Conn, h *proto.Handshake, err error) error {
	refused := &refusedError{reason: proto.ReasonServerError, code: proto.CodeServerError, text: err.Error()}
	errors.As(err, &refused)
	return d.send(c, &proto.HandshakeResp{
		Reply: proto.Refused(h, refused.code, refused.text, ""), Reason: refused.reason, AcceptedCaps: []proto.AcceptedCap{},
	}, err)
}

// send writes one message and returns why, or the error of the write.
func (d *daemon) send(c *socket.Conn, m proto.Message, why error) error {
	line, err := proto.Append(nil, m)
	if err == nil {
		err = c.SetWriteDeadline(time.Now().Add(handshakeTime))
	}
	if err == nil {
		err = c.Write(line)
	}
	return errors.Join(why, err, c.SetWriteDeadline(time.Time{}))
}

// admitted is a caller that may have a session.
type admitted struct {
	caller  policy.Caller
	adm     *policy.Admission
	options session.Options
}

// admit asks the policy whether a caller may have a session.
func (d *daemon) admit(c *socket.Conn, h *proto.Handshake) (*admitted, error) {
	if len(h.AgentCaps) > 0 && !slices.Contains(h.AgentCaps, proto.Capability) {
		return nil, &refusedError{proto.ReasonNoCaps, proto.CodeUnsupported, fmt.Sprintf("cannot open session: this daemon offers the capability %q only", proto.Capability)}
	}
	caller := callerOf(c.Peer())
	if own := uint32(os.Geteuid()); d.stage.Features().Rootless && caller.UID != own {
		text := fmt.Sprintf("cannot open session for uid %d: this daemon runs without root, as uid %d, and can start nothing as another user; run pinfoldd as root to serve others", caller.UID, own)
		return nil, &refusedError{proto.ReasonAuthFailed, proto.CodeUnauthorized, text}
	}
	adm, err := d.policy.Load().Admit(caller)
	if err != nil {
		return nil, &refusedError{proto.ReasonAuthFailed, proto.CodeUnauthorized, err.Error()}
	}
	for _, n := range adm.Notes {
		d.log.Warn("a caller rule does not match", slog.String("note", n))
	}
	if err := checkToken(adm.AuthTokenFile, h.AuthToken); err != nil {
		return nil, err
	}
	o := session.Options{Handshake: h.ID, Role: h.Role, Form: h.Proc.Data, Batch: h.Proc.Batch}
	return &admitted{caller: caller, adm: adm, options: o}, nil
}

// open makes a new session and welcomes its client.
func (d *daemon) open(ctx context.Context, c *socket.Conn, file *os.File, h *proto.Handshake, a *admitted) (*session.Client, error) {
	cl, err := session.New(d.host, a.caller, a.adm, a.options, file, c)
	if err != nil {
		return nil, d.refuse(c, h, &refusedError{proto.ReasonServerError, proto.CodeProcLimit, err.Error()})
	}
	if err := d.welcome(c, h, a, cl, cl.Offer()); err != nil {
		cl.Session().Abandon()
		return nil, err
	}
	d.wg.Go(func() { d.serveSession(ctx, cl.Session()) })
	return cl, nil
}

// resume goes on with a session and welcomes its client. Why it cannot is not told: who
// has no token must not learn which sessions there are, or whose.
func (d *daemon) resume(c *socket.Conn, file *os.File, h *proto.Handshake, a *admitted) (*session.Client, error) {
	cl, offer := d.host.Registry.Resume(h.Resume.SessionID, session.Comeback{
		Caller: a.caller, Admit: a.adm, Options: a.options, Token: h.Resume.Token, PID: c.Peer().PID, Conn: file, Link: c,
	})
	if cl == nil {
		text := "cannot resume session: this caller has no such session in this role, or the token is not its own; open a new one"
		return nil, d.refuse(c, h, &refusedError{proto.ReasonAuthFailed, proto.CodeUnauthorized, text})
	}
	if err := d.welcome(c, h, a, cl, offer); err != nil {
		d.log.Info("cannot welcome a client back, its session goes on without it", slog.String("session", cl.Session().ID()), slog.Any("error", err))
		closing(d.log, c) // what is left of it goes the way of any connection that was lost
	}
	return cl, nil
}

// welcome answers a handshake that got a session.
func (d *daemon) welcome(c *socket.Conn, h *proto.Handshake, a *admitted, cl *session.Client, offer *proto.ResumeOffer) error {
	meta := proto.NewMetadata(h)
	meta.Server, meta.Profiles = "pinfold "+Version(), a.adm.Profiles
	if offer == nil {
		meta.Extensions = slices.DeleteFunc(meta.Extensions, func(e proto.Extension) bool { return e == proto.ExtResume })
	}
	resp := &proto.HandshakeResp{
		Reply: proto.Done(h), SessionID: cl.Session().ID(), MaxParallel: a.adm.Quota.Processes, Resume: offer,
		AcceptedCaps: []proto.AcceptedCap{{Capability: proto.Capability, Enabled: true, Metadata: meta}},
	}
	return errors.Join(d.send(c, resp, nil), c.SetReadDeadline(time.Time{}))
}

// checkToken compares the token of a handshake with the one that policy names, in
// constant time.
func checkToken(file, token string) error {
	if file == "" {
		return nil
	}
	want, err := os.ReadFile(file)
	if err != nil {
		refused := &refusedError{proto.ReasonServerError, proto.CodeServerError, "cannot check auth_token: the token file that policy names cannot be read"}
		return fmt.Errorf("%w: %w", refused, err) // the cause is for the log alone
	}
	secret := strings.TrimSpace(string(want))
	if secret == "" {
		return &refusedError{proto.ReasonServerError, proto.CodeServerError, "cannot check auth_token: the token file that policy names is empty"}
	}
	a, b := sha256.Sum256([]byte(secret)), sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return &refusedError{proto.ReasonAuthFailed, proto.CodeUnauthorized, "cannot open session: auth_token is not the one that policy asks for"}
	}
	return nil
}

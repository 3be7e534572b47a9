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

// serveConn is the life of one connection: handshake, then requests until the
// client leaves, then the end of its session.
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
		log.Error("cannot hand the connection on", slog.Any("error", err))
		return
	}
	defer closing(log, file)
	s, err := d.handshake(c, file)
	if err != nil {
		refused, ok := errors.AsType[*refusedError](err)
		of := audit.FloodBroken
		if ok {
			of = audit.FloodRefused
		}
		if !d.floods.First(c.Peer().UID, of) {
			return
		}
		log.Info("connection refused", slog.Any("error", err))
		if ok {
			d.note(audit.Subject{UID: c.Peer().UID}, audit.Refused{
				PID: c.Peer().PID, Unit: c.Peer().Unit, Code: string(refused.code), Reason: refused.text,
			})
		}
		return
	}
	log.Info("session opened", slog.String("session", s.ID()))
	d.wg.Go(func() { //nolint:contextcheck // what a session starts ends with the session, not with its connection
		d.read(log, c, s)
		s.Left()
	})
	s.Serve(ctx)
	log.Info("session ended", slog.String("session", s.ID()))
}

func closing(log *slog.Logger, c io.Closer) {
	if err := c.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		log.Debug("cannot close a connection", slog.Any("error", err))
	}
}

// read takes frames until the client sends no more.
func (d *daemon) read(log *slog.Logger, c *socket.Conn, s *session.Session) {
	for {
		line, err := c.ReadFrame()
		var fault *proto.ErrorMsg
		var req proto.Request
		switch {
		case errors.Is(err, socket.ErrTooLong):
			fault = proto.TooLarge()
		case errors.Is(err, socket.ErrOtherUID):
			log.Warn("bytes of another uid over a passed connection, closing it", slog.String("session", s.ID()))
			s.Refuse(proto.NewError("", proto.CodeUnauthorized, "cannot take a frame: it was sent by another uid than the one that connected"))
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
			if !s.Refuse(fault) {
				return
			}
			continue
		}
		if !s.Handle(req) {
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

// handshake reads the first message and opens a session, or refuses.
func (d *daemon) handshake(c *socket.Conn, file *os.File) (*session.Session, error) {
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
	s, adm, err := d.open(c, file, h)
	if err != nil {
		refused := &refusedError{reason: proto.ReasonServerError, code: proto.CodeServerError, text: err.Error()}
		errors.As(err, &refused)
		return nil, d.send(c, &proto.HandshakeResp{
			Reply: proto.Refused(h, refused.code, refused.text, ""), Reason: refused.reason, AcceptedCaps: []proto.AcceptedCap{},
		}, err)
	}
	meta := proto.NewMetadata(h)
	meta.Server, meta.Profiles = "pinfold "+Version(), adm.Profiles
	resp := &proto.HandshakeResp{
		Reply: proto.Done(h), SessionID: s.ID(), MaxParallel: adm.Quota.Processes,
		AcceptedCaps: []proto.AcceptedCap{{Capability: proto.Capability, Enabled: true, Metadata: meta}},
	}
	if err := errors.Join(d.send(c, resp, nil), c.SetReadDeadline(time.Time{})); err != nil {
		s.Abandon()
		return nil, err
	}
	return s, nil
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

// open admits a caller and makes its session.
func (d *daemon) open(c *socket.Conn, file *os.File, h *proto.Handshake) (*session.Session, *policy.Admission, error) {
	if len(h.AgentCaps) > 0 && !slices.Contains(h.AgentCaps, proto.Capability) {
		return nil, nil, &refusedError{proto.ReasonNoCaps, proto.CodeUnsupported, fmt.Sprintf("cannot open session: this daemon offers the capability %q only", proto.Capability)}
	}
	caller := callerOf(c.Peer())
	if own := uint32(os.Geteuid()); d.stage.Features().Rootless && caller.UID != own {
		text := fmt.Sprintf("cannot open session for uid %d: this daemon runs without root, as uid %d, and can start nothing as another user; run pinfoldd as root to serve others", caller.UID, own)
		return nil, nil, &refusedError{proto.ReasonAuthFailed, proto.CodeUnauthorized, text}
	}
	adm, err := d.policy.Load().Admit(caller)
	if err != nil {
		return nil, nil, &refusedError{proto.ReasonAuthFailed, proto.CodeUnauthorized, err.Error()}
	}
	for _, n := range adm.Notes {
		d.log.Warn("a caller rule does not match", slog.String("note", n))
	}
	if err := checkToken(adm.AuthTokenFile, h.AuthToken); err != nil {
		return nil, nil, err
	}
	o := session.Options{Handshake: h.ID, Role: h.Role, Form: h.Proc.Data, Batch: h.Proc.Batch}
	s, err := session.New(d.host, caller, adm, o, file, c)
	if err != nil {
		return nil, nil, &refusedError{proto.ReasonServerError, proto.CodeProcLimit, err.Error()}
	}
	return s, adm, nil
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

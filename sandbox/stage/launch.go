package stage

import (
	"context"
	"errors"
	"time"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// gateTimeout bounds how long a target may take from its command to its last gate.
const gateTimeout = 30 * time.Second

// launch answers one request to launch or to prepare a pen: passed are the caller's
// connection and the attaches.
func (s *server) launch(ctx context.Context, m stagewire.Message, passed []int) (any, []int, error) {
	n := min(len(passed), 1)
	conn, attach := passed[:n], linux.Files(passed[n:])
	defer linux.CloseAll(attach...)
	l := newLauncher(s)
	defer l.wipe()
	if err := l.read(m); err != nil {
		return nil, nil, err
	}
	peer, err := peerOf(conn)
	if err != nil {
		return nil, nil, err
	}
	if s.pens.full() {
		return nil, nil, errBusy
	}
	if l.c == nil && !s.trees.detached {
		return nil, nil, errAttached
	}
	if err := untraceable(s.dumpable); err != nil {
		return nil, nil, err
	}
	give, err := s.turn(ctx, peer.UID)
	if err != nil {
		return nil, nil, err
	}
	defer give()
	if l.p, err = s.profiles.get(l.key, l.raw); err != nil {
		return nil, nil, err
	}
	l.peer = peer
	err = l.raise(peer, attach)
	switch {
	case err != nil:
		return nil, nil, errors.Join(err, l.close())
	case l.c == nil:
		return s.prepared(ctx, l)
	}
	a, out, err := l.reach(ctx)
	if err == nil {
		err = s.profiles.keep(l.key, l.p)
	}
	return a, out, errors.Join(err, l.close())
}

// read takes what a request says.
func (l *launcher) read(m stagewire.Message) (err error) {
	var r stagewire.Launch
	if err := stagewire.Unmarshal(m.Body, &r); err != nil {
		return refused("cannot read the spec: %w", err)
	}
	l.sent, l.raw = r.Command, r.Profile
	if err := stagewire.Unmarshal(r.Site, &l.site); err != nil {
		return refused("cannot read the site: %w", err)
	}
	if (m.Op == stagewire.OpPrepare) != (len(r.Command) == 0) {
		return refused("cannot launch without a command, nor prepare a pen with one")
	}
	if m.Op != stagewire.OpPrepare && len(r.Opening)+len(r.Seen) > 0 {
		return refused("cannot launch by what was seen or opened before: that is for a pen that waits")
	}
	if len(r.Opening) > 0 {
		if l.opening, err = readOpening(r.Opening); err != nil {
			return err
		}
	}
	if len(r.Seen) > 0 {
		if err := stagewire.Unmarshal(r.Seen, &l.before); err != nil {
			return refused("cannot read what was seen: %w", err)
		}
	}
	if m.Op == stagewire.OpLaunch {
		if l.c, err = readCommand(r.Command); err != nil {
			return err
		}
	}
	l.key, err = launchKey(r)
	return err
}

// launchKey is the key of the profile to launch: that of what was sent, or the one
// that was named alone.
func launchKey(r stagewire.Launch) (string, error) {
	switch {
	case (r.Key == "") == (len(r.Profile) == 0):
		return "", refused("cannot launch a profile that is not either sent or named")
	case r.Key == "":
		return stagewire.ProfileKey(r.Profile), nil
	}
	return r.Key, nil
}

func readOpening(raw []byte) (*sandbox.Opening, error) {
	var o sandbox.Opening
	if err := stagewire.Unmarshal(raw, &o); err != nil {
		return nil, refused("cannot read what is to be opened: %w", err)
	}
	if err := o.Validate(); err != nil {
		return nil, refused("%w", err)
	}
	return &o, nil
}

func readCommand(raw []byte) (*sandbox.Command, error) {
	var c sandbox.Command
	if err := stagewire.Unmarshal(raw, &c); err != nil {
		return nil, refused("cannot read the command: %w", err)
	}
	if err := c.Validate(); err != nil {
		return nil, refused("%w", err)
	}
	return &c, nil
}

// turn waits until one more pen of uid may be built.
func (s *server) turn(ctx context.Context, uid uint32) (give func(), err error) {
	done, err := s.starts.take(ctx, uid)
	if err != nil {
		return nil, err
	}
	select {
	case s.launches <- struct{}{}:
		return func() { <-s.launches; done() }, nil
	case <-ctx.Done():
		done()
		return nil, ctx.Err()
	}
}

// lacks refuses a profile that requires what this host cannot give.
func (s *server) lacks(f *sandbox.Profile) error {
	for _, k := range s.features.LacksWith(f.Net) {
		need := levelOf(f, k.Control) == sandbox.LevelRequired
		switch k.Control {
		case sandbox.ControlUserNS:
			need = f.UserNS
		case sandbox.ControlNetNS:
			need = need && f.Net == sandbox.NetNone
		case sandbox.ControlMemory, sandbox.ControlPids, sandbox.ControlCPU, sandbox.ControlIO:
			need = false // whoever owns the cgroup sees to it
		case sandbox.ControlMounts, sandbox.ControlLandlock, sandbox.ControlSeccomp, sandbox.ControlCaps,
			sandbox.ControlPidNS, sandbox.ControlIPCNS, sandbox.ControlRlimits:
		}
		if need {
			return &sandbox.StepError{Step: -1, Text: "give the required control " + string(k.Control) + ": " + k.Why, Where: sandbox.WhereStage, Hint: k.Fix}
		}
	}
	return nil
}

package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/sandbox"
)

// A session that has started two processes of one kind in a row will start a third: a
// pen for that is made ready while the last one runs. It is as any other pen, and holds
// one process; only its command comes later. Nothing of the decision is taken
// beforehand, and the stage gives a pen its command only if it would still build the same.

// maxReadyTime is how long a pen waits for a spawn.
const maxReadyTime = 10 * time.Second

// maxReadyStart is how long a ready pen may take to its last gate: one that somebody stops
// from outside on its way there, as its own user may, is left for a new one.
const maxReadyStart = 500 * time.Millisecond

// kind is what a spawn is but for its command: spawns of one kind need the same pen.
type kind struct {
	spec          sandbox.Spec
	files         []*os.File // of its attaches
	mounts        []sandbox.MountFacts
	limits, quota cgroup.Limits
	controls      []policy.Need
}

// bare is the kind without what only one spawn has, but for the program and directory: the
// next is likely to need them.
func (k *kind) bare() *kind {
	b := &kind{spec: k.spec, mounts: k.mounts, limits: k.limits, quota: k.quota, controls: k.controls}
	c := &k.spec.Command
	b.spec.Command = sandbox.Command{Program: c.Program, ProgramID: c.ProgramID, Dir: c.Dir, DirID: c.DirID} // the rest may hold secrets
	return b
}

// like reports whether both are one kind.
func (k *kind) like(o *kind) bool {
	return o != nil && k.limits == o.limits && k.quota == o.quota && slices.Equal(k.mounts, o.mounts) && slices.Equal(k.controls, o.controls) &&
		sameSite(k.spec.Site, o.spec.Site) && reflect.DeepEqual(k.spec.Profile, o.spec.Profile)
}

// sameSite compares all but the cgroup, which each pen has for itself.
func sameSite(a, b sandbox.Site) bool {
	a.Cgroup, a.Join = b.Cgroup, b.Join
	return reflect.DeepEqual(a, b)
}

// kind turns a grant into what a pen for it is made of.
func (s *Session) kind(ctx context.Context, p *process, g *policy.Grant, dir *os.File) (*kind, error) {
	pl, files, err := s.place(ctx, p, g, dir)
	if err != nil {
		return nil, err
	}
	return kindAt(g, pl, files)
}

// kindAt is kind for a place that is known.
func kindAt(g *policy.Grant, pl Place, files []*os.File) (_ *kind, err error) {
	if g.Exec == policy.ExecListed {
		if pl.Listed, err = listed(g); err != nil {
			return nil, err
		}
	}
	k := &kind{files: files, quota: cgroup.NoLimits(), controls: g.Controls}
	k.spec, k.limits = Plan(g, pl)
	k.quota.Memory, k.quota.Pids, k.quota.CPU = cgroup.Bytes(g.Quota.Memory), g.Quota.Pids, g.Quota.CPU
	for _, f := range files {
		m, err := sandbox.MountOf(f)
		if err != nil {
			return nil, fmt.Errorf("cannot look at the mount of %s: %w", f.Name(), err)
		}
		k.mounts = append(k.mounts, m)
	}
	return k, nil
}

// ready is the pen that a session has ready, at most one.
type ready struct {
	mu   sync.Mutex
	last *kind // of the last spawn
	next *readyPen

	making bool // one was wanted, and is not there yet
	over   bool // the session has ended
}

type readyPen struct {
	*kind
	policy *policy.Policy // which has decided the spawn before it
	asked  proto.Spawn    // bare: by that
	seen   *seen

	made  chan struct{} // closed once the rest stands
	pen   *sandbox.Prepared
	shown proof
	job   *cgroup.Job
	err   error
	idle  *time.Timer
}

// bareRequest is a request without what may differ between spawns that one look is for.
func bareRequest(r *proto.Spawn) proto.Spawn {
	b := *r
	b.Cmd, b.Env, b.Labels, b.OpID = slices.Clone(r.Cmd[:min(1, len(r.Cmd))]), nil, nil, "" // the rest may hold secrets
	return b
}

// take returns the pen that is ready for that kind, or nil. One that is under way it
// waits for, as long as it would for one that is ready.
func (r *ready) take(ctx context.Context, k *kind) (*readyPen, error) {
	r.mu.Lock()
	n := r.next
	if n == nil || !k.like(n.kind) {
		r.mu.Unlock()
		return nil, nil //nolint:nilnil // none is ready
	}
	r.mu.Unlock()
	late := time.NewTimer(maxReadyStart)
	defer late.Stop()
	select {
	case <-n.made:
	case <-late.C:
		return nil, nil //nolint:nilnil // somebody may have stopped it: what comes of it is for another spawn
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !r.drop(n) || n.err != nil {
		return nil, nil //nolint:nilnil // another has it, or it could not be made
	}
	n.idle.Stop()
	return n, nil
}

// ripe returns the pen that is ready, or nil. What was seen for it is the caller's to close:
// the pen may go to somebody else meanwhile.
func (r *ready) ripe() *readyPen {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.next
	if n == nil {
		return nil
	}
	select {
	case <-n.made:
	default:
		return nil // the whole way waits for it
	}
	if n.err != nil {
		return nil
	}
	n.seen.hold()
	return n
}

// wants reports whether a pen should be made ready after a spawn of that kind.
func (r *ready) wants(k *kind) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	again := k.like(r.last)
	r.last = k.bare()
	if !again || r.over || r.making || k.spec.Profile.PTY || r.next != nil && k.like(r.next.kind) {
		return false
	}
	if k.quota.Pids > 0 && k.quota.Pids < minQuota {
		return false // what waits would take what another process needs
	}
	r.making = true
	return true
}

// minQuota is the least limit of a caller's pids beside which a pen that waits, with two
// of them, does not matter.
const minQuota = 128

// put announces a pen that is being made, and returns the one that it takes the place
// of; false: the session has ended.
func (r *ready) put(n *readyPen) (old *readyPen, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.making = false
	if r.over {
		return nil, false
	}
	old, r.next = r.next, n
	return old, true
}

// leave says that no pen is made, though one was wanted.
func (r *ready) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.making = false
}

// drop takes n back if nobody has taken it.
func (r *ready) drop(n *readyPen) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next != n {
		return false
	}
	r.next = nil
	return true
}

// prepareAfter is how long a process runs before a pen for the next is built beside it.
const prepareAfter = 20 * time.Millisecond

// beside waits until building a pen no longer keeps a short process from its end.
func (p *process) beside() {
	t := time.NewTimer(prepareAfter)
	defer t.Stop()
	select {
	case <-p.concluded:
		p.last.first()
	case <-p.ctx.Done():
	case <-t.C:
	}
}

// prepare makes a pen ready, with which goes what was seen. The files are those of its
// attaches.
func (s *Session) prepare(n *readyPen, files []*os.File) {
	if !s.host.Registry.takeReady(s.account()) {
		s.ready.leave()
		n.seen.close()
		return
	}
	old, ok := s.ready.put(n)
	if !ok {
		s.host.Registry.dropReady(s.account())
		n.seen.close()
		return
	}
	n.err = s.make(n, files)
	if n.err == nil {
		n.idle = time.AfterFunc(maxReadyTime, func() {
			s.post(func() {
				if s.ready.drop(n) {
					s.wg.Go(func() { s.discard(n) })
				}
			})
		})
	}
	close(n.made)
	if n.err != nil {
		s.log.Debug("no pen is ready for the next spawn", attrErr(n.err))
		s.host.Registry.dropReady(s.account())
		s.ready.drop(n)
		n.seen.close()
	}
	if old != nil {
		s.discard(old)
	}
}

func (s *Session) make(n *readyPen, files []*os.File) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.base), startTime)
	defer cancel()
	if n.job, err = s.makeJob(proto.NewID(), n.kind); err != nil {
		return err
	}
	spec := n.spec // what others compare with stays as it is
	inJob(&spec.Site, n.job.Path(), n.job.Join())
	if n.pen, err = s.host.Stage.Prepare(ctx, s.conn, spec, files, &n.seen.Seen); err != nil {
		s.removeJob(ctx, n.job)
		return err
	}
	if n.shown, err = proofOf(n.pen.Enforcement(), n.controls, n.job.Applied()); err != nil {
		err = errors.Join(err, n.pen.Abort(ctx))
		s.removeJob(ctx, n.job)
	}
	return err
}

// discard ends a pen that nobody will use.
func (s *Session) discard(n *readyPen) {
	<-n.made
	if n.err != nil {
		return
	}
	n.idle.Stop()
	n.seen.close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.base), releaseTime)
	defer cancel()
	if err := n.pen.Abort(ctx); err != nil {
		s.log.Error("cannot end a pen that was ready", attrErr(err))
	}
	s.removeJob(ctx, n.job)
	s.host.Registry.dropReady(s.account())
}

// unready ends the pen that is ready, and keeps another from being made.
func (s *Session) unready() {
	s.ready.mu.Lock()
	n := s.ready.next
	s.ready.next, s.ready.over = nil, true
	s.ready.mu.Unlock()
	if n != nil {
		s.discard(n)
	}
}

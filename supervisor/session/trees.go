package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/sandbox"
	"pinfold/supervisor/record"
)

// scratchSize is the size of a session's scratch workspace, and of its private
// home, in memory.
const scratchSize = 256 << 20

// trees are the session's own: its dynamic uid, its scratch workspace and its
// home. Each is made when it is first needed and goes with the session. Spawns of
// one session may need them at once.
type trees struct {
	mu     sync.Mutex
	uid    uint32 // 0: none taken
	made   map[string]tree
	groups []*cgroup.Group // the session's and the caller's cgroup, once made
}

type tree struct {
	dir *os.File
	id  sandbox.Identity
}

// runIDs returns the ids that a grant's command runs with.
func (s *Session) runIDs(g *policy.Grant) (uid, gid uint32, err error) {
	if s.host.Stage.Features().Rootless && g.RunAs.Kind != policy.RunAsCaller {
		return 0, 0, &runAsError{g.RunAs.Kind}
	}
	switch g.RunAs.Kind {
	case policy.RunAsCaller:
		return s.caller.UID, s.caller.GID, nil
	case policy.RunAsNamed:
		return g.RunAs.UID, g.RunAs.GID, nil
	case policy.RunAsDynamic:
	}
	s.trees.mu.Lock()
	defer s.trees.mu.Unlock()
	if s.trees.uid == 0 {
		if s.trees.uid, err = s.host.Registry.takeUID(); err != nil {
			return 0, 0, err
		}
		s.remember(func(r *record.Session) { r.RunUID = s.trees.uid })
	}
	return s.trees.uid, s.trees.uid, nil
}

// runAsError is another uid than the caller's, asked of a daemon that is not root.
type runAsError struct{ kind policy.RunAsKind }

func (e *runAsError) Error() string {
	return fmt.Sprintf("cannot start: run_as: %s needs another uid than the daemon's, and the daemon is not root", e.kind)
}

func (*runAsError) hint() string { return "set run_as: caller in the profile, or run pinfoldd as root" }

// scratch returns the session's memory file system of a name, owned by uid.
func (s *Session) scratch(ctx context.Context, name string, uid, gid uint32) (tree, error) {
	s.trees.mu.Lock()
	defer s.trees.mu.Unlock()
	key := s.scratchKey(name, uid)
	if t, ok := s.trees.made[key]; ok {
		return t, nil
	}
	dir, id, err := s.host.Stage.Scratch(ctx, key, scratchSize, scratchSize/int64(perInode), uid, gid, 0o700)
	if err != nil {
		return tree{}, fmt.Errorf("cannot make the session's %s: %w", name, err)
	}
	if s.trees.made == nil {
		s.trees.made = map[string]tree{}
	}
	t := tree{dir, id}
	s.trees.made[key] = t
	s.remember(func(r *record.Session) {
		if !slices.ContainsFunc(r.Scratch, func(c record.Scratch) bool { return c.Name == key }) { // an adopted session has it already
			r.Scratch = append(r.Scratch, record.Scratch{Name: key, UID: uid, GID: gid})
		}
	})
	return t, nil
}

// scratchKey is the name of the session's memory file system of a name and an owner.
func (s *Session) scratchKey(name string, uid uint32) string {
	return s.id + "-" + name + "-" + strconv.Itoa(int(uid))
}

// home returns the tree that the grant's command has as its home directory, with
// a mount point for a workspace that lies below it.
func (s *Session) home(ctx context.Context, g *policy.Grant, uid, gid uint32) (tree, error) {
	if g.Home.Kind == policy.HomeCache {
		return s.cache(ctx, g, uid, gid)
	}
	t, err := s.scratch(ctx, "home", uid, gid)
	if err != nil {
		return tree{}, err
	}
	if place := mountpoint(g); place != "" && !s.host.Stage.Features().Rootless {
		return t, s.host.Stage.Place(ctx, s.scratchKey("home", uid), place, uid, gid)
	}
	// By its descriptor: a stage that is not root mounts where only it can see it.
	return t, sandbox.MakePlace("/proc/self/fd/"+strconv.Itoa(int(t.dir.Fd())), mountpoint(g), int(uid), int(gid))
}

// cache returns the kept directory of a caller under a name. Files on disk belong
// to the caller; with a dynamic uid the mount maps them.
func (s *Session) cache(ctx context.Context, g *policy.Grant, uid, gid uint32) (tree, error) {
	owner, group := uid, gid
	if mapped(g) {
		owner, group = s.caller.UID, s.caller.GID
	}
	if owner == 0 {
		return tree{}, errors.New("cannot keep a home for root: uid 0 is never mapped into a pen; use home: private")
	}
	dir := filepath.Join(s.host.State, "cache", strconv.Itoa(int(s.caller.UID)), g.Home.Name)
	f, id, err := s.cacheDir(ctx, dir, g, owner, group)
	if err != nil {
		return tree{}, fmt.Errorf("cannot keep the home %q: %w", g.Home.Name, err)
	}
	s.trees.mu.Lock()
	defer s.trees.mu.Unlock()
	key := "cache " + dir
	if old, ok := s.trees.made[key]; ok {
		return old, f.Close()
	}
	if s.trees.made == nil {
		s.trees.made = map[string]tree{}
	}
	t := tree{f, id}
	s.trees.made[key] = t
	return t, nil
}

// cacheDir makes or finds the directory of a kept home. As root that is the stage's to
// do: the daemon has no right to others' directories.
func (s *Session) cacheDir(ctx context.Context, dir string, g *policy.Grant, uid, gid uint32) (*os.File, sandbox.Identity, error) {
	if !s.host.Stage.Features().Rootless {
		return s.host.Stage.Home(ctx, s.conn, g.Home.Name, mountpoint(g), uid, gid)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, sandbox.Identity{}, err
	}
	if err := sandbox.MakePlace(dir, mountpoint(g), int(uid), int(gid)); err != nil {
		return nil, sandbox.Identity{}, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, sandbox.Identity{}, err
	}
	id, err := sandbox.IdentityOf(f)
	if err != nil {
		return nil, sandbox.Identity{}, errors.Join(err, f.Close())
	}
	return f, id, nil
}

// dropTrees gives the session's trees and its uid back.
func (s *Session) dropTrees(ctx context.Context) {
	s.trees.mu.Lock()
	defer s.trees.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	var errs []error
	for _, t := range s.trees.made {
		errs = append(errs, t.dir.Close())
	}
	for _, c := range s.noted.r.Scratch {
		errs = append(errs, s.host.Stage.DropScratch(ctx, c.Name))
	}
	if err := errors.Join(errs...); err != nil {
		s.log.Error("cannot remove a tree of the session", attrErr(err))
	}
	s.trees.made = nil
	for _, g := range s.trees.groups {
		if err := g.Remove(); err != nil && !errors.Is(err, cgroup.ErrBusy) {
			s.log.Error("cannot remove a cgroup", slog.String("cgroup", g.Path()), attrErr(err))
		}
	}
	if s.trees.uid != 0 {
		s.host.Registry.dropUID(s.trees.uid)
	}
}

package stage

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/ruleset"
)

// mounts are the trees of one pen, while it is being built.
type mounts struct {
	view    *holder
	attach  []*holder
	files   []int // indexes of the attaches that are not directories
	states  []sandbox.DenyState
	masked  map[string]cover
	made    []*place
	watches []*watch
	pinned  []string // paths that are bound onto themselves
	walked  []walked // of a pen that waits for its command
	trail   string   // what was found on those walks
	ruled   []ruled  // what rules went on that others can change
	ruleset *os.File
	abi     int
	handled uint64
}

// close gives up all but the placeholders and what is watched.
func (m *mounts) close() error {
	var errs []error
	for _, h := range append(m.attach, m.view) {
		if h != nil {
			errs = append(errs, h.tree.close())
		}
	}
	linux.CloseAll(m.ruleset)
	return errors.Join(errs...)
}

// giveBack drops the placeholders and the watches of a pen that does not come to
// be. A pen that was started has taken both over.
func (s *server) giveBack(m *mounts) error {
	closeWatches(m.watches)
	err := s.dropPlaces(m.made)
	m.watches, m.made = nil, nil
	return err
}

// mount makes the trees of a pen: the view, the attaches, what is denied in them,
// and the Landlock ruleset on them.
func (l *launcher) mount(peer linux.Peer, attach []*os.File) (err error) {
	s, p, m := l.s, l.p, l.m
	defer func() {
		if err != nil {
			err = errors.Join(err, s.giveBack(m))
		}
	}()
	var root *os.File
	if root, l.seen, err = s.viewOf(p); err != nil {
		return err
	}
	if m.view, err = s.holder("/", root); err != nil {
		return err
	}
	m.view.acts = peer
	for i, a := range p.Attach {
		h, file, err := s.attach(a, &l.site, i, attach[i])
		if err != nil {
			return failed("attach "+a.Path, err)
		}
		h.acts = l.ownerOf(a, peer)
		m.attach = append(m.attach, h)
		if file {
			m.files = append(m.files, i)
		}
	}
	d := &denier{s: s, f: &p.Profile, holders: append([]*holder{m.view}, m.attach...), masked: map[string]cover{}}
	err = d.apply()
	m.pinned = d.pinned()
	d.close()
	m.made, m.watches, m.states, m.masked = d.made, d.watches, d.states, d.masked
	if err != nil {
		return err
	}
	if l.c == nil {
		m.walked, m.trail = d.walked, trail(d.walked)
	}
	return s.restrict(m, &p.Profile)
}

// ownerOf is as whom the pen acts on the disk behind an attach: where its uid is not
// mapped to the caller's, as itself. A scratch workspace is the run uid's own.
func (l *launcher) ownerOf(a sandbox.Attach, peer linux.Peer) linux.Peer {
	if a.IDMap || l.site.UID == peer.UID {
		return peer
	}
	return linux.Peer{UID: l.site.UID, GID: l.site.GID}
}

// holder makes a tree of a detached mount that comes to lie at path. Only a tree
// on which something will be mounted needs a place where the kernel cannot do
// that to a detached one.
func (s *server) holder(path string, root *os.File) (*holder, error) {
	st, err := linux.Stat(root)
	if err != nil {
		linux.CloseAll(root)
		return nil, failed("look at the mount for "+path, err)
	}
	t, err := s.trees.plant(root)
	if err != nil {
		return nil, failed("place the mount for "+path, err)
	}
	return &holder{path: path, tree: t, pins: map[string]*os.File{}, id: idOf(st)}, nil
}

// attach makes the mount of a looked-at descriptor, which must be the file that
// was looked at. Its owner on disk is mapped to the run uid where asked for.
func (s *server) attach(a sandbox.Attach, c *sandbox.Site, i int, src *os.File) (*holder, bool, error) {
	st, err := linux.Stat(src)
	if err != nil {
		return nil, false, err
	}
	if idOf(st) != c.Attach[i] {
		return nil, false, refused("the descriptor is not the file that was looked at")
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && kind != unix.S_IFREG {
		return nil, false, refused("it is neither a directory nor a regular file")
	}
	attr := uint64(attrView)
	if !a.Writable {
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	if a.NoExec {
		attr |= unix.MOUNT_ATTR_NOEXEC
	}
	var ns *os.File
	if a.IDMap && (c.DiskUID != c.UID || c.DiskGID != c.GID) {
		if ns, err = s.idmaps.userns(mapping{c.DiskUID, c.DiskGID, c.UID, c.GID}); err != nil {
			return nil, false, err
		}
		defer linux.CloseAll(ns)
	}
	own, err := s.rootless.ours(src)
	if err != nil {
		return nil, false, err
	}
	defer linux.CloseAll(own)
	m, err := bindOf(own, attr, ns)
	if err != nil {
		return nil, false, err
	}
	h, err := s.holder(a.Path, m)
	if err != nil {
		return nil, false, err
	}
	h.orig = src
	return h, kind != unix.S_IFDIR, nil
}

// restrict makes the Landlock ruleset of a pen. Rules on what is not in the view
// allow nothing and are left out; PID 1 adds those on its own file systems.
func (s *server) restrict(m *mounts, f *sandbox.Profile) error {
	if levelOf(f, sandbox.ControlLandlock) == sandbox.LevelOff || !s.features.Has(sandbox.FeatureLandlock) {
		return nil
	}
	var rules []ruleset.Rule
	var open []*os.File
	defer func() { linux.CloseAll(open...) }()
	for _, r := range sandbox.StageRules(*f) {
		at, err := m.open(r)
		if gone(err) {
			m.ruled = append(m.ruled, ruled{rule: r})
			continue
		}
		if err != nil {
			return failed("open "+r.Path+" for its Landlock rule", err)
		}
		open = append(open, at)
		st, err := linux.Stat(at)
		if err != nil {
			return failed("look at "+r.Path+" for its Landlock rule", err)
		}
		if m.holds(r.Path) != m.view {
			m.ruled = append(m.ruled, ruled{rule: r, id: idOf(st)})
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			continue // a symlink opens nothing by itself
		}
		rules = append(rules, ruleset.Rule{FD: linux.FD(at), File: st.Mode&unix.S_IFMT != unix.S_IFDIR, Access: string(r.Access)})
	}
	n, abi, handled, err := ruleset.New(rules)
	if err != nil {
		return failed("make the Landlock ruleset", err)
	}
	m.ruleset, m.abi, m.handled = os.NewFile(uintptr(n), "ruleset"), abi, handled
	return nil
}

// open opens the path of a rule in the tree that holds it. Symlinks of the view
// are followed inside it, but never for a rule that lets write.
func (m *mounts) open(r sandbox.Rule) (*os.File, error) {
	h := m.holds(r.Path)
	rel := strings.TrimPrefix(strings.TrimPrefix(r.Path, h.path), "/")
	if rel == "" {
		return linux.Dup(h.tree.root)
	}
	f, err := linux.OpenAt(h.tree.root, rel, unix.O_PATH|unix.O_NOFOLLOW, linux.Beneath)
	if errors.Is(err, unix.ELOOP) && h == m.view && !strings.Contains(string(r.Access), sandbox.AccessWrite) {
		return linux.OpenAt(h.tree.root, rel, unix.O_PATH|unix.O_NOFOLLOW, linux.InRoot)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Path, err)
	}
	return f, nil
}

// holds returns the mount that a path lies in, among those that the stage makes.
func (m *mounts) holds(p string) *holder {
	h := m.view
	for _, a := range m.attach {
		if sandbox.Below(p, a.path) && len(a.path) > len(h.path) {
			h = a
		}
	}
	return h
}

func levelOf(f *sandbox.Profile, c sandbox.Control) sandbox.Level {
	for _, n := range f.Controls {
		if n.Control == c {
			return n.Level
		}
	}
	return sandbox.LevelRequired
}

func (s *server) dropPlaces(made []*place) error {
	var errs []error
	for _, p := range made {
		errs = append(errs, s.places.drop(p))
	}
	return errors.Join(errs...)
}

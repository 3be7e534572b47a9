package stage

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
)

// watch is a denied path that did not exist when its pen was made, and what was
// to be seen of it then. It is looked for from the descriptor of the mount that
// holds it, and never through a symlink, so that no name that is swapped
// meanwhile can lead it astray.
type watch struct {
	path string   // as the profile has it
	seen string   // where that is in the view, whose root has no path of the host's; empty: root has one
	root *os.File // O_PATH, of its own; nil: it was not found again
	rel  string   // below root
	peer linux.Peer
	id   sandbox.Identity // of the placeholder; zero: nothing was there
	held *os.File         // the placeholder, so that no other gets its inode number meanwhile
}

// newWatch keeps a second descriptor of root, and one of the placeholder. Where that is
// gone or another already, the look says so.
func newWatch(path string, root *os.File, rel string, peer linux.Peer, id sandbox.Identity) (*watch, error) {
	d, err := linux.Dup(root)
	if err != nil {
		return nil, err
	}
	w := &watch{path: path, root: d, rel: rel, peer: peer, id: id}
	if id != (sandbox.Identity{}) {
		if f, now, err := w.open(); err == nil && now == id {
			w.held = f
		} else {
			linux.CloseAll(f)
		}
	}
	return w, nil
}

// look says what happened to the path since; "" when nothing did.
func (w *watch) look() sandbox.DenyChange {
	f, id, err := w.open()
	linux.CloseAll(f)
	there := err == nil || errors.Is(err, unix.ELOOP) // a symlink on the way is none that we left
	absent := gone(err)
	switch held := w.id != (sandbox.Identity{}); {
	case !there && !absent:
		return sandbox.DenyUnknown
	case !held && there:
		return sandbox.DenyAppeared
	case held && absent:
		return sandbox.DenyRemoved
	case held && id != w.id:
		return sandbox.DenyReplaced
	}
	return ""
}

// open opens what is at the path now.
func (w *watch) open() (f *os.File, id sandbox.Identity, err error) {
	if w.root == nil {
		return nil, sandbox.Identity{}, unix.ESTALE
	}
	f, err = linux.OpenAt(w.root, w.rel, unix.O_PATH|unix.O_NOFOLLOW, linux.Beneath)
	if errors.Is(err, unix.EACCES) { // a file system of its own may know its owner alone: mount.fuse3(8)
		err = linux.AsPeer(w.peer, func() (err error) {
			f, err = linux.OpenAt(w.root, w.rel, unix.O_PATH|unix.O_NOFOLLOW, linux.Beneath)
			return err
		})
	}
	if err != nil {
		return nil, sandbox.Identity{}, err
	}
	st, err := linux.Stat(f)
	return f, idOf(st), err
}

// lookAll looks for every path, and names each once.
func lookAll(all []*watch) []sandbox.DenyEvent {
	var out []sandbox.DenyEvent
	for _, w := range all {
		e := sandbox.DenyEvent{Path: w.path, Change: w.look()}
		if e.Change != "" && !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}

func closeWatches(all []*watch) {
	for _, w := range all {
		linux.CloseAll(w.root, w.held)
	}
}

// denies says what happened to the denied paths of a pen. Once the pen is gone,
// and its placeholders with it, the answer is what was seen just before.
func (p *pen) denies() []sandbox.DenyEvent {
	p.watching.Lock()
	defer p.watching.Unlock()
	if p.watches != nil {
		p.changed = lookAll(p.watches)
	}
	return p.changed
}

// unwatch looks a last time and gives up the descriptors.
func (p *pen) unwatch() {
	p.denies()
	p.watching.Lock()
	defer p.watching.Unlock()
	closeWatches(p.watches)
	p.watches = nil
}

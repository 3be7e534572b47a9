package stage

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
)

// holder is one mount of a pen that the stage makes: the view or an attach.
type holder struct {
	path string // where it is in the view
	tree *tree
	orig *os.File // the looked-at descriptor of an attach, not idmapped; nil for the view
	pins map[string]*os.File
	id   sandbox.Identity
}

// cover says how a denied path is held.
type cover string

// Covers.
const (
	coverMask     cover = "mask"     // neither read nor written
	coverReadOnly cover = "readonly" // bound onto itself read-only
)

// denier masks denied paths and pins the directories above them, all on trees
// that nobody sees yet and through descriptors alone, so that no name that is
// swapped meanwhile can lead it astray.
type denier struct {
	s       *server
	f       *sandbox.Profile
	peer    linux.Peer
	holders []*holder // the view is the first
	masked  map[string]cover
	states  []sandbox.DenyState
	made    []*place // placeholders that this pen needs
}

// apply masks every denied path of the profile, shorter paths first.
func (d *denier) apply() error {
	denies := slices.Clone(d.f.Deny)
	slices.SortStableFunc(denies, func(a, b sandbox.Deny) int { return strings.Compare(a.Path, b.Path) })
	for _, y := range denies {
		st, err := d.deny(y, y.Path, maxLinks)
		if err != nil {
			return failed("deny "+y.Path, err)
		}
		st.Path = y.Path
		d.states = append(d.states, st)
	}
	return nil
}

func (d *denier) close() {
	for _, h := range d.holders {
		for _, p := range h.pins {
			linux.CloseAll(p)
		}
	}
}

// deny masks the path p for y; links counts the symlinks that may still be
// followed.
func (d *denier) deny(y sandbox.Deny, p string, links int) (sandbox.DenyState, error) {
	held := sandbox.DenyState{Layer: "mount"}
	for m, c := range d.masked {
		if sandbox.Below(p, m) && (c == coverMask || y.Readable) {
			return held, nil
		}
	}
	if links == 0 {
		return held, unix.ELOOP
	}
	h := d.holderOf(p)
	if h == nil { // in memory that is this pen's alone and empty: there is nothing to keep from it
		return sandbox.DenyState{Layer: "none", Absent: y.Absent}, nil
	}
	if p == h.path {
		return held, fmt.Errorf("%s is itself a mount of the pen", p)
	}
	rel := strings.TrimPrefix(strings.TrimPrefix(p, h.path), "/")
	cur, at := h.tree.root, ""
	names := strings.Split(rel, "/")
	for i, name := range names {
		f, err := linux.OpenAt(cur, name, unix.O_PATH|unix.O_NOFOLLOW, linux.Beneath)
		if errors.Is(err, unix.ENOENT) {
			f, err = d.absent(y, h, at, cur, name)
			if f == nil || err != nil {
				return sandbox.DenyState{Layer: "none", Absent: y.Absent}, err
			}
			defer linux.CloseAll(f)
			d.masked[path.Join(h.path, at, name)] = coverMask
			held.Absent = y.Absent
			return held, d.s.masks.cover(f, unix.S_IFDIR)
		}
		if err != nil {
			return held, err
		}
		here := path.Join(at, name)
		next, done, err := d.step(y, h, f, here, names[i+1:], links)
		linux.CloseAll(f)
		if err != nil || done {
			return held, err
		}
		cur, at = next, here
	}
	return held, nil
}

// step goes through one existing component f at the path here of h: the last is
// masked, a directory on the way is pinned, a symlink is masked itself and then
// denied where it leads. done says that nothing is left to do.
func (d *denier) step(y sandbox.Deny, h *holder, f *os.File, here string, rest []string, links int) (next *os.File, done bool, err error) {
	st, err := linux.Stat(f)
	if err != nil {
		return nil, false, err
	}
	full := path.Join(h.path, here)
	link := st.Mode&unix.S_IFMT == unix.S_IFLNK
	if link {
		to, err := linux.ReadLinkAt(f, "")
		if err != nil {
			return nil, false, err
		}
		if !path.IsAbs(to) {
			to = path.Join(path.Dir(full), to)
		}
		to = path.Join(append([]string{path.Clean(to)}, rest...)...)
		if _, err := d.deny(y, to, links-1); err != nil {
			return nil, false, fmt.Errorf("%s, where symlinks lead: %w", to, err)
		}
	}
	if link || len(rest) == 0 {
		d.share(h, st)
		if y.Readable {
			d.masked[full] = coverReadOnly
			return nil, true, h.readOnly(f, here)
		}
		d.masked[full] = coverMask
		return nil, true, d.s.masks.cover(f, st.Mode)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, true, nil // a file where a directory would have to be: the path cannot exist below it
	}
	next, err = h.pin(f, here)
	return next, false, err
}

// pin binds the directory that f is open on onto itself, so that it can be
// neither renamed nor removed in the pen, and returns the pinned directory.
func (h *holder) pin(f *os.File, here string) (*os.File, error) {
	if p, ok := h.pins[here]; ok {
		return p, nil
	}
	p, err := linux.CloneMount(f, linux.One)
	if err != nil {
		return nil, err
	}
	if err := linux.SetMount(p, linux.One, linux.Attr{Private: true}); err != nil {
		linux.CloseAll(p)
		return nil, err
	}
	if err := linux.MoveMount(p, f); err != nil {
		linux.CloseAll(p)
		return nil, err
	}
	h.pins[here] = p
	return p, nil
}

// readOnly binds what f is open on onto itself, so that it can be read as before
// but neither written, renamed nor removed.
func (h *holder) readOnly(f *os.File, here string) error {
	p, err := linux.CloneMount(f, linux.Tree) // with the masks that are in it
	if err != nil {
		return err
	}
	err = linux.SetMount(p, linux.One, linux.Attr{Set: unix.MOUNT_ATTR_RDONLY, Private: true})
	if err == nil {
		err = linux.MoveMount(p, f)
	}
	if err != nil {
		linux.CloseAll(p)
		return err
	}
	if old := h.pins[here]; old != nil {
		linux.CloseAll(old)
	}
	h.pins[here] = p
	return nil
}

// holderOf returns the innermost mount that holds p, nil for one of PID 1's own.
func (d *denier) holderOf(p string) *holder {
	best, private := d.holders[0], ""
	for _, h := range d.holders[1:] {
		if sandbox.Below(p, h.path) && len(h.path) > len(best.path) {
			best = h
		}
	}
	for _, t := range append([]string{"/proc", "/dev/pts"}, privatePaths(d.f)...) {
		if sandbox.Below(p, t) && len(t) > len(private) {
			private = t
		}
	}
	if len(private) > len(best.path) {
		return nil
	}
	return best
}

func privatePaths(f *sandbox.Profile) []string {
	out := make([]string, len(f.Private))
	for i, t := range f.Private {
		out[i] = t.Path
	}
	return out
}

// absent does what y says about a path that stops to exist at name below the
// directory at of h. It returns the placeholder as the pen sees it, or nil when
// there is nothing to mask.
func (d *denier) absent(y sandbox.Deny, h *holder, at string, cur *os.File, name string) (*os.File, error) {
	switch y.Absent {
	case sandbox.AbsentRefuse:
		return nil, fmt.Errorf("it does not exist and absent: refuse holds: %w", unix.ENOENT)
	case sandbox.AbsentCheck, sandbox.AbsentSkip:
		return nil, nil
	case sandbox.AbsentPlaceholder:
	}
	orig := h.orig
	if orig == nil {
		if st, err := linux.Stat(cur); err == nil && idOf(st).Dev == h.id.Dev {
			return nil, nil // in the view's own memory, which is read-only: nothing can appear there
		}
		orig = cur
	} else if at != "" {
		o, err := linux.OpenAt(orig, at, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, linux.Beneath)
		if err != nil {
			return nil, err
		}
		defer linux.CloseAll(o)
		if err := sameFile(o, cur); err != nil {
			return nil, err
		}
		orig = o
	}
	p, err := d.s.places.hold(orig, name, d.peer)
	if err != nil {
		return nil, err
	}
	d.made = append(d.made, p)
	f, err := linux.OpenAt(cur, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY, linux.OneFS)
	if err != nil {
		return nil, err
	}
	if st, err := linux.Stat(f); err != nil || idOf(st) != p.id {
		linux.CloseAll(f)
		return nil, errors.Join(err, fmt.Errorf("the placeholder %s was swapped: %w", name, unix.ESTALE))
	}
	return f, nil
}

// share keeps a placeholder of another pen's for as long as this one masks it.
func (d *denier) share(h *holder, st unix.Stat_t) {
	if h.orig == nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	if p := d.s.places.again(idOf(st)); p != nil {
		d.made = append(d.made, p)
	}
}

func sameFile(a, b *os.File) error {
	x, err := linux.Stat(a)
	if err != nil {
		return err
	}
	y, err := linux.Stat(b)
	if err != nil {
		return err
	}
	if idOf(x) != idOf(y) {
		return fmt.Errorf("%s was swapped: %w", a.Name(), unix.ESTALE)
	}
	return nil
}

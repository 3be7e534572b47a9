package stage

import (
	"errors"
	"fmt"
	"maps"
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
	orig *os.File   // the looked-at descriptor of an attach, not idmapped; nil for the view
	acts linux.Peer // with whose rights placeholders are made in it, and looked for
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
	holders []*holder // the view is the first
	masked  map[string]cover
	states  []sandbox.DenyState
	state   sandbox.DenyState // of the path that is being denied
	made    []*place          // placeholders that this pen needs
	watches []*watch          // absent paths to look for at its end
	walked  []walked          // every path that was denied, also where symlinks lead
}

// apply masks every denied path of the profile, shorter paths first.
func (d *denier) apply() error {
	denies := slices.Clone(d.f.Deny)
	slices.SortStableFunc(denies, func(a, b sandbox.Deny) int { return strings.Compare(a.Path, b.Path) })
	for _, y := range denies {
		if err := d.again(y); err != nil {
			return failed("deny "+y.Path, err)
		}
		d.states = append(d.states, d.state)
	}
	return nil
}

// maxDenyTries bounds how often one path is denied again.
const maxDenyTries = 16

// again denies y, and does so anew where a directory on the way was another pen's
// placeholder that went with that pen in between.
func (d *denier) again(y sandbox.Deny) error {
	for try := 1; ; try++ {
		d.state = sandbox.DenyState{Path: y.Path, Layer: "mount"}
		masked := maps.Clone(d.masked)
		err := d.deny(y, y.Path, maxLinks)
		if !errors.Is(err, unix.ENOENT) || try == maxDenyTries {
			return err
		}
		d.masked = masked
	}
}

// pinned are the paths of all pins.
func (d *denier) pinned() []string {
	var out []string
	for _, h := range d.holders {
		for here := range h.pins {
			out = append(out, path.Join(h.path, here))
		}
	}
	return out
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
func (d *denier) deny(y sandbox.Deny, p string, links int) error {
	for m, c := range d.masked {
		if sandbox.Below(p, m) && (c == coverMask || y.Readable) {
			return nil
		}
	}
	if links == 0 {
		return unix.ELOOP
	}
	h := d.holderOf(p)
	if h == nil { // in memory that is this pen's alone and empty: there is nothing to keep from it
		d.unheld(y.Absent, links)
		return nil
	}
	if p == h.path {
		return fmt.Errorf("%s is itself a mount of the pen", p)
	}
	rel := strings.TrimPrefix(strings.TrimPrefix(p, h.path), "/")
	d.walked = append(d.walked, walked{h, rel})
	cur, at := h.tree.root, ""
	names := strings.Split(rel, "/")
	for i, name := range names {
		f, err := linux.OpenAt(cur, name, unix.O_PATH|unix.O_NOFOLLOW, linux.Beneath)
		if errors.Is(err, unix.ENOENT) {
			f, err = d.absent(y, h, at, cur, names[i:])
			if f == nil || err != nil {
				d.unheld(y.Absent, links)
				return err
			}
			defer linux.CloseAll(f)
			d.masked[path.Join(h.path, at, name)] = coverMask
			d.state.Absent = y.Absent
			return d.s.masks.cover(f, unix.S_IFDIR)
		}
		if at != "" && d.s.rootless.closed(err) {
			d.masked[path.Join(h.path, at)] = coverMask
			return d.s.masks.cover(cur, unix.S_IFDIR)
		}
		if err != nil {
			return err
		}
		here := path.Join(at, name)
		next, done, err := d.step(y, h, f, here, names[i+1:], links)
		linux.CloseAll(f)
		if err != nil || done {
			return err
		}
		cur, at = next, here
	}
	return nil
}

// unheld notes a path whose place nothing holds since it is absent. Where a symlink
// led there, that is masked all the same.
func (d *denier) unheld(a sandbox.Absent, links int) {
	d.state.Absent = a
	if links == maxLinks {
		d.state.Layer = "none"
	}
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
		if err := d.deny(y, to, links-1); err != nil {
			return nil, false, fmt.Errorf("%s, where symlinks lead: %w", to, err)
		}
	}
	place, err := d.share(y, h, here, st)
	if err != nil {
		return nil, false, err
	}
	if link || place || len(rest) == 0 {
		if y.Readable && !place {
			d.masked[full] = coverReadOnly
			return nil, true, h.readOnly(f, here)
		}
		d.masked[full] = coverMask
		return nil, true, d.s.masks.cover(f, st.Mode)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, true, d.blocked(y, h, f, here, rest)
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
	p, err := linux.CloneMount(f, linux.Tree) // with what is mounted in it
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

// absent does what y says about a path that stops to exist at the first of names
// below the directory at of h, which cur is in the pen. It returns the placeholder
// as the pen sees it, or nil when there is nothing to mask.
func (d *denier) absent(y sandbox.Deny, h *holder, at string, cur *os.File, names []string) (*os.File, error) {
	name := names[0]
	switch y.Absent {
	case sandbox.AbsentRefuse:
		return nil, fmt.Errorf("it does not exist and absent: refuse holds: %w", unix.ENOENT)
	case sandbox.AbsentCheck:
		d.state.Level = sandbox.LevelBestEffort
		return nil, d.watch(y, h, at, cur, names, sandbox.Identity{})
	case sandbox.AbsentSkip:
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
	p, err := d.s.places.hold(orig, name, h.acts)
	if err != nil {
		return nil, err
	}
	d.made = append(d.made, p)
	if err := d.watch(y, h, at, cur, names[:1], p.id); err != nil {
		return nil, err
	}
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

// blocked denies what lies below f, a file where a directory would have to be: while
// f stays nothing can be there, so it is held in its place as a directory would be.
func (d *denier) blocked(y sandbox.Deny, h *holder, f *os.File, here string, rest []string) error {
	d.state.Absent = y.Absent
	switch y.Absent {
	case sandbox.AbsentRefuse:
		return fmt.Errorf("%s is no directory and absent: refuse holds: %w", path.Join(h.path, here), unix.ENOTDIR)
	case sandbox.AbsentCheck:
		d.state.Level = sandbox.LevelBestEffort
		return d.watch(y, h, "", h.tree.root, append([]string{here}, rest...), sandbox.Identity{})
	case sandbox.AbsentPlaceholder:
		_, err := h.pin(f, here)
		return err
	case sandbox.AbsentSkip:
	}
	return nil
}

// watch has names below the directory at of h looked for at the end of the pen:
// from the looked-at mount where there is one, else from cur.
func (d *denier) watch(y sandbox.Deny, h *holder, at string, cur *os.File, names []string, id sandbox.Identity) error {
	root, rel := h.orig, path.Join(at, path.Join(names...))
	if root == nil {
		root, rel = cur, path.Join(names...)
	}
	w, err := newWatch(y.Path, root, rel, h.acts, id)
	if err == nil {
		if h.orig == nil {
			w.seen = path.Join(h.path, at, path.Join(names...))
		}
		d.watches = append(d.watches, w)
	}
	return err
}

// share keeps a placeholder of another pen's for as long as this one masks it, and
// reports whether the directory at here of h is one.
func (d *denier) share(y sandbox.Deny, h *holder, here string, st unix.Stat_t) (bool, error) {
	if h.orig == nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false, nil
	}
	p := d.s.places.again(idOf(st))
	if p == nil {
		return false, nil
	}
	d.made = append(d.made, p)
	d.state.Absent = sandbox.AbsentPlaceholder
	return true, d.watch(y, h, "", nil, []string{here}, p.id)
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

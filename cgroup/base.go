package cgroup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Names below the base.
const (
	daemonDir  = "daemon"
	callersDir = "callers"
	initDir    = "init"
	jobDir     = "job"
)

// Base is the subtree that belongs to one daemon. Its methods may be called from several goroutines, except Close.
type Base struct {
	backend     Backend
	controllers []string // used where they are on the v2 tree
	host        host
	hiers       []hier // [0] is the v2 tree
	callers     *Group
	v2path      string // cgroup of the base as /proc/<pid>/cgroup shows it
	back        string // directory of the cgroup that we moved out of; empty: not moved
	toggled     string // file of the controllers that we switched on above the base; empty: none

	adopting sync.Mutex // held while a group is opened that an earlier daemon made
}

// hier is the base's place in one hierarchy.
type hier struct {
	Hierarchy
	base dir
	made bool // by us: removed at Close
}

// Open finds or makes the base and its directories callers/ in every hierarchy that is used.
//
// The base is path, where one is given: beginning with "/" a cgroup as /proc/<pid>/cgroup names it, or a directory
// below a mounted cgroup2 tree; else relative to the own cgroup. Without a path it is the own cgroup if systemd delegated
// that (or its parent, when we already run in its daemon/), else <own cgroup>/pinfold-<hash of state>.
// On the v2 tree, where controllers are there to be used, a cgroup with members can have none for its children: there the own cgroup
// must be the root of the machine or hold nobody but this process, which then moves itself into <base>/daemon.
// v1 hierarchies know no such rule and each begins at the own cgroup of that hierarchy, so that limits already put upon us go on holding.
//
// A controller that cannot be used is no error: see Lacks. ErrNoBase is, and its text names the cure.
func Open(path, state string) (*Base, error) {
	f, err := readFacts()
	if err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(state)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(abs))
	at, err := f.place(path, "pinfold-"+hex.EncodeToString(sum[:6]))
	if err != nil {
		return nil, err
	}
	return openAt(f, at, controllersV2())
}

// openAt opens the base at a place; controllers are those that are used where they are on the v2 tree.
func openAt(f facts, at place, controllers []string) (*Base, error) {
	b := &Base{backend: BackendUnified, controllers: controllers, host: host{home: map[string]home{}, lack: map[string]string{}}}
	if err := b.open(f, at); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// open makes the base's directories in the order v2, v1, controllers, callers.
func (b *Base) open(f facts, at place) error {
	if err := b.openV2(f, at); err != nil {
		return err
	}
	for _, c := range controllersV1() {
		if t, ok := f.v1[c]; ok {
			b.backend = BackendHybrid
			b.openV1(f, c, t, at)
		}
	}
	if err := b.enableV2(f, at); err != nil {
		return err
	}
	b.noteLacks(f)
	b.callers = newGroup(b, nil, callersDir, NoLimits())
	for i := range b.hiers {
		if _, err := b.callers.ensure(i); err != nil {
			return err
		}
	}
	return b.callers.listenOOM()
}

// place is where the base goes.
type place struct {
	path  string // as given to Open
	name  string // of a base below the own cgroup
	own   string // own directory in the v2 tree
	v2    string // base's directory in the v2 tree
	found bool   // not named by the user: below (or at) the own cgroup

	dirs map[string]string // of v1 hierarchies, where an earlier daemon had them; nil: found by path or name
}

// place decides where the base goes in the v2 tree.
func (f facts) place(path, name string) (place, error) {
	own, err := f.v2.dirOf(f.own[""])
	if err != nil {
		return place{}, fmt.Errorf("%w: %w: %s", ErrNoBase, err, delegateCure)
	}
	p := place{path: path, name: name, own: own}
	switch {
	case strings.HasPrefix(path, f.v2.mount+"/"):
		p.path = strings.TrimPrefix(path, f.v2.mount)
		p.v2 = filepath.Clean(path)
	case filepath.IsAbs(path):
		p.v2, err = f.v2.dirOf(filepath.Clean(path))
	case path != "":
		if !filepath.IsLocal(path) {
			return place{}, fmt.Errorf("cannot use cgroup %q: a relative path must stay below the own cgroup", path)
		}
		p.v2, p.name, p.found = filepath.Join(own, path), filepath.Clean(path), true
	default:
		p.v2, p.found = found(own, name), true
	}
	return p, err
}

// found is the base below the own cgroup: itself if delegated, or what an earlier daemon of the same state made.
func found(own, name string) string {
	parent := filepath.Dir(own)
	switch {
	case delegated(own):
		return own
	case filepath.Base(own) == daemonDir && (delegated(parent) || filepath.Base(parent) == name):
		return parent
	default:
		return filepath.Join(own, name)
	}
}

// delegated says whether systemd marked the cgroup as delegated: the extended attribute user.delegate (systemd 251) or
// trusted.delegate (systemd 243), systemd.resource-control(5).
func delegated(cgroup string) bool {
	var buf [8]byte
	for _, attr := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Getxattr(cgroup, attr, buf[:]); err == nil && string(buf[:n]) == "1" {
			return true
		}
	}
	return false
}

// openV2 makes the base in the v2 tree.
func (b *Base) openV2(f facts, at place) error {
	made, err := makeBase(at.v2)
	if err != nil {
		return fmt.Errorf("cannot make cgroup %s: %w: %w: %s", at.v2, ErrNoBase, err, delegateCure)
	}
	d, err := openDir(at.v2)
	if err != nil {
		return err
	}
	b.hiers = append(b.hiers, hier{Hierarchy: Hierarchy{Dir: at.v2}, base: d, made: made})
	rel, err := filepath.Rel(f.v2.mount, at.v2)
	if err != nil {
		return err
	}
	root := ""
	if own, err := filepath.Rel(f.v2.mount, at.own); err == nil {
		root = strings.TrimSuffix(f.own[""], filepath.Join("/", own))
	}
	b.v2path = filepath.Join("/", root, rel)
	return nil
}

// openV1 makes the base in a v1 hierarchy, or notes why that controller cannot be used.
func (b *Base) openV1(f facts, controller string, t tree, at place) {
	dirname, err := at.v1(f, controller, t)
	var made bool
	if err == nil {
		made, err = makeBase(dirname)
	}
	var d dir
	if err == nil {
		d, err = openDir(dirname)
	}
	if err == nil && controller == ControllerMemory {
		err = hierarchical(d)
	}
	if err != nil {
		b.host.lack[controller] = refusedLack(controller, err)
		return
	}
	b.host.home[controller] = homeV1
	b.hiers = append(b.hiers, hier{Hierarchy: Hierarchy{Controller: controller, Dir: dirname}, base: d, made: made})
}

// v1 is the base's directory in a v1 hierarchy.
func (p place) v1(f facts, controller string, t tree) (string, error) {
	if p.dirs != nil {
		if d, ok := p.dirs[controller]; ok {
			return d, nil
		}
		return "", fmt.Errorf("%w: an earlier daemon had none there", os.ErrNotExist)
	}
	if filepath.IsAbs(p.path) {
		return t.dirOf(filepath.Clean(p.path))
	}
	own, err := t.dirOf(f.own[controller])
	if err != nil {
		return "", err
	}
	return filepath.Join(own, p.name), nil
}

// hierarchical makes memory limits hold for descendants too: always so since Linux 5.11.
func hierarchical(d dir) error {
	on, err := d.read("memory.use_hierarchy")
	if errors.Is(err, os.ErrNotExist) || on == "1" {
		return nil
	}
	if err != nil {
		return err
	}
	return d.write("memory.use_hierarchy", "1")
}

// madeMark is the extended attribute of a base that a daemon made, so that the next one removes it where that one could not:
// it was killed. User attributes of cgroups: Linux 5.7.
const madeMark = "user.pinfold.made"

// makeBase makes a base's directory and those above it, and says whether it is ours: new, or made by an earlier daemon.
func makeBase(path string) (bool, error) {
	made, err := makeAll(path)
	if err != nil {
		return false, err
	}
	if !made {
		var buf [1]byte
		n, err := unix.Getxattr(path, madeMark, buf[:])
		return err == nil && n == 1, nil
	}
	if err := unix.Setxattr(path, madeMark, []byte("1"), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
		return false, errors.Join(fmt.Errorf("setxattr %s %s: %w", path, madeMark, err), os.Remove(path))
	}
	return true, nil
}

// makeAll makes a directory and those above it, and says whether the last one is new.
func makeAll(path string) (bool, error) {
	err := os.Mkdir(path, 0o755)
	switch {
	case errors.Is(err, os.ErrExist):
		return false, nil
	case errors.Is(err, os.ErrNotExist):
		if _, err := makeAll(filepath.Dir(path)); err != nil {
			return false, err
		}
		err = os.Mkdir(path, 0o755)
	}
	return err == nil, err
}

// Hierarchies lists the trees in which the base has a directory: v2 first.
func (b *Base) Hierarchies() []Hierarchy {
	out := make([]Hierarchy, len(b.hiers))
	for i, h := range b.hiers {
		out[i] = h.Hierarchy
	}
	return out
}

// Backend says how this host carries its controllers.
func (b *Base) Backend() Backend {
	return b.backend
}

// Lacks maps each controller (and swap) that cannot be limited here to the cause and its cure.
func (b *Base) Lacks() map[string]string {
	return maps.Clone(b.host.lack)
}

// CallersPath is the cgroup of all pens, as the v2 line of /proc/<pid>/cgroup begins for each process in one.
func (b *Base) CallersPath() string {
	return filepath.Join(b.v2path, callersDir)
}

// Caller makes the group of a caller with its quota, or finds the one that is there and sets the quota anew.
func (b *Base) Caller(uid uint32, l Limits) (*Group, error) {
	return b.callers.child(strconv.FormatUint(uint64(uid), 10), l)
}

// Close removes daemon/, callers/ and the base as far as they were made by Open, and moves this process back to where it came
// from. Groups must be removed before: what is left is named in the error.
func (b *Base) Close() error { return b.CloseBy(os.Remove) }

// CloseBy is Close for a process that may not remove daemon/ and the base itself: the root directory of a hierarchy has mode 0555,
// so that it takes CAP_DAC_OVERRIDE. remove does it, by their paths. A base that is closed stays so.
func (b *Base) CloseBy(remove func(path string) error) error {
	var errs []error
	if b.callers != nil {
		errs = append(errs, b.callers.Remove())
		b.callers = nil
	}
	errs = append(errs, b.leave(remove))
	for i := len(b.hiers) - 1; i >= 0; i-- {
		h := &b.hiers[i]
		if h.made {
			errs = append(errs, remove(h.Dir))
		}
		errs = append(errs, h.base.close())
	}
	b.hiers = nil
	return errors.Join(errs...)
}

// Leftovers lists the directories below callers/ in all hierarchies, deepest first.
func (b *Base) Leftovers() ([]string, error) {
	var out []string
	for i := range b.hiers {
		below, err := b.below(i)
		if err != nil {
			return out, err
		}
		for _, rel := range below {
			out = append(out, filepath.Join(b.hiers[i].Dir, rel))
		}
	}
	return out, nil
}

// below lists the cgroups below callers/ of one hierarchy, relative to the base, deepest first.
func (b *Base) below(i int) ([]string, error) {
	var out []string
	next := []string{callersDir}
	for len(next) > 0 {
		rel := next[0]
		next = next[1:]
		names, err := b.hiers[i].base.names(rel)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			next = append(next, filepath.Join(rel, name))
		}
		if rel != callersDir {
			out = append(out, rel)
		}
	}
	slices.Reverse(out)
	return out, nil
}

package stage

import (
	"container/list"
	"errors"
	"os"
	"slices"
	"sync"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/filter"
	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// Limits of what is kept.
const (
	maxProfiles = 64 // compiled profiles; the one unused for longest goes first
	maxVariants = 32 // programs of one profile: they differ by how cgroups are joined
)

// profile is a Profile with all that is made of it once: validated, filter,
// programs, view.
type profile struct {
	sandbox.Profile
	filter *filter.Program
	lower  []string // limits that are lower than asked for, in words

	mu       sync.Mutex
	view     *view
	variants []*variant
	users    int // launches that use it now; guarded by profiles.mu
	dropped  bool
}

// variant is a Program of a profile for one Build.
type variant struct {
	join  []sandbox.Join
	files []int
	prog  *image.Program
	image *os.File
	id    sandbox.Identity // of the image
}

type profiles struct {
	s *server

	mu  sync.Mutex
	all map[string]*list.Element
	lru *list.List // of *cached, the most recent first
}

type cached struct {
	key string
	p   *profile
}

func newProfiles(s *server) *profiles {
	return &profiles{s: s, all: map[string]*list.Element{}, lru: list.New()}
}

// get returns the profile of that key, for the caller to put back: the one that has
// proved good, or a new one from its JSON, whose key it is. Without that it is errForgot.
func (c *profiles) get(key string, raw []byte) (*profile, error) {
	c.mu.Lock()
	if e, ok := c.all[key]; ok {
		if k, ok := e.Value.(*cached); ok {
			c.lru.MoveToFront(e)
			k.p.users++
			c.mu.Unlock()
			return k.p, nil
		}
	}
	c.mu.Unlock()
	if len(raw) == 0 {
		return nil, errForgot
	}
	p := &profile{users: 1}
	if err := stagewire.Unmarshal(raw, &p.Profile); err != nil {
		return nil, refused("cannot read the profile: %w", err)
	}
	var err error
	p.lower, err = fitLimits(&p.Profile, c.s.mayRaise)
	return p, err
}

// keep stores a profile that has proved good; another with the same JSON that
// came first stays.
func (c *profiles) keep(key string, p *profile) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.all[key]; ok {
		return nil
	}
	c.all[key] = c.lru.PushFront(&cached{key, p})
	if c.lru.Len() <= maxProfiles {
		return nil
	}
	last, ok := c.lru.Remove(c.lru.Back()).(*cached)
	if !ok {
		return nil
	}
	delete(c.all, last.key)
	return c.discard(last.p)
}

// put gives back a profile that get returned.
func (c *profiles) put(p *profile) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.users--
	for _, e := range c.all {
		if k, ok := e.Value.(*cached); ok && k.p == p {
			return nil
		}
	}
	p.dropped = true
	return c.discard(p)
}

// discard frees a profile that is in the cache no more, once nobody uses it.
func (c *profiles) discard(p *profile) error {
	p.dropped = true
	if p.users > 0 {
		return nil
	}
	return p.close()
}

func (c *profiles) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, e := range c.all {
		if k, ok := e.Value.(*cached); ok {
			errs = append(errs, k.p.close())
		}
	}
	clear(c.all)
	return errors.Join(errs...)
}

func (p *profile) close() error {
	var errs []error
	if p.view != nil {
		errs = append(errs, p.view.close())
		p.view = nil
	}
	for _, v := range p.variants {
		errs = append(errs, v.image.Close())
	}
	p.variants = nil
	return errors.Join(errs...)
}

// viewOf returns a detached copy of the profile's view, which is built anew when
// the host has changed under it, and that view.
func (s *server) viewOf(p *profile) (*os.File, *view, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.view != nil && !p.view.fresh() {
		old := p.view
		p.view = nil
		if err := old.close(); err != nil {
			return nil, nil, failed("take the old view down", err)
		}
	}
	if p.view == nil {
		v, err := buildView(s.trees, &p.Profile)
		if err != nil {
			return nil, nil, err
		}
		p.view = v
	}
	f, err := p.view.clone()
	if err != nil {
		return nil, nil, failed("copy the view", err)
	}
	return f, p.view, nil
}

// current reports whether a new pen of the profile would get a copy of v too.
func (p *profile) current(v *view) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.view == v && v.fresh()
}

// programOf returns the profile's program for that way of joining cgroups.
func (s *server) programOf(p *profile, b sandbox.Build) (*variant, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.variants {
		if slices.Equal(v.join, b.Join) && slices.Equal(v.files, b.AttachFiles) {
			return v, nil
		}
	}
	if p.filter == nil {
		f, err := s.compileFilter(&p.Profile)
		if err != nil {
			return nil, err
		}
		p.filter = f
	}
	b.Filter = p.filter.Insns
	prog, err := sandbox.Compile(p.Profile, b)
	if err != nil {
		return nil, refused("%w", err)
	}
	img, err := prog.Memfd(imageName(s.config.State), s.runDir())
	if err != nil {
		return nil, failed("write the image", err)
	}
	st, err := linux.Stat(img)
	if err != nil {
		return nil, failed("look at the image", errors.Join(err, img.Close()))
	}
	v := &variant{join: b.Join, files: b.AttachFiles, prog: prog, image: img, id: idOf(st)}
	if len(p.variants) < maxVariants {
		p.variants = append(p.variants, v)
	}
	return v, nil
}

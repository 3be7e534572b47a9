package stage

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

const placeholderMode = 0o555

// places are the placeholders of denied paths that do not exist: empty
// directories in the caller's own tree, each recorded on disk before it is made,
// so that none stays behind when the stage is killed.
type places struct {
	dir string // of the records

	mu   sync.Mutex
	held map[sandbox.Identity]*place
}

// place is one placeholder and how many pens need it.
type place struct {
	id     sandbox.Identity
	parent *os.File // O_PATH, of its own
	name   string
	peer   linux.Peer
	record string
	users  int // guarded by places.mu
}

// placeRecord is what lies on disk of a place.
type placeRecord struct {
	Dir  string           `json:"dir"`
	Name string           `json:"name"`
	UID  uint32           `json:"uid"`
	ID   sandbox.Identity `json:"id"` // zero until it is made
}

// hold makes the placeholder name below dir with peer's rights, or takes a share
// in the one that is there.
func (s *places) hold(dir *os.File, name string, peer linux.Peer) (*place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.find(dir, name); p != nil {
		p.users++
		return p, nil
	}
	parent, err := linux.Dup(dir)
	if err != nil {
		return nil, err
	}
	p := &place{parent: parent, name: name, peer: peer, users: 1}
	if err := s.create(p); err != nil {
		linux.CloseAll(parent)
		return nil, fmt.Errorf("cannot make the placeholder %s in %s: %w", name, dir.Name(), err)
	}
	s.held[p.id] = p
	return p, nil
}

// find returns the place that is at name below dir now.
func (s *places) find(dir *os.File, name string) *place {
	st, err := linux.LstatAt(dir, name)
	if err != nil {
		return nil
	}
	return s.held[idOf(st)]
}

// again takes one more share in a placeholder, nil when id is none.
func (s *places) again(id sandbox.Identity) *place {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.held[id]
	if p != nil {
		p.users++
	}
	return p
}

func (s *places) create(p *place) error {
	dir, err := linux.PathOf(p.parent)
	if err != nil {
		return err
	}
	r := placeRecord{Dir: dir, Name: p.name, UID: p.peer.UID}
	if p.record, err = s.write("", r); err != nil {
		return err
	}
	err = linux.AsPeer(p.peer, func() error { return linux.MkdirAt(p.parent, p.name, placeholderMode) })
	if err == nil {
		var st unix.Stat_t
		if st, err = linux.LstatAt(p.parent, p.name); err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = unix.ESTALE
		}
		p.id = idOf(st)
		r.ID = p.id
	}
	if err == nil {
		_, err = s.write(p.record, r)
	}
	if err != nil {
		return errors.Join(err, os.Remove(p.record))
	}
	return nil
}

// write stores a record, under a new name when it has none, in one step.
func (s *places) write(name string, r placeRecord) (string, error) {
	b, err := stagewire.Marshal(r)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(s.dir, ".new-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	if name == "" {
		name = filepath.Join(s.dir, "place-"+path.Base(f.Name())[len(".new-"):])
	}
	return name, os.Rename(f.Name(), name)
}

// drop gives up one share; with the last the placeholder is removed, if it is
// still that very directory and empty.
func (s *places) drop(p *place) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.users--; p.users > 0 {
		return nil
	}
	return s.clear(p, maxBusyTries)
}

// A placeholder that is busy is tried again so often, each time after such a pause.
const (
	maxBusyTries = 500
	busyPause    = 10 * time.Millisecond
)

// clear removes a placeholder that nobody needs. Before Linux 6.15 it may lie below a mask
// for a moment yet, in the tree of a pen whose launch is not over, and rmdir(2) answers
// EBUSY. Until it can be removed a pen may share in it anew. If it never can, its record
// stays, and the next stage removes it.
func (s *places) clear(p *place, tries int) error {
	err := p.remove()
	if errors.Is(err, unix.EBUSY) && tries > 0 {
		time.AfterFunc(busyPause, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if p.users == 0 && s.held[p.id] == p {
				_ = s.clear(p, tries-1) // nobody is there to be told, and the record stays
			}
		})
		return nil
	}
	delete(s.held, p.id)
	linux.CloseAll(p.parent)
	if errors.Is(err, unix.EBUSY) {
		return err
	}
	return errors.Join(err, p.forget())
}

// forget removes the record of a placeholder. A stage that ends may have done so as the
// next one found it.
func (p *place) forget() error {
	if err := os.Remove(p.record); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (p *place) remove() error {
	st, err := linux.LstatAt(p.parent, p.name)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if idOf(st) != p.id || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil // somebody else's by now
	}
	err = linux.AsPeer(p.peer, func() error { return linux.RmdirAt(p.parent, p.name) })
	if errors.Is(err, unix.ENOTEMPTY) || gone(err) {
		return nil
	}
	return err
}

// newPlaces finds what an earlier stage left behind. Pens that have outlived it need
// theirs: a directory that is removed takes what is mounted on it along, in every
// namespace. So each stays until settle.
func newPlaces(dir string) (*places, error) {
	s := &places{dir: dir, held: map[sandbox.Identity]*place{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range all {
		p, err := foundPlace(filepath.Join(dir, e.Name()))
		if p != nil {
			s.held[p.id] = p
		}
		errs = append(errs, err)
	}
	return s, errors.Join(errs...)
}

// foundPlace returns the placeholder of a record, which nobody needs yet, or removes the
// record when there is none.
func foundPlace(file string) (*place, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var r placeRecord
	if stagewire.Unmarshal(b, &r) != nil || filepath.Base(file)[0] == '.' {
		return nil, os.Remove(file) // not finished: nothing was made yet
	}
	d, err := linux.OpenAt(nil, r.Dir, unix.O_PATH|unix.O_DIRECTORY, linux.Strict)
	if err != nil {
		return nil, os.Remove(file) // its directory is gone, and it with it
	}
	st, err := linux.LstatAt(d, r.Name)
	if err == nil && r.ID == (sandbox.Identity{}) && st.Mode == unix.S_IFDIR|placeholderMode && st.Uid == r.UID {
		r.ID = idOf(st) // killed between making it and saying so
	}
	if err != nil || idOf(st) != r.ID {
		linux.CloseAll(d)
		return nil, os.Remove(file) // somebody else's by now
	}
	return &place{id: r.ID, parent: d, name: r.Name, peer: linux.Peer{UID: r.UID, GID: st.Gid}, record: file}, nil
}

// settle removes the placeholders that no pen needs: those of an earlier stage's pens
// that have ended.
func (s *places) settle() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.held {
		if p.users == 0 {
			errs = append(errs, s.clear(p, maxBusyTries))
		}
	}
	return errors.Join(errs...)
}

// close removes at last what was busy.
func (s *places) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.held {
		if p.users == 0 {
			errs = append(errs, s.clear(p, 0))
		}
	}
	return errors.Join(errs...)
}

func itoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

package session

import (
	"fmt"
	"sync"
	"time"

	"pinfold/supervisor/relay"
)

// Registry is the daemon's list of sessions and of what they share: how many
// sessions and processes each caller has, and which dynamic uids are taken. It is
// the one place where sessions meet; everything else of a session is its own.
type Registry struct {
	mu       sync.Mutex
	sessions map[string]*Session
	owners   map[string]*Session // by process
	callers  map[account]*counts
	spools   *relay.Budget // of all callers
	budgets  map[account]*relay.Budget
	uids     map[uint32]bool
	first    uint32
	count    uint32
	next     uint32
	ready    int // pens of all sessions that wait for a spawn
	denials  pace
}

// BoundSpools sets what the spools of all callers may hold together. 0: there is no bound.
func (r *Registry) BoundSpools(limit int64) { r.spools.SetLimit(limit) }

// account is whose quota something counts against: one uid under one rule of the
// policy. A rule may admit many users; none of them uses up what another has.
type account struct {
	rule string
	uid  uint32
}

func (a account) String() string { return fmt.Sprintf("%q (uid %d)", a.rule, a.uid) }

// counts are what one account has.
type counts struct{ sessions, processes, ready, kept, readers int }

// Quota is a limit on counts of one account; 0 means none.
type Quota struct{ Sessions, Processes int }

// NewRegistry returns an empty registry whose dynamic uids are first+1 to
// first+count-1; first itself is PID 1's in every pen.
func NewRegistry(first, count uint32) *Registry {
	return &Registry{
		sessions: map[string]*Session{}, owners: map[string]*Session{}, callers: map[account]*counts{}, spools: relay.NewBudget(0), budgets: map[account]*relay.Budget{}, uids: map[uint32]bool{},
		first: first, count: count, next: first + 1, denials: pace{full: map[uint32]time.Time{}},
	}
}

// admit counts one more session of a caller. Where it has too many, the one that has
// nothing but finished processes and was left first ends for it.
func (r *Registry) admit(caller account, s *Session, q Quota) error {
	gone, err := r.place(caller, s, q)
	if gone != nil {
		gone.post(gone.end)
	}
	return err
}

func (r *Registry) place(caller account, s *Session, q Quota) (gone *Session, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.of(caller)
	if q.Sessions > 0 && c.sessions >= q.Sessions {
		if gone = r.evict(caller); gone == nil {
			return nil, fmt.Errorf("cannot open session: caller %s has %d of %d sessions", caller, c.sessions, q.Sessions)
		}
	}
	c.sessions++
	r.sessions[s.id] = s
	return gone, nil
}

// restore counts a session of an earlier daemon and its live processes, whatever the
// quota says now.
func (r *Registry) restore(s *Session, live int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.of(s.account())
	c.sessions++
	c.processes += live
	r.sessions[s.id] = s
}

// keepUID takes the dynamic uid that a session has had; false: it is none of ours now.
func (r *Registry) keepUID(uid uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid <= r.first || uid >= r.first+r.count || r.uids[uid] {
		return false
	}
	r.uids[uid] = true
	return true
}

func (r *Registry) of(caller account) *counts {
	c := r.callers[caller]
	if c == nil {
		c = &counts{}
		r.callers[caller] = c
	}
	return c
}

// leave takes a session off the list.
func (r *Registry) leave(caller account, s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions[s.id] != s {
		return
	}
	delete(r.sessions, s.id)
	c := r.of(caller)
	c.sessions--
	r.clean(caller)
}

// clean forgets a caller that has nothing any more. mu is held.
func (r *Registry) clean(caller account) {
	if *r.of(caller) == (counts{}) {
		delete(r.callers, caller)
		if b := r.budgets[caller]; b != nil && b.Used() == 0 {
			delete(r.budgets, caller)
		}
	}
}

// takeProcess counts one more live process of a caller.
func (r *Registry) takeProcess(caller account, q Quota) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.of(caller)
	if q.Processes > 0 && c.processes >= q.Processes {
		return fmt.Errorf("cannot start process: caller %s has %d of %d processes", caller, c.processes, q.Processes)
	}
	c.processes++
	return nil
}

// dropProcess gives a place of takeProcess back.
func (r *Registry) dropProcess(caller account) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.of(caller)
	c.processes--
	r.clean(caller)
}

// budget returns what all spools of a caller may hold together, bound to limit; 0:
// by the file system alone.
func (r *Registry) budget(caller account, limit int64) *relay.Budget {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.budgets[caller]
	if b == nil {
		b = r.spools.Part(limit)
		r.budgets[caller] = b
	}
	b.SetLimit(limit)
	return b
}

// takeUID returns a dynamic uid that no live session has. Uids are handed out in
// turn, so that a freed one stays unused as long as possible.
func (r *Registry) takeUID() (uint32, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range r.count {
		uid := r.next
		r.next++
		if r.next >= r.first+r.count {
			r.next = r.first + 1
		}
		if uid > r.first && uid < r.first+r.count && !r.uids[uid] {
			r.uids[uid] = true
			return uid, nil
		}
	}
	return 0, fmt.Errorf("cannot find a free dynamic uid in %d–%d: all are in use; raise dynamic.count in the policy", r.first+1, r.first+r.count-1)
}

func (r *Registry) dropUID(uid uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.uids, uid)
}

// Limits of the pens that wait for a spawn.
const (
	maxReady      = 64 // of all sessions
	maxReadyOfOne = 16 // of the sessions of one caller
)

// takeReady counts one more pen that waits for a spawn; false: there are enough.
func (r *Registry) takeReady(caller account) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.of(caller)
	if r.ready >= maxReady || c.ready >= maxReadyOfOne {
		r.clean(caller)
		return false
	}
	r.ready++
	c.ready++
	return true
}

// dropReady gives a place of takeReady back.
func (r *Registry) dropReady(caller account) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready--
	r.of(caller).ready--
	r.clean(caller)
}

// Limits of the finished processes that are kept. Each has files in the memory file system
// of the state, however little it wrote, and no caller may have most of that.
const (
	maxKept      = 1024 // of one session
	maxKeptOfOne = 2048 // of all sessions of one caller; with more, each session keeps only
	minKept      = 64   // of its own
)

// keep counts one more finished process of a caller, and returns how many the session
// that it is of may keep.
func (r *Registry) keep(caller account) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.of(caller)
	if c.kept++; c.kept > maxKeptOfOne {
		return minKept
	}
	return maxKept
}

// unkeep takes a process of keep off.
func (r *Registry) unkeep(caller account) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(caller).kept--
	r.clean(caller)
}

// maxReadersOfOne is how many processes all connections of one caller read at once that
// are not their own: each reader that is not read holds buffers.
const maxReadersOfOne = 256

// takeReader counts one more reader of a caller; false: there are enough.
func (r *Registry) takeReader(caller account) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.of(caller)
	if c.readers >= maxReadersOfOne {
		return false
	}
	c.readers++
	return true
}

// dropReader gives a place of takeReader back.
func (r *Registry) dropReader(caller account) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(caller).readers--
	r.clean(caller)
}

// own notes whose process an id is.
func (r *Registry) own(process string, s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owners[process] = s
}

// disown forgets a process.
func (r *Registry) disown(process string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owners, process)
}

// owner returns the session that a process belongs to, or nil.
func (r *Registry) owner(process string) *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owners[process]
}

// all returns the sessions that stand now.
func (r *Registry) all() []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*Session, 0, len(r.sessions))
	for _, s := range r.sessions {
		list = append(list, s)
	}
	return list
}

// Sessions returns how many sessions stand now.
func (r *Registry) Sessions() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sessions)
}

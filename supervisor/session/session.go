package session

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pinfold/audit"
	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/sandbox"
	"pinfold/supervisor/ops"
	"pinfold/supervisor/record"
	"pinfold/supervisor/relay"
)

// Limits of one session.
const (
	maxIDs      = 4096                    // request ids remembered to refuse a second use
	maxDenials  = 1024                    // different refusals counted
	drainTime   = 900 * time.Millisecond  // for the pipes after the last process is gone
	finalTime   = 5 * time.Millisecond    // for the final event to go before its pen is taken down
	emptyTime   = 5 * time.Second         // for a killed cgroup to become empty
	lookTime    = 2 * time.Second         // for the denied paths to be looked for after the end
	releaseTime = 5 * time.Second         // for PID 1 to go
	cutTime     = 1500 * time.Millisecond // for the last bytes to a client whose session ends
	oomAfter    = 50 * time.Millisecond   // from the start to the watch for kills for memory
	maxStdin    = 1 << 20                 // bytes that wait for one process's stdin
)

// Host is what all sessions of a daemon share.
type Host struct {
	Stage    *sandbox.Stage
	Cgroups  *cgroup.Base
	Audit    *audit.Log
	Hasher   *audit.Hasher
	Floods   *audit.Tally // of what has no record of its own
	Registry *Registry
	Buffers  *relay.Buffers        // of all relays together
	Policy   func() *policy.Policy // the one in force now
	State    string                // state directory
	Records  *record.Store         // for the next daemon
	Boot     string                // boot id of the host
	Started  time.Time
	Log      *slog.Logger
}

// Options is what a handshake chose.
type Options struct {
	Handshake string // its id, which no request may use again
	Role      proto.Role
	Form      proto.DataForm
	Batch     bool
}

// Session is one client's session. One goroutine, Serve, owns everything in it;
// others hand it work with post.
type Session struct {
	id     string
	host   *Host
	caller policy.Caller
	adm    *policy.Admission
	opts   Options  // of the handshake that opened it
	conn   *os.File // the connection that opened it, for the stage to read its credentials from
	client *Client  // its connection now, or the last that it had
	log    *slog.Logger
	table  Table

	base    context.Context // of everything that the session starts: it ends with the session, not with a call
	work    chan func()
	done    chan struct{} // closed when no more work is taken
	posting sync.RWMutex  // read-held by each post: after a lock that follows the close of done none is under way
	wg      sync.WaitGroup

	procs   map[string]*process
	order   []string // ids in the order of their start
	ops     operations
	denials map[string]int
	over    proto.Cause   // why the session ends; empty while it goes on
	grace   time.Duration // upper bound for the grace of its processes; 0: none
	cut     time.Time     // when its client is sent nothing more; zero: the session goes on
	detach  *time.Timer   // from when its client left
	tokens  Tokens
	spare   atomic.Int64 // when it had nothing but finished processes and no client, Unix nanoseconds; 0: it has; below: its place is given away

	trees trees
	ready ready
	noted noted[record.Session] // for the next daemon
	found *[]Found              // what an earlier daemon has left, until it is taken up; nil: this one opened the session
	taken chan struct{}         // closed once it is taken up
}

// New returns the connection of a new session of an admitted caller. conn is the
// session's to close, where there is no error.
func New(h *Host, c policy.Caller, adm *policy.Admission, o Options, conn *os.File, l Link) (*Client, error) {
	s := newSession(h, proto.NewID(), c, adm, o)
	s.conn = conn
	s.client = newClient(s, o, l)
	if err := h.Registry.admit(s.account(), s, Quota{Sessions: adm.Quota.Sessions}); err != nil {
		return nil, err
	}
	if err := errors.Join(s.recall(nil), s.noteSession()); err != nil {
		h.Registry.leave(s.account(), s)
		return nil, err
	}
	return s.client, nil
}

func newSession(h *Host, id string, c policy.Caller, adm *policy.Admission, o Options) *Session {
	return &Session{
		id: id, host: h, caller: c, adm: adm, opts: o, table: NewTable(),
		log:   h.Log.With(slog.String("session", id), slog.Int("uid", int(c.UID))),
		work:  make(chan func(), 64),
		done:  make(chan struct{}),
		procs: map[string]*process{}, denials: map[string]int{}, ops: newOperations(ops.New(ops.Volatile{})),
	}
}

// ID returns the session's id.
func (s *Session) ID() string { return s.id }

// Abandon takes a session off the list that is never served.
func (s *Session) Abandon() {
	s.host.Registry.leave(s.account(), s)
	s.forgetSession()
	s.over = proto.CauseSessionEnded
	s.close()
	s.flush()
	s.closeConn()
}

func (s *Session) closeConn() {
	if s.conn == nil {
		return // an adopted session that nobody has resumed
	}
	if err := s.conn.Close(); err != nil {
		s.log.Debug("cannot close a copy of the connection", attrErr(err))
	}
}

// account is whose quota the session counts against.
func (s *Session) account() account { return account{s.adm.Caller, s.caller.UID} }

// Serve owns the session until it has ended: its client left and did not come
// back in time, it was shut down, or ctx was cancelled. It returns after every
// process of it has ended and nothing of it is left on the host.
func (s *Session) Serve(ctx context.Context) {
	s.base = context.WithoutCancel(ctx)
	if s.found != nil {
		s.takeUp() //nolint:contextcheck // what it undoes outlives every call
	} else {
		s.note(audit.SessionOpened{Role: string(s.opts.Role), Rule: s.adm.Rule.String(), Unit: s.caller.Unit})
	}
	stop := ctx.Done()
	for s.over == "" || len(s.procs) > 0 {
		select {
		case f := <-s.work:
			f()
		case <-stop:
			stop = nil
			s.end()
		}
	}
	s.close()
	s.unready() //nolint:contextcheck // what it undoes outlives every call
	s.wg.Wait()
	s.flush()
	s.wg.Wait() // for what the last requests began
	s.dropTrees(context.WithoutCancel(ctx))
	s.note(audit.SessionClosed{Reason: string(s.over)}) // before its record goes: a kill in between tells it twice, not never
	s.forgetSession()
	s.closeConn()
	s.host.Registry.leave(s.account(), s)
	s.client.end()
}

// close ends the taking of work: when it returns all that was promised to be done is
// in the queue, and nothing follows.
func (s *Session) close() {
	close(s.done)
	s.posting.Lock()
	defer s.posting.Unlock()
}

// flush answers what came while the session was closing.
func (s *Session) flush() {
	for {
		select {
		case f := <-s.work:
			f()
		default:
			return
		}
	}
}

// post hands work to the session's goroutine. It reports false when the session
// has ended and the work will not be done.
func (s *Session) post(f func()) bool {
	s.posting.RLock()
	defer s.posting.RUnlock()
	select {
	case <-s.done:
		return false
	default:
	}
	select {
	case s.work <- f:
		return true
	case <-s.done:
		return false
	}
}

// idle reports whether nothing runs and nothing is being delivered.
func (s *Session) idle() bool {
	for _, p := range s.procs {
		if p.state != Kept || p.feed != nil {
			return false
		}
	}
	return true
}

// end begins the end: no more spawns, every process stopped.
func (s *Session) end() {
	if s.over != "" {
		return
	}
	s.over = proto.CauseSessionEnded
	s.remember(func(r *record.Session) { r.Over, r.Grace = true, record.Nanos(s.grace) })
	if s.detach != nil {
		s.detach.Stop()
	}
	s.bound(s.longestGrace() + cutTime)
	for _, id := range slices.Clone(s.order) { // a process that is forgotten leaves it
		if p := s.procs[id]; p != nil {
			p.blame(s.over, "session", "")
			s.step(p, SessionOver)
		}
	}
}

// bound gives the client so long for what it is still sent, or as long as it has already.
func (s *Session) bound(d time.Duration) {
	if at := time.Now().Add(d); at.After(s.cut) {
		s.cut = at
	}
	out := s.client.out
	if err := out.link.SetWriteDeadline(s.cut); err != nil {
		out.drop() // only a closed connection has no deadline
	}
}

// longestGrace is the longest time that a process of the session may take to end
// after it was asked to.
func (s *Session) longestGrace() time.Duration {
	var longest time.Duration
	for _, p := range s.procs {
		if p.start != nil && p.verdict == nil {
			longest = max(longest, s.graceOf(p))
		}
	}
	return longest
}

// graceOf is the grace period of a process now.
func (s *Session) graceOf(p *process) time.Duration {
	grace := p.start.grant.Timeout.Stop
	if s.over != "" && s.grace > 0 {
		grace = min(grace, s.grace)
	}
	return grace
}

// idRing remembers the last request ids, at most n, and those that are unanswered.
type idRing struct {
	n    int
	mu   sync.Mutex
	list []string
	next int
	set  map[string]bool
	open map[string]bool
}

func newIDRing(n int) *idRing {
	return &idRing{n: n, set: map[string]bool{}, open: map[string]bool{}}
}

// use remembers id and reports whether it is new.
func (r *idRing) use(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set[id] || r.open[id] {
		return false
	}
	if len(r.list) < r.n {
		r.list = append(r.list, id)
	} else {
		delete(r.set, r.list[r.next])
		r.list[r.next] = id
		r.next = (r.next + 1) % r.n
	}
	r.set[id], r.open[id] = true, true
	return true
}

// drop forgets all ids: those of a connection that is over are not used again.
func (r *idRing) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list, r.next, r.set, r.open = nil, 0, map[string]bool{}, map[string]bool{}
}

// answered says that id is no longer open.
func (r *idRing) answered(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, id)
}

// counter counts up to maxWaits, from any goroutine.
type counter struct{ n atomic.Int64 }

func (c *counter) take() bool {
	if c.n.Add(1) > maxWaits {
		c.n.Add(-1)
		return false
	}
	return true
}

func (c *counter) drop() { c.n.Add(-1) }

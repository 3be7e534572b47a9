package session

import (
	"log/slog"
	"time"

	"github.com/go-json-experiment/json"

	"pinfold/audit"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/supervisor/record"
)

// leastTTL is how long an adopted session waits for its client at least, where policy
// lets it wait at all: while there was no daemon nobody could come back.
const leastTTL = 10 * time.Second

// Restore returns the session of a record, which an earlier daemon has left, with the
// processes that were found of it. It counts against its caller's quota from now on; it
// takes its processes up when it is served. It has no client until one resumes it.
func Restore(h *Host, r record.Session, found []Found) *Session {
	a, c := r.Admission, r.Caller
	adm := &policy.Admission{
		Caller: a.Caller, Rule: policy.Rule(a.Rule), Profiles: a.Profiles, Manage: policy.Manage(a.Manage), RunAs: a.RunAs,
		DetachTTL: time.Duration(a.DetachTTL), Retention: time.Duration(a.Retention), Quota: policy.Quota{Sessions: a.Sessions, Processes: a.Processes},
	}
	caller := policy.Caller{UID: c.UID, GID: c.GID, GIDs: c.GIDs, Name: c.Name, Home: c.Home, Unit: c.Unit, UnitKnown: c.UnitKnown}
	o := Options{Role: proto.Role(r.Role), Form: proto.DataForm(r.Form), Batch: r.Batch}
	s := newSession(h, r.ID, caller, adm, o)
	s.found, s.taken = &found, make(chan struct{})
	s.noted.r, s.noted.stored = r, true
	s.client = newClient(s, o, nobody{})
	s.client.left.Store(true)
	s.client.end()
	s.restoreTokens()
	s.restoreOps(found)
	live := 0
	for i := range found {
		if len(found[i].Record.Verdict) == 0 {
			live++
		}
		if j := found[i].Job; j != nil {
			s.trees.groups = j.Groups()
		}
		h.Registry.own(found[i].Record.ID, s)
	}
	h.Registry.restore(s, live)
	if h.Registry.keepUID(r.RunUID) {
		s.trees.uid = r.RunUID
	}
	return s
}

// nobody is the Link of a session without a client.
type nobody struct{}

// Write and SetWriteDeadline fail: nobody is there.
func (nobody) Write([]byte) error               { return errGone }
func (nobody) SetWriteDeadline(time.Time) error { return errGone }

// restoreTokens takes up what resumes the session.
func (s *Session) restoreTokens() {
	if len(s.noted.r.Tokens) == 0 {
		return
	}
	if err := json.Unmarshal(s.noted.r.Tokens, &s.tokens, json.RejectUnknownMembers(true)); err != nil {
		s.tokens = nil
		s.log.Error("nobody can resume the session: cannot read its tokens", attrErr(err))
	}
}

// TakenUp is closed once a session that Restore returned is served and stands as it did:
// before that its quota counts what may have ended meanwhile.
func (s *Session) TakenUp() <-chan struct{} { return s.taken }

// takeUp goes on with what an earlier daemon has left, on the session's goroutine.
func (s *Session) takeUp() {
	defer close(s.taken)
	found, r := *s.found, &s.noted.r
	s.found = nil
	s.note(audit.SessionAdopted{OpenedAt: r.Opened.Shown(), Processes: len(found)})
	s.log.Info("session adopted", slog.Int("processes", len(found)))
	for i := range found {
		s.takeUpProcess(&found[i])
	}
	ttl := s.adm.DetachTTL
	if r.Over || ttl <= 0 {
		s.grace = time.Duration(r.Grace)
		s.end()
		return
	}
	left := ttl
	if !r.Left.IsZero() {
		left = max(ttl-time.Since(r.Left.Time()), min(ttl, leastTTL))
	}
	if s.idle() { // its client may come back; where its place is needed, it has given it
		s.spare.CompareAndSwap(0, time.Now().UnixNano())
	}
	c := s.client
	s.detach = time.AfterFunc(left, func() {
		s.post(func() {
			if s.client == c {
				s.end()
			}
		})
	})
}

package session

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"os"
	"time"

	"github.com/go-json-experiment/json"

	"pinfold/audit"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/supervisor/record"
)

// Limits of the tokens of one session.
const (
	tokenBytes = 32               // random bytes of one
	tokenTime  = 10 * time.Minute // how long one stays good once its successor was given out
	maxTokens  = 4                // that are good at once
)

// Tokens are the ways back into a session, oldest first. It is plain data, so that it
// can be kept on disk: of a token there is only its hash.
type Tokens []Token

// Token is one of them.
type Token struct {
	Hash  [sha256.Size]byte
	Until time.Time // zero: as long as the session lasts
}

// issue adds a token and returns it; the earlier ones have their time from now on.
func (t *Tokens) issue(now time.Time) string {
	for i := range *t {
		if (*t)[i].Until.IsZero() {
			(*t)[i].Until = now.Add(tokenTime)
		}
	}
	if len(*t) >= maxTokens { // the first is the one last used: it stays
		*t = append((*t)[:1:1], (*t)[2:]...)
	}
	var secret [tokenBytes]byte
	_, _ = rand.Read(secret[:]) // never fails: crypto/rand
	token := base64.RawURLEncoding.EncodeToString(secret[:])
	*t = append(*t, Token{Hash: sha256.Sum256([]byte(token))})
	return token
}

// use reports whether token is good now. Those given out before it are no more. It takes
// the same time for every token.
func (t *Tokens) use(token string, now time.Time) bool {
	hash, found := sha256.Sum256([]byte(token)), -1
	for i, have := range *t {
		same := subtle.ConstantTimeCompare(have.Hash[:], hash[:])
		found = subtle.ConstantTimeSelect(same, i, found)
	}
	if found < 0 {
		return false
	}
	if until := (*t)[found].Until; !until.IsZero() && !now.Before(until) {
		return false
	}
	*t = (*t)[found:]
	return true
}

// Offer gives out the token of a new session; nil where policy does not let sessions
// outlive their connection.
func (c *Client) Offer() *proto.ResumeOffer {
	ttl := c.s.adm.DetachTTL
	if ttl <= 0 {
		return nil
	}
	token := c.s.tokens.issue(time.Now())
	c.s.rememberTokens()
	return &proto.ResumeOffer{Token: token, TTLMS: proto.Milliseconds(ttl.Milliseconds())}
}

// Comeback is a connection that wants to go on with a session.
type Comeback struct {
	Caller  policy.Caller
	Admit   *policy.Admission
	Options Options
	Token   string
	PID     int      // of the peer, for the record, as its unit
	Conn    *os.File // for the stage, as New has it; Resume takes it over where it succeeds
	Link    Link
}

// Resume lets a session go on over another connection; the one that it had is told so
// and ends. Nothing of its processes is sent before it is asked for. nil: there is no
// such session of this caller and role, or the token is not good; which of them is not told.
func (r *Registry) Resume(id string, b Comeback) (*Client, *proto.ResumeOffer) {
	s := r.find(id)
	if s == nil || s.caller.UID != b.Caller.UID || s.adm.Caller != b.Admit.Caller || s.opts.Role != b.Options.Role {
		return nil, nil
	}
	type answer struct {
		c     *Client
		offer *proto.ResumeOffer
	}
	got := make(chan answer, 1)
	if !s.post(func() { c, o := s.resume(b); got <- answer{c, o} }) {
		return nil, nil
	}
	a := <-got // what is posted is done
	return a.c, a.offer
}

// resume is Resume on the session's goroutine.
func (s *Session) resume(b Comeback) (*Client, *proto.ResumeOffer) {
	if s.over != "" || s.adm.DetachTTL <= 0 || !s.tokens.use(b.Token, time.Now()) {
		return nil, nil
	}
	if !s.wanted() {
		return nil, nil // its place was given to another session
	}
	if s.detach != nil {
		s.detach.Stop()
		s.detach = nil
	}
	s.client.replaced()
	// The stage goes on with the connection that opened the session: who it is of does not
	// change, and what is being started still uses it. One of an earlier daemon is gone.
	if s.conn == nil {
		s.conn = b.Conn
	} else if err := b.Conn.Close(); err != nil {
		s.log.Debug("cannot close a copy of the connection", attrErr(err))
	}
	c := newClient(s, b.Options, b.Link)
	s.client = c
	s.remember(func(r *record.Session) {
		r.Left, r.Form, r.Batch = record.Instant{}, string(b.Options.Form), b.Options.Batch
	})
	s.note(audit.SessionResumed{PID: b.PID, Unit: b.Caller.Unit})
	s.log.Info("session resumed")
	return c, c.Offer()
}

// rememberTokens stores the hashes of what resumes the session.
func (s *Session) rememberTokens() {
	hashes, err := json.Marshal(s.tokens)
	if err != nil {
		s.log.Error("a next daemon would let nobody resume the session", attrErr(err))
		return
	}
	s.remember(func(r *record.Session) { r.Tokens = hashes })
}

// clientLeft begins the time after which a session ends whose client does not come back.
func (s *Session) clientLeft(c *Client) {
	first := !c.left.Swap(true)
	if c != s.client || s.over != "" {
		return
	}
	ttl := s.adm.DetachTTL
	if ttl <= 0 {
		s.end()
		return
	}
	if first {
		s.remember(func(r *record.Session) { r.Left = record.Now() })
		s.detach = time.AfterFunc(ttl, func() {
			s.post(func() {
				if s.client == c {
					s.end()
				}
			})
		})
	}
	s.rest()
}

// rest ends a session whose client left with nothing that it could come back for, and
// hangs up on a client that sends no more and has got everything. Such a session gives
// its place to a new one where the caller's quota of sessions is used up.
func (s *Session) rest() {
	c := s.client
	if s.over != "" || !c.left.Load() || c.reading() || !s.idle() || c.busy() && !c.gone() {
		return
	}
	if len(s.procs) == 0 {
		s.end()
		return
	}
	c.end()
	s.spare.CompareAndSwap(0, time.Now().UnixNano())
}

// wanted takes the session out of those that would give their place away; false: it has
// given it.
func (s *Session) wanted() bool {
	for {
		at := s.spare.Load()
		if at < 0 {
			return false
		}
		if s.spare.CompareAndSwap(at, 0) {
			return true
		}
	}
}

// evict takes the place of the session that has nothing but finished processes and whose
// client left first, and returns it; nil: there is none. mu is held.
func (r *Registry) evict(of account) *Session {
	var oldest *Session
	var since int64
	for _, s := range r.sessions {
		if at := s.spare.Load(); at > 0 && s.account() == of && (oldest == nil || at < since) {
			oldest, since = s, at
		}
	}
	if oldest == nil || !oldest.spare.CompareAndSwap(since, -1) {
		return nil
	}
	delete(r.sessions, oldest.id)
	r.of(of).sessions--
	return oldest
}

// find returns a session by its id, or nil.
func (r *Registry) find(id string) *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[id]
}

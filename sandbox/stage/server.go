// Package stage is the small privileged launcher beside the daemon: it builds
// pens from Specs, brings each target to its last gate, proves there what is in
// force, and reaps the PID 1s. It never reads policy or the wire, never believes
// the daemon about who asks, and starts nothing below its floors, whatever bytes
// it is sent.
package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/filter"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// Limits of the stage.
const (
	maxRequests   = 4096 // requests at once; beyond it the socket is not read
	maxLaunches   = 64   // launches being built at once; the others wait
	maxLooks      = 16   // looks of one uid at once; the others wait
	launchesOfOne = 16   // launches of one uid being built at once; its others wait
	maxPens       = 8192 // pens alive; one more is refused as busy
	maxPrepared   = 128  // of those, pens that wait for their command
)

// connFD is where the daemon puts its socket.
const connFD = 3

// Run serves the daemon at the other end of descriptor 3 until that end closes,
// and returns the exit status: 0, 1 for a failure, 2 for a bad command line.
func Run(ctx context.Context, args []string, stderr io.Writer) int {
	if slices.Equal(args, []string{heirFlag}) {
		return heir(stderr)
	}
	c, err := parse(args, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "pinfold-stage:", err)
		return 2
	}
	if c.Probe {
		return probe(ctx, c, os.Stdout, stderr)
	}
	if err := c.readSuccessor(); err != nil {
		fmt.Fprintln(stderr, "pinfold-stage:", err)
		return 1
	}
	if c.ordinary() {
		return enter(ctx, &c, args, stderr)
	}
	keep := sandbox.KeepSecrets
	if c.Entered { // there the kernel would give its children's maps to root, and keep nobody from anything: user_namespaces(7)
		keep = sandbox.LimitCore
	}
	if err := keep(); err != nil {
		fmt.Fprintln(stderr, "pinfold-stage:", err)
		return 1
	}
	conn, err := linux.Pollable(os.NewFile(connFD, "daemon"))
	if err == nil {
		unix.Umask(0)
		err = Serve(ctx, conn, c)
	}
	if err != nil {
		fmt.Fprintln(stderr, "pinfold-stage:", err)
		return 1
	}
	return 0
}

// server is the stage at work.
type server struct {
	conn     *os.File
	config   Config
	features sandbox.Features
	own      map[string]uint64 // our namespaces
	mayRaise bool              // this process may raise hard limits
	rootless *rootless         // nil: the stage is root
	null     *os.File
	dumpable *os.File // fs.suid_dumpable
	masks    *masks
	trees    *assembler
	profiles *profiles
	idmaps   *idmaps
	places   *places
	pens     *pens
	heads    heads
	heirs    heirs
	nursery  *nursery // nil: PID 1s are started in the host's mount namespace

	requests chan struct{} // a token for each
	launches chan struct{}

	looks  *turns
	starts *turns // of launches

	scratchMu sync.Mutex
	ended     bool // the daemon ends: nothing is mounted below STATE/run any more
	host      host

	baseMu sync.Mutex
	bases  map[string]*os.File // our directory in each hierarchy, once opened
}

// cgroupBase is our own directory in a hierarchy. It stays open.
func (s *server) cgroupBase(controller string) (*os.File, error) {
	s.baseMu.Lock()
	defer s.baseMu.Unlock()
	if f := s.bases[controller]; f != nil {
		return f, nil
	}
	dir, _ := s.config.base(controller)
	f, err := linux.OpenAt(nil, dir, unix.O_PATH|unix.O_DIRECTORY, linux.Strict)
	if err != nil {
		return nil, failed("open the cgroup base "+controller, err)
	}
	if s.bases == nil {
		s.bases = map[string]*os.File{}
	}
	s.bases[controller] = f
	return f, nil
}

// Serve answers the daemon on conn until it closes, then ends every pen that was
// not started. Pens that were live on. It closes conn.
func Serve(ctx context.Context, conn *os.File, c Config) (err error) {
	defer linux.CloseAll(conn)
	s, err := newServer(ctx, conn, c)
	if _, ok := errors.AsType[refusal](err); ok {
		return stagewire.Send(conn, stagewire.Message{Error: answerOf(err)})
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	hello, err := stagewire.Marshal(s.features)
	if err != nil {
		return err
	}
	if err := stagewire.Send(conn, stagewire.Message{Body: hello}); err != nil {
		return fmt.Errorf("cannot greet the daemon: %w", err)
	}
	var wg sync.WaitGroup
	defer s.pens.abandon() // what launches under way have added meanwhile
	defer wg.Wait()
	defer s.pens.abandon()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { linux.CloseAll(conn) })()
	buf := make([]byte, stagewire.MaxInline)
	for {
		m, passed, err := stagewire.Receive(conn, buf)
		var bad *stagewire.BadMessageError
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, os.ErrClosed):
			return nil
		case errors.As(err, &bad):
			s.answer(bad.ID, nil, nil, refused("%w", err))
			continue
		case err != nil:
			return fmt.Errorf("cannot read from the daemon: %w", err)
		}
		s.requests <- struct{}{}
		wg.Go(func() {
			defer func() { <-s.requests }()
			s.serve(ctx, m, passed)
		})
	}
}

func newServer(ctx context.Context, conn *os.File, c Config) (*server, error) {
	f, err := sandbox.Probe(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot find out what this host can do: %w", err)
	}
	if err := cannotConfine(f); err != nil {
		return nil, err
	}
	s := &server{
		conn: conn, config: c, features: f, mayRaise: mayRaise(),
		trees:    &assembler{dir: filepath.Join(c.State, "stage"), detached: f.Has(sandbox.FeatureTreeAttach) && f.Has(sandbox.FeatureTreeClone)},
		requests: make(chan struct{}, maxRequests), launches: make(chan struct{}, maxLaunches),
		looks: newTurns(maxLooks), starts: newTurns(launchesOfOne), pens: newPens(),
		idmaps: &idmaps{dir: filepath.Join(c.State, "stage"), ns: map[mapping]*os.File{}},
	}
	if c.Entered {
		s.features.Rootless = true
		if err := s.enterRootless(); err != nil {
			return nil, err
		}
	}
	s.profiles = newProfiles(s)
	if err := os.MkdirAll(s.runDir(), 0o700); err != nil {
		return nil, err
	}
	if err := s.sweepTrees(); err != nil {
		return nil, err
	}
	if s.own, err = namespaces("self"); err != nil {
		return nil, err
	}
	if s.host, err = findHost(); err != nil {
		return nil, err
	}
	if s.null, err = os.OpenFile("/dev/null", os.O_RDONLY, 0); err != nil {
		return nil, err
	}
	if s.dumpable, err = openSuidDumpable(); err != nil {
		return nil, err
	}
	if s.places, err = newPlaces(filepath.Join(s.runDir(), "places")); err != nil {
		return nil, err
	}
	if s.masks, err = newMasks(s.trees); err != nil {
		return nil, err
	}
	if s.trees.events, err = watchMounts("/proc/self/mountinfo"); err != nil {
		return nil, err
	}
	if s.rootless == nil {
		s.nursery = newNursery()
	}
	return s, nil
}

// runDir is the stage's own directory.
func (s *server) runDir() string { return filepath.Join(s.config.State, "stage") }

// sweepTrees takes down the trees that a killed stage left attached.
func (s *server) sweepTrees() error {
	left, err := filepath.Glob(filepath.Join(s.runDir(), "tree-*"))
	if err != nil {
		return err
	}
	for _, t := range left {
		if err := linux.Detach(t); err != nil && !errors.Is(err, unix.EINVAL) {
			return err
		}
		if err := os.Remove(t); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) close() error {
	err := errors.Join(s.profiles.close(), s.masks.close(), s.places.close())
	s.rootless.close()
	s.trees.events.close()
	s.nursery.close()
	s.idmaps.close()
	linux.CloseAll(s.null, s.dumpable)
	s.baseMu.Lock()
	defer s.baseMu.Unlock()
	linux.CloseAll(slices.Collect(maps.Values(s.bases))...)
	return err
}

// serve answers one request. It runs in a goroutine of its own. What was passed stays bare
// numbers: a client's connection is none of ours to be woken by.
func (s *server) serve(ctx context.Context, m stagewire.Message, passed []int) {
	defer linux.CloseNumbers(passed...)
	defer clear(m.Body)
	var body any
	var out []*os.File
	var fds []int
	var err error
	switch m.Op {
	case stagewire.OpLook:
		body, out, err = s.look(ctx, m.Body, passed)
	case stagewire.OpScratch, stagewire.OpDropScratch:
		body, out, err = s.scratches(m)
	case stagewire.OpHome, stagewire.OpPlace, stagewire.OpEnd, stagewire.OpRmdir:
		body, out, err = s.ofState(m, passed)
	case stagewire.OpLaunch, stagewire.OpPrepare:
		body, fds, err = s.launch(ctx, m, passed)
	case stagewire.OpCommand:
		body, fds, err = s.command(ctx, m.Body, passed)
	case stagewire.OpAhead:
		if err = s.ahead(ctx, m.Body, passed); err == nil {
			return // nobody waits for an answer
		}
	case stagewire.OpAdopt:
		body, fds, err = s.adopt(ctx, m.Body)
	case stagewire.OpSettle:
		err = s.places.settle()
	case stagewire.OpSucceed:
		body, out, err = s.succeed(m.Body, passed)
	case stagewire.OpAbort, stagewire.OpReaped, stagewire.OpStep, stagewire.OpDenies:
		body, err = s.onPen(ctx, m)
	case stagewire.OpHello:
		err = refused("unknown request %q", m.Op)
	default:
		err = refused("unknown request %q", m.Op)
	}
	s.answer(m.ID, body, append(linux.Numbers(out), fds...), err)
	linux.CloseAll(out...)
	linux.CloseNumbers(fds...)
}

// answer sends an answer. When that fails the daemon is gone, which the reader
// sees by itself, or the answer is too large, which then is the answer.
func (s *server) answer(id uint64, body any, fds []int, err error) {
	m := stagewire.Message{ID: id}
	if err == nil && body != nil {
		m.Body, err = stagewire.Marshal(body)
	}
	if err != nil {
		m.Error, fds = answerOf(err), nil
	}
	if err := stagewire.SendNumbers(s.conn, m, fds...); err != nil {
		_ = stagewire.Send(s.conn, stagewire.Message{ID: id, Error: answerOf(err)})
	}
}

// peerOf returns who is at the other end of the one connection that was passed.
func peerOf(passed []int) (linux.Peer, error) {
	if len(passed) != 1 {
		return linux.Peer{}, refused("cannot tell who asks: %d descriptors, not the caller's connection", len(passed))
	}
	return linux.PeerOf(passed[0])
}

func (s *server) look(ctx context.Context, raw []byte, passed []int) (any, []*os.File, error) {
	var r sandbox.LookRequest
	if err := stagewire.Unmarshal(raw, &r); err != nil {
		return nil, nil, refused("cannot read the look: %w", err)
	}
	peer, err := peerOf(passed)
	if err != nil {
		return nil, nil, err
	}
	l, dir, err := s.lookAs(ctx, r, peer)
	if err != nil || dir == nil {
		return l, nil, err
	}
	return l, []*os.File{dir}, nil
}

// lookAs looks in turn with the others of the same uid.
func (s *server) lookAs(ctx context.Context, r sandbox.LookRequest, peer linux.Peer) (sandbox.Looked, *os.File, error) {
	give, err := s.looks.take(ctx, peer.UID)
	if err != nil {
		return sandbox.Looked{}, nil, err
	}
	defer give()
	return s.heads.look(r, peer)
}

func (s *server) scratches(m stagewire.Message) (any, []*os.File, error) {
	var q stagewire.Scratch
	if err := stagewire.Unmarshal(m.Body, &q); err != nil {
		return nil, nil, refused("cannot read the request: %w", err)
	}
	if m.Op == stagewire.OpDropScratch {
		return nil, nil, s.dropScratch(q.Name)
	}
	f, id, err := s.scratch(q)
	if err != nil {
		return nil, nil, err
	}
	return id, []*os.File{f}, nil
}

func (s *server) compileFilter(f *sandbox.Profile) (*filter.Program, error) {
	noexec := sandbox.Off
	if s.memfdNoexec(f) {
		noexec = sandbox.On
	}
	p, err := filter.Compile(f.Seccomp.Base, f.Seccomp.Allow, f.Seccomp.Deny, sandbox.FilterOptions(*f, noexec))
	if err != nil {
		return nil, refused("%w", err)
	}
	return p, nil
}

// memfdNoexec reports whether PID 1 can forbid anonymous executables in its own
// pid namespace, for which it must be root of the host.
func (s *server) memfdNoexec(f *sandbox.Profile) bool {
	return f.Exec == sandbox.ExecListed && !f.UserNS && s.features.Has(sandbox.FeatureMemfdNoexec)
}

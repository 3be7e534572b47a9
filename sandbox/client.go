package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// CgroupHier is one hierarchy in which pens have cgroups.
type CgroupHier struct {
	Controller string // "" is cgroup v2
	Dir        string // absolute directory of our base in this hierarchy
}

// StageConfig says how a stage is started. It is all that the stage ever
// believes: no message can change it.
type StageConfig struct {
	Path         string // of pinfold-stage
	State        string // state directory, absolute and existing
	Cgroups      []CgroupHier
	DynamicFirst uint32 // first uid that run_as: dynamic may use; the very first is PID 1's
	DynamicCount uint32 // 0: none
	Named        []uint32
	Successor    *Successor // nil: the daemon cannot have one
	Stderr       io.Writer  // of the stage; nil: discarded
}

// FindStage returns the path of pinfold-stage: beside the executable self, else
// in ../libexec/pinfold, ../libexec or /usr/libexec/pinfold.
func FindStage(self string) (string, error) {
	dir := filepath.Dir(self)
	tried := []string{
		filepath.Join(dir, "pinfold-stage"), filepath.Join(dir, "../libexec/pinfold/pinfold-stage"),
		filepath.Join(dir, "../libexec/pinfold-stage"), "/usr/libexec/pinfold/pinfold-stage",
	}
	for _, p := range tried {
		st, err := os.Stat(p)
		if err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("cannot find pinfold-stage: not in %v; install it beside %s", tried, self)
}

// Slack is how late the stage's timers may be. The Go runtime watches its threads
// with sleeps of 20 µs for as long as one of them works, and each costs more than
// many a step of a launch.
const Slack = time.Millisecond

// Stage is a running pinfold-stage. Its methods may be called from any goroutine.
type Stage struct {
	conn     *os.File
	config   StageConfig
	features Features
	done     chan struct{}
	ended    error // why, once done is closed
	sent     sentProfiles

	mu      sync.Mutex
	next    uint64
	pending map[uint64]chan answer // nil once the stage is gone
}

// answer is one message with its descriptors.
type answer struct {
	m     stagewire.Message
	files []*os.File
}

// StartStage starts the stage and waits for its hello, which tells what this
// host can do. The caller ends it with Close. Cancelling ctx ends the start only.
func StartStage(ctx context.Context, c StageConfig) (*Stage, error) {
	ours, theirs, err := linux.SocketPair("stage")
	if err != nil {
		return nil, fmt.Errorf("cannot start the stage: %w", err)
	}
	conn, err := linux.Pollable(ours)
	if err != nil {
		linux.CloseAll(theirs)
		return nil, fmt.Errorf("cannot start the stage: %w", err)
	}
	cmd := exec.Command(c.Path, stageArgs(c)...) //nolint:noctx // outlives ctx by design: it ends when its socket closes
	// As many as its daemon, but not one: a fork holds a processor, and all other launches with it.
	cmd.Env = []string{"GOMAXPROCS=" + strconv.Itoa(max(2, runtime.GOMAXPROCS(0)))}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = c.Stderr, c.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	if c.Successor != nil {
		how, err := c.Successor.File()
		if err != nil {
			linux.CloseAll(conn, theirs)
			return nil, fmt.Errorf("cannot start the stage: %w", err)
		}
		defer linux.CloseAll(how)
		cmd.ExtraFiles = append(cmd.ExtraFiles, how)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = linux.WithSlack(Slack, cmd.Start)
	linux.CloseAll(theirs)
	if err != nil {
		linux.CloseAll(conn)
		return nil, fmt.Errorf("cannot start the stage %s: %w", c.Path, err)
	}
	s := &Stage{conn: conn, config: c, done: make(chan struct{}), pending: map[uint64]chan answer{}}
	hello := make(chan answer, 1)
	s.pending[0] = hello
	go s.read(cmd)
	select {
	case a, ok := <-hello:
		linux.CloseAll(a.files...)
		if !ok {
			return nil, fmt.Errorf("cannot start the stage %s: it ended without a word: %w", c.Path, s.why())
		}
		if err = decodeAnswer(a.m, &s.features); err == nil {
			return s, nil
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(fmt.Errorf("cannot start the stage %s: %w", c.Path, err), s.Close())
}

func stageArgs(c StageConfig) []string {
	args := []string{"--state", c.State}
	for _, h := range c.Cgroups {
		args = append(args, "--cgroup", h.Controller+"="+h.Dir)
	}
	if c.DynamicCount > 0 {
		args = append(args, "--dynamic", fmt.Sprintf("%d:%d", c.DynamicFirst, c.DynamicCount))
	}
	for _, u := range c.Named {
		args = append(args, "--named", strconv.FormatUint(uint64(u), 10))
	}
	if c.Successor != nil {
		args = append(args, "--successor")
	}
	return args
}

// Features returns what the stage found this host to be able to do.
func (s *Stage) Features() Features { return s.features }

// Done is closed when the stage has ended. Pens live on.
func (s *Stage) Done() <-chan struct{} { return s.done }

// Err says why the stage has ended where that is known, once Done is closed: how it
// exited, and what was wrong with its socket.
func (s *Stage) Err() error {
	select {
	case <-s.done:
		return s.ended
	default:
		return nil
	}
}

// Close ends the stage and waits for it. Pens that were not started end with it,
// the others live on.
func (s *Stage) Close() error {
	err := s.conn.Close()
	<-s.done
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	return errors.Join(err, s.ended)
}

func (s *Stage) why() error {
	<-s.done
	if s.ended != nil {
		return s.ended
	}
	return ErrStageGone
}

// read hands answers to those who wait for them until the socket ends, then
// waits for the process.
func (s *Stage) read(cmd *exec.Cmd) {
	buf := make([]byte, stagewire.MaxInline)
	var cause error
	for {
		m, fds, err := stagewire.Receive(s.conn, buf)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) {
				cause = fmt.Errorf("cannot read from the stage: %w", err)
			}
			break
		}
		s.mu.Lock()
		c := s.pending[m.ID]
		delete(s.pending, m.ID)
		s.mu.Unlock()
		if c == nil {
			linux.CloseNumbers(fds...)
			continue
		}
		c <- answer{m, linux.Files(fds)}
	}
	linux.CloseAll(s.conn)
	s.ended = errors.Join(cmd.Wait(), cause)
	s.mu.Lock()
	for _, c := range s.pending {
		close(c)
	}
	s.pending = nil
	s.mu.Unlock()
	close(s.done)
}

// late is called with an answer that came after its request was given up.
type late func(answer)

func dropAnswer(a answer) { linux.CloseAll(a.files...) }

// ask sends one request and waits for its answer, whose body goes to out. The
// descriptors in the answer become the caller's.
func (s *Stage) ask(ctx context.Context, op stagewire.Op, body, out any, l late, files ...*os.File) ([]*os.File, error) {
	c, err := s.send(op, body, files...)
	if err != nil {
		return nil, err
	}
	return c.wait(ctx, out, l)
}

// call is a request that was sent.
type call chan answer

// send sends one request, whose answer is to be waited for.
func (s *Stage) send(op stagewire.Op, body any, files ...*os.File) (call, error) {
	b, err := stagewire.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("cannot ask the stage to %s: %w", op, err)
	}
	c := make(call, 1)
	s.mu.Lock()
	if s.pending == nil {
		s.mu.Unlock()
		return nil, ErrStageGone
	}
	s.next++
	id := s.next
	s.pending[id] = c
	s.mu.Unlock()
	if err := stagewire.Send(s.conn, stagewire.Message{ID: id, Op: op, Body: b}, files...); err != nil {
		s.mu.Lock()
		delete(s.pending, id)
		s.mu.Unlock()
		if errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			return nil, ErrStageGone
		}
		return nil, fmt.Errorf("cannot ask the stage to %s: %w", op, err)
	}
	return c, nil
}

// wait takes the answer. One that comes after ctx has ended goes to l.
func (c call) wait(ctx context.Context, out any, l late) ([]*os.File, error) {
	select {
	case a, ok := <-c:
		if !ok {
			return nil, ErrStageGone
		}
		if err := decodeAnswer(a.m, out); err != nil {
			linux.CloseAll(a.files...)
			return nil, err
		}
		return a.files, nil
	case <-ctx.Done():
		go func() {
			if a, ok := <-c; ok {
				l(a)
			}
		}()
		return nil, ctx.Err()
	}
}

func decodeAnswer(m stagewire.Message, out any) error {
	if m.Error != nil {
		return failure(m.Error)
	}
	if out == nil {
		return nil
	}
	if err := stagewire.Unmarshal(m.Body, out); err != nil {
		return fmt.Errorf("cannot decode the stage's answer: %w", err)
	}
	return nil
}

// failure turns a no of the stage into the error that callers branch on.
func failure(f *stagewire.Failure) error {
	switch f.Kind {
	case stagewire.KindBusy:
		return ErrBusy
	case stagewire.KindForgot:
		return errForgot
	case stagewire.KindStale:
		return ErrStale
	case stagewire.KindGone:
		return fmt.Errorf("%w: %s", ErrGone, f.Say)
	case stagewire.KindStep:
		return &StepError{Step: f.Step, Text: f.Text, Where: f.Where, Errno: syscall.Errno(f.Errno), Hint: f.Hint}
	case stagewire.KindLack:
		return fmt.Errorf("%s: %w", f.Say, ErrUnsupported)
	case stagewire.KindRefused, stagewire.KindKernel:
	}
	if f.Errno != 0 {
		return &stageError{say: f.Say, errno: syscall.Errno(f.Errno)}
	}
	return errors.New(f.Say)
}

// stageError is a text of the stage's that still unwraps to its errno.
type stageError struct {
	say   string
	errno syscall.Errno
}

// Error returns the stage's own words, which end in the errno's text.
func (f *stageError) Error() string { return f.say }

// Unwrap returns the errno.
func (f *stageError) Unwrap() error { return f.errno }

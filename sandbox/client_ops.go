package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// Look finds the files that r names with the rights of whoever connected conn:
// the stage reads SO_PEERCRED and SO_PEERGROUPS itself. The second result is an
// O_PATH descriptor of r.Dir, nil when it was not found or not asked for; the
// caller closes it. What is absent is in the facts, not in the error.
func (s *Stage) Look(ctx context.Context, conn *os.File, r LookRequest) (Looked, *os.File, error) {
	var l Looked
	files, err := s.ask(ctx, stagewire.OpLook, r, &l, dropAnswer, conn)
	if err != nil {
		return Looked{}, nil, err
	}
	if len(files) > 1 {
		linux.CloseAll(files...)
		return Looked{}, nil, fmt.Errorf("cannot look: the stage sent %d descriptors, not one", len(files))
	}
	if len(files) == 0 {
		return l, nil, nil
	}
	return l, files[0], nil
}

// Scratch mounts a memory file system at STATE/run/scratch/NAME and returns an
// O_PATH descriptor of its root, which the caller closes. If one with that name
// is mounted already, that one is returned as it is.
func (s *Stage) Scratch(ctx context.Context, name string, size Bytes, inodes int64, uid, gid, mode uint32) (*os.File, Identity, error) {
	var id Identity
	q := stagewire.Scratch{Name: name, Size: int64(size), Inodes: inodes, UID: uid, GID: gid, Mode: mode}
	files, err := s.ask(ctx, stagewire.OpScratch, q, &id, dropAnswer)
	if err != nil {
		return nil, Identity{}, err
	}
	if len(files) != 1 {
		linux.CloseAll(files...)
		return nil, Identity{}, fmt.Errorf("cannot make scratch %q: the stage sent %d descriptors, not one", name, len(files))
	}
	return files[0], id, nil
}

// DropScratch unmounts and removes what Scratch made; a name that is not there
// is no error.
func (s *Stage) DropScratch(ctx context.Context, name string) error {
	_, err := s.ask(ctx, stagewire.OpDropScratch, stagewire.Scratch{Name: name}, nil, dropAnswer)
	return err
}

// Launched is the stage's answer to a launch. Its descriptors come in the order
// of the fields that name them.
type Launched struct {
	Pen         uint64      `json:"pen"`
	InitPid     int         `json:"init_pid"`
	InitUID     uint32      `json:"init_uid,omitzero"` // what PID 1 is to have become once the target runs; 0: cannot be told apart
	Pid         int         `json:"pid"`
	Enforcement Enforcement `json:"enforcement,omitzero"` // not with what a prepared pen's command is answered
	Mark        Mark        `json:"mark,omitzero"`        // without Enforcement, and likewise
	Laps        []Lap       `json:"laps,omitzero"`        // where Command.Timed asked for them
	Files       []string    `json:"files"`                // what each descriptor is: init, target, status, stdin, stdout, stderr, pty, relay, gate
}

// The descriptors of a Launched.
const (
	FileInit   = "init"   // pidfd of PID 1
	FileTarget = "target" // pidfd of the target
	FileStatus = "status" // socket to PID 1
	FileStdin  = "stdin"  // write end
	FileStdout = "stdout" // read end; with a terminal: read end of the relay pipe
	FileStderr = "stderr" // read end
	FilePTY    = "pty"    // master
	FileRelay  = "relay"  // with a terminal: write end of the relay pipe
	FileGate   = "gate"   // write end of the last gate
)

// Launch builds a pen and brings its target to the last gate, where it waits to
// be started or aborted. conn is the connection of the client that asked: the
// run uid must be its peer's, a named one or a dynamic one. attach are the
// descriptors of spec.Profile.Attach, in order. The caller keeps all files.
// A failed step is a *StepError.
func (s *Stage) Launch(ctx context.Context, conn *os.File, spec Spec, attach []*os.File) (*Pen, error) {
	var l Launched
	command, err := stagewire.Marshal(spec.Command)
	if err != nil {
		return nil, fmt.Errorf("cannot ask the stage to launch: %w", err)
	}
	defer clear(command) // may hold secrets
	files, err := s.build(ctx, stagewire.OpLaunch, spec, stagewire.Launch{Command: command}, &l, s.abandon, append([]*os.File{conn}, attach...))
	if err != nil {
		return nil, err
	}
	return s.pen(ctx, spec, l, files, FileGate)
}

// pen takes over what was built, which has these descriptors beside those of any pen.
func (s *Stage) pen(ctx context.Context, spec Spec, l Launched, files []*os.File, also ...string) (p *Pen, err error) {
	p = &Pen{stage: s, id: l.Pen, InitPid: l.InitPid, initUID: l.InitUID, Pid: l.Pid, Enforcement: l.Enforcement, Laps: l.Laps, mark: l.Mark, program: spec.Command.Program}
	p.files, err = byName(l.Files, files, append(also, FileInit, FileTarget, FileStatus, FileStdout)...)
	if err == nil && s.v2() != "" {
		p.job = filepath.Join(s.v2(), spec.Site.Cgroup, "job")
	}
	if err != nil {
		linux.CloseAll(files...)
		return nil, errors.Join(err, p.Abort(ctx))
	}
	return p, nil
}

// build asks for a pen, and sends the profile along where the stage does not know it.
// Whether it does is the stage's word alone.
func (s *Stage) build(ctx context.Context, op stagewire.Op, spec Spec, q stagewire.Launch, out any, l late, files []*os.File) ([]*os.File, error) {
	profile, err := stagewire.Marshal(spec.Profile)
	if err != nil {
		return nil, fmt.Errorf("cannot ask the stage to %s: %w", op, err)
	}
	if q.Site, err = stagewire.Marshal(spec.Site); err != nil {
		return nil, fmt.Errorf("cannot ask the stage to %s: %w", op, err)
	}
	key := stagewire.ProfileKey(profile)
	if s.sent.has(key) {
		q.Key = key
		got, err := s.ask(ctx, op, q, out, l, files...)
		if !errors.Is(err, errForgot) {
			return got, err
		}
	}
	q.Key, q.Profile = "", profile
	got, err := s.ask(ctx, op, q, out, l, files...)
	if err == nil && op == stagewire.OpLaunch { // what is only prepared has not proved good yet, and is not kept
		s.sent.add(key)
	}
	return got, err
}

// sentProfiles are the keys of profiles that the stage should know.
type sentProfiles struct {
	mu   sync.Mutex
	keys map[string]bool
}

// maxSent bounds what is remembered; beyond it all is sent once more.
const maxSent = 256

func (p *sentProfiles) has(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[key]
}

func (p *sentProfiles) add(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys == nil || len(p.keys) >= maxSent {
		p.keys = map[string]bool{}
	}
	p.keys[key] = true
}

// errForgot says that the stage does not know a profile that was only named.
var errForgot = errors.New("the stage does not know the profile")

// v2 returns our base in the cgroup v2 hierarchy, or "".
func (s *Stage) v2() string {
	for _, h := range s.config.Cgroups {
		if h.Controller == "" {
			return h.Dir
		}
	}
	return ""
}

// abandon ends a pen whose launch nobody waits for any more.
func (s *Stage) abandon(a answer) {
	defer linux.CloseAll(a.files...)
	var l Launched
	if decodeAnswer(a.m, &l) != nil {
		return // it was not launched
	}
	// The only failure left is a stage that is gone, and then so is the pen.
	_ = (&Pen{stage: s, id: l.Pen}).Abort(context.Background())
}

// byName gives each descriptor its name; those of need must be there.
func byName(names []string, files []*os.File, need ...string) (map[string]*os.File, error) {
	if len(names) != len(files) {
		return nil, fmt.Errorf("cannot take the pen's descriptors: the stage names %d and sent %d", len(names), len(files))
	}
	m := make(map[string]*os.File, len(files))
	for i, n := range names {
		m[n] = files[i]
	}
	for _, n := range need {
		if m[n] == nil {
			return nil, fmt.Errorf("cannot take the pen's descriptors: the stage sent no %s", n)
		}
	}
	if len(m) != len(files) {
		return nil, errors.New("cannot take the pen's descriptors: the stage sent one twice")
	}
	return m, nil
}

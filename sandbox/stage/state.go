package stage

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// ofState serves what the daemon has no privilege for in the state directory.
func (s *server) ofState(m stagewire.Message, passed []int) (any, []*os.File, error) {
	if m.Op == stagewire.OpEnd {
		return nil, nil, s.endState()
	}
	if m.Op == stagewire.OpRmdir {
		return nil, nil, s.removeBase(m.Body)
	}
	var q stagewire.Home
	if err := stagewire.Unmarshal(m.Body, &q); err != nil {
		return nil, nil, refused("cannot read the request: %w", err)
	}
	if err := checkHome(q); err != nil {
		return nil, nil, err
	}
	if m.Op == stagewire.OpPlace {
		return nil, nil, s.place(q)
	}
	peer, err := peerOf(passed)
	if err != nil {
		return nil, nil, err
	}
	return s.home(q, peer)
}

// checkHome keeps names from leaving their directory, and root from owning a home.
func checkHome(q stagewire.Home) error {
	switch {
	case !scratchName(q.Name):
		return refused("cannot use the name %q of a home: letters, digits, - _ and . only", q.Name)
	case q.UID == 0 || q.GID == 0:
		return refused("cannot make home %q: nothing of a pen belongs to uid or gid 0", q.Name)
	case q.Place != "" && (!filepath.IsLocal(q.Place) || filepath.Clean(q.Place) != q.Place || len(q.Place) > maxHomePlace):
		return refused("cannot make a place %q in home %q: not a clean relative path", q.Place, q.Name)
	}
	return nil
}

// maxHomePlace bounds the path of a workspace's place in a home.
const maxHomePlace = 4095

// home makes the kept home of a caller, whom peer tells, or finds it. It belongs to an
// id that a pen of that caller may have.
func (s *server) home(q stagewire.Home, peer linux.Peer) (any, []*os.File, error) {
	if peer.UID == 0 {
		return nil, nil, refused("cannot keep a home for root")
	}
	if err := s.mayRun(q.UID, q.GID, peer); err != nil {
		return nil, nil, err
	}
	s.scratchMu.Lock()
	defer s.scratchMu.Unlock()
	parent := filepath.Join(s.config.State, "cache", itoa(peer.UID))
	for _, dir := range []string{filepath.Dir(parent), parent} {
		if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, nil, err
		}
	}
	at, err := linux.OpenAt(nil, parent, unix.O_PATH|unix.O_DIRECTORY, linux.Strict)
	if err != nil {
		return nil, nil, err
	}
	defer linux.CloseAll(at)
	if err := ownDir(at, q); err != nil {
		return nil, nil, fmt.Errorf("cannot make home %q: %w", q.Name, err)
	}
	f, err := linux.OpenAt(at, q.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, linux.Strict)
	if err != nil {
		return nil, nil, err
	}
	if err := placeIn(f, q); err != nil {
		linux.CloseAll(f)
		return nil, nil, err
	}
	st, err := linux.Stat(f)
	return idOf(st), []*os.File{f}, err
}

// ownDir makes the directory of a home that is not there.
func ownDir(parent *os.File, q stagewire.Home) error {
	err := linux.MkdirAt(parent, q.Name, 0o700)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.NewSyscallError("fchownat", unix.Fchownat(linux.FD(parent), q.Name, int(q.UID), int(q.GID), unix.AT_SYMLINK_NOFOLLOW))
}

// place makes directories in a scratch file system that is mounted.
func (s *server) place(q stagewire.Home) error {
	path, err := s.scratchPath(q.Name)
	if err != nil {
		return err
	}
	s.scratchMu.Lock()
	defer s.scratchMu.Unlock()
	f, err := linux.OpenAt(nil, path, unix.O_PATH|unix.O_DIRECTORY, linux.Strict)
	if err != nil {
		return err
	}
	defer linux.CloseAll(f)
	if mounted, err := linux.IsMountRoot(f); err != nil || !mounted {
		return errors.Join(refused("cannot make a place in scratch %q: none is mounted", q.Name), err)
	}
	return placeIn(f, q)
}

func placeIn(f *os.File, q stagewire.Home) error {
	return sandbox.MakePlace(fmt.Sprintf("/proc/self/fd/%d", linux.FD(f)), q.Place, int(q.UID), int(q.GID))
}

// endState unmounts what is left below STATE/run/scratch, and STATE/run itself where a
// daemon mounted it. What the daemon has asked for and given up since comes too late.
func (s *server) endState() error {
	if s.rootless != nil {
		return nil // there nothing is mounted in sight of the host
	}
	s.scratchMu.Lock()
	defer s.scratchMu.Unlock()
	s.ended = true
	run := filepath.Join(s.config.State, "run")
	table, err := linux.ReadProc("/proc/self/mountinfo", maxProcFile)
	if err != nil {
		return err
	}
	mounts := mountsBelow(table, run)
	var errs []error
	for _, m := range slices.Backward(mounts) {
		switch {
		case strings.HasPrefix(m.path, run+"/scratch/"):
			errs = append(errs, linux.Detach(m.path))
		case m.path == run && m.source == sandbox.RunSource:
			errs = append(errs, os.NewSyscallError("umount2 "+run, unix.Unmount(run, unix.UMOUNT_NOFOLLOW)))
		}
	}
	return errors.Join(errs...)
}

// attached is a mount as the mount table tells it.
type attached struct{ path, source string }

// mountsBelow lists what is mounted at and below dir, in the order of mounting:
// proc_pid_mountinfo(5).
func mountsBelow(table []byte, dir string) []attached {
	plain := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var out []attached
	lines := bufio.NewScanner(bytes.NewReader(table))
	for lines.Scan() {
		head, tail, _ := strings.Cut(lines.Text(), " - ")
		f, kind := strings.Fields(head), strings.Fields(tail)
		if len(f) < 5 || len(kind) < 2 {
			continue
		}
		if at := plain.Replace(f[4]); at == dir || strings.HasPrefix(at, dir+"/") {
			out = append(out, attached{at, plain.Replace(kind[1])})
		}
	}
	return out
}

// removeBase removes a cgroup that the daemon has emptied: the base in one of our
// hierarchies, or daemon/ in it. We have been started in the latter where the daemon
// moved itself there, and go to where the base is.
func (s *server) removeBase(raw []byte) error {
	var q stagewire.Rmdir
	if err := stagewire.Unmarshal(raw, &q); err != nil {
		return refused("cannot read the request: %w", err)
	}
	base := strings.TrimSuffix(q.Path, "/daemon")
	if !slices.ContainsFunc(s.config.Cgroups, func(h sandbox.CgroupHier) bool { return h.Dir == base }) {
		return refused("cannot remove the cgroup %q: not ours", q.Path)
	}
	if base != q.Path {
		members, err := os.ReadFile(filepath.Join(q.Path, "cgroup.procs"))
		if err != nil {
			return err
		}
		if own := strconv.Itoa(os.Getpid()); slices.Contains(strings.Fields(string(members)), own) {
			if err := os.WriteFile(filepath.Join(filepath.Dir(base), "cgroup.procs"), []byte(own), 0); err != nil {
				return err
			}
		}
	}
	return os.NewSyscallError("rmdir "+q.Path, unix.Rmdir(q.Path))
}

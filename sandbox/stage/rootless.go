package stage

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/launch"
	"pinfold/sandbox/internal/linux"
)

// rootless is what differs where the stage is an ordinary user's, in a user
// namespace that maps one uid and one gid.
type rootless struct {
	uid, gid uint32
	groups   string // supplementary groups, as status in proc(5) shows them
	conn     *os.File
}

// cureUID is how a pen gets another uid than the daemon's.
const cureUID = "run pinfoldd as root for other uids, or use run_as: caller"

func (s *server) enterRootless() error {
	st, err := readStatus(os.Getpid())
	if err != nil {
		return err
	}
	conn, err := linux.Pollable(os.NewFile(ownersFD, "owners"))
	if err != nil {
		return fmt.Errorf("cannot enter a user namespace without the stage outside: %w", err)
	}
	s.rootless = &rootless{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()), groups: st.groups, conn: conn}
	s.trees.owners = &owners{conn: conn}
	return nil
}

func (r *rootless) close() {
	if r != nil {
		linux.CloseAll(r.conn)
	}
}

// mayRun keeps to the one uid and the one gid that there are.
func (r *rootless) mayRun(uid, gid uint32) error {
	if r == nil || uid == r.uid && gid == r.gid {
		return nil
	}
	return refused("cannot run as %d:%d: without root there is one uid and one gid, %d:%d; %s", uid, gid, r.uid, r.gid, cureUID)
}

// ours returns the file that src is open on as our own mount namespace has it,
// where src comes from the daemon's: open_tree(2) clones no mount of another's.
func (r *rootless) ours(src *os.File) (*os.File, error) {
	if r == nil {
		return linux.Dup(src)
	}
	name, err := linux.PathOf(src)
	if err != nil {
		return nil, err
	}
	f, err := linux.OpenAt(nil, name, unix.O_PATH|unix.O_NOFOLLOW, linux.Strict)
	if err == nil {
		err = sameFile(f, src)
	}
	if err != nil {
		linux.CloseAll(f)
		return nil, err
	}
	return f, nil
}

// closed reports whether err says that a directory may not be searched by the user.
// Nothing that is denied below it can then be held where it is: the directory as a
// whole is, in which the user could see nothing anyway.
func (r *rootless) closed(err error) bool { return r != nil && errors.Is(err, unix.EACCES) }

// userNS maps the one uid into the pen's own user namespace: for PID 1 and the
// target both. PID 1 keeps its capabilities there as ambient ones where it is not 0.
func (r *rootless) userNS(l *launch.Start, g *launch.Registers, rootMap bool) {
	uid, gid := int(r.uid), int(r.gid)
	if rootMap {
		uid, gid = 0, 0
	} else {
		l.Ambient = ambient()
	}
	l.UIDMaps = []syscall.SysProcIDMap{{ContainerID: uid, HostID: int(r.uid), Size: 1}}
	l.GIDMaps = []syscall.SysProcIDMap{{ContainerID: gid, HostID: int(r.gid), Size: 1}}
	g.UID, g.GID, g.InitUID, g.InitGID = uint32(uid), uint32(gid), uint32(uid), uint32(gid)
}

// weaker says what holds less than under root, for the record.
func (r *rootless) weaker() []string {
	if r == nil {
		return nil
	}
	out := []string{fmt.Sprintf("rootless: PID 1 of the pen has the target's own uid %d, since one uid is mapped", r.uid)}
	if r.groups != "" {
		out = append(out, "rootless: the target keeps the user's supplementary groups, since a user namespace of one user may not drop them")
	}
	return out
}

// detail tells of the user namespace of a pen that was given none of its own.
func (r *rootless) detail(c *sandbox.ControlState) {
	if r != nil && c.Control == sandbox.ControlUserNS && c.State == sandbox.StateOff {
		c.Detail = "the pen has no user namespace of its own, but is in the stage's: the daemon is not root"
	}
}

// statFile looks at a file in the target's directory of proc(5). Its descriptors
// are shown to root alone: there the descriptor itself is taken.
func (l *launcher) statFile(name string, number int) (unix.Stat_t, error) {
	if l.s.rootless == nil || number < 0 {
		return linux.StatPath(procPath(l.target, name))
	}
	p, err := linux.PidfdOpen(l.target)
	if err != nil {
		return unix.Stat_t{}, err
	}
	defer linux.CloseAll(p)
	f, err := linux.TakeFile(p, number, "descriptor "+strconv.Itoa(number))
	if err != nil {
		return unix.Stat_t{}, err
	}
	defer linux.CloseAll(f)
	return linux.Stat(f)
}

// noneButKnown asks for each descriptor by its number: the list of another's is for root
// alone to read, where the process is not dumpable, and so is whether they close.
func (l *launcher) noneButKnown(known map[string]bool) error {
	p, err := linux.PidfdOpen(l.target)
	if err != nil {
		return err
	}
	defer linux.CloseAll(p)
	for n := range 2 * image.FDAttach {
		if known[strconv.Itoa(n)] {
			continue
		}
		f, err := linux.TakeFile(p, n, "descriptor "+strconv.Itoa(n))
		if errors.Is(err, unix.EBADF) {
			continue
		}
		linux.CloseAll(f)
		return errors.Join(err, fmt.Errorf("descriptor %d is open", n))
	}
	return nil
}

// groupsKept checks which supplementary groups the target is in: none, or where
// these cannot be dropped no other than our own.
func (l *launcher) groupsKept(st *procStatus) error {
	want := ""
	if l.s.rootless != nil {
		want = l.s.rootless.groups
	}
	if st.groups != want {
		return fmt.Errorf("it is in the groups %q, not in %q", st.groups, want)
	}
	return nil
}

package stage

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
)

// The floors: what no Spec can lower, whoever wrote it. Spec.Validate keeps those
// that need no facts (never uid 0, no control off that must be on, clean paths,
// bounded sizes); here are those that depend on who asked and on how the stage
// was started. Capabilities zero, no_new_privs and own mount, pid, ipc and uts
// namespaces are in every Program that Compile makes, and are read back at the
// last gate.

// floors says why c may not be started for peer, or nil.
func (s *server) floors(c *sandbox.Site, f *sandbox.Profile, peer linux.Peer) error {
	if err := s.mayRun(c.UID, c.GID, peer); err != nil {
		return err
	}
	for _, a := range f.Attach {
		if a.IDMap && (c.DiskUID != peer.UID || c.DiskGID != peer.GID && !slices.Contains(peer.Groups, c.DiskGID)) {
			return refused("cannot map owner %d:%d of %s into the pen: the caller is %d:%d", c.DiskUID, c.DiskGID, a.Path, peer.UID, peer.GID)
		}
	}
	if _, ok := s.config.base(""); !ok {
		return refused("cannot start: the stage was given no cgroup v2 directory")
	}
	for _, j := range c.Join {
		if _, ok := s.config.base(j.Controller); !ok {
			return refused("cannot join a cgroup of %q: the stage was given no directory there", j.Controller)
		}
	}
	return nil
}

// mayRun keeps the uid: the peer's own, one in the dynamic range, or one named on
// the command line; and with each only its own groups.
func (s *server) mayRun(uid, gid uint32, peer linux.Peer) error {
	if uid == 0 || gid == 0 {
		return refused("nothing is started as uid or gid 0")
	}
	if err := s.rootless.mayRun(uid, gid); err != nil {
		return err
	}
	if s.config.DynamicCount > 0 && (uid == s.config.DynamicFirst || gid == s.config.DynamicFirst) {
		return refused("cannot run as %d:%d: %d is PID 1's alone", uid, gid, s.config.DynamicFirst)
	}
	switch {
	case uid == peer.UID:
		if gid == peer.GID || slices.Contains(peer.Groups, gid) {
			return nil
		}
		return refused("cannot run as group %d: not one of the caller's", gid)
	case s.config.dynamic(uid):
		if gid == uid {
			return nil
		}
		return refused("cannot run dynamic uid %d as group %d: its group has the same number", uid, gid)
	case slices.Contains(s.config.Named, uid):
		own, err := primaryGroup("/etc/passwd", uid)
		if err != nil {
			return err
		}
		if gid == own {
			return nil
		}
		return refused("cannot run uid %d as group %d: its own is %d", uid, gid, own)
	}
	return refused("cannot run as uid %d: not the caller's, not dynamic, not named on the stage's command line", uid)
}

// primaryGroup returns the group of uid in a passwd(5) file; for a uid that is
// not there, the group with the same number.
func primaryGroup(file string, uid uint32) (uint32, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, fmt.Errorf("cannot find the group of uid %d: %w", uid, err)
	}
	defer linux.CloseAll(f)
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		p := strings.Split(sc.Text(), ":")
		if len(p) < 4 || p[2] != strconv.FormatUint(uint64(uid), 10) {
			continue
		}
		return number(p[3])
	}
	return uid, sc.Err()
}

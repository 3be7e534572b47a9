package socket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is who connected, as the kernel recorded it at connect(2): unix(7).
type Peer struct {
	UID, GID uint32   // effective
	GIDs     []uint32 // supplementary; SO_PEERGROUPS, Linux 4.13
	PID      int      // 0: not visible from the daemon's pid namespace
	// Pidfd refers to the process, or is nil where the kernel gives none (SO_PEERPIDFD,
	// Linux 6.5). The connection closes it.
	Pidfd *os.File
	// Cgroup is where the process lives in the v2 hierarchy ("/…"), "" if unknown. It was
	// read while the process had not been reaped, unless UnitErr says otherwise.
	Cgroup string
	// Unit is the systemd system unit, as sd_pid_get_unit(3) tells; inside a user's
	// manager that is user@UID.service. "": unknown, then UnitErr says why.
	Unit    string
	UnitErr error
}

// maxGroups is how many supplementary groups a process can have: NGROUPS_MAX, credentials(7).
const maxGroups = 65536

// peerOf asks the kernel who is at the other end of nc.
func peerOf(nc *net.UnixConn) (Peer, error) {
	var p Peer
	err := onFD(nc, func(fd int) error {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return fmt.Errorf("getsockopt SO_PEERCRED: %w", err)
		}
		p.UID, p.GID, p.PID = cred.Uid, cred.Gid, int(cred.Pid)
		if p.GIDs, err = peerGroups(fd); err != nil {
			return fmt.Errorf("getsockopt SO_PEERGROUPS: %w", err)
		}
		pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err == nil {
			unix.CloseOnExec(pidfd)
			p.Pidfd = os.NewFile(uintptr(pidfd), fmt.Sprintf("pidfd of %d", p.PID))
		}
		p.locate(err)
		return nil
	})
	return p, err
}

// peerGroups returns the supplementary groups of fd's peer.
func peerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(groups))), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return groups[:size/4], nil
		case errno != unix.ERANGE || len(groups) >= maxGroups:
			return nil, errno
		}
		groups = make([]uint32, maxGroups)
	}
}

// locate sets Cgroup and Unit. noPidfd is why there is no pidfd.
func (p *Peer) locate(noPidfd error) {
	if p.PID == 0 {
		p.UnitErr = errors.New("the peer is not visible from the daemon's pid namespace")
		return
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
	// What was read is of the peer only if its pid cannot have been given away before.
	if gone := p.reaped(); gone != nil {
		p.UnitErr = gone
		return
	}
	if err != nil {
		p.UnitErr = fmt.Errorf("cannot tell the peer's unit: %w", err)
		return
	}
	var named string
	p.Cgroup, named = parseCgroup(string(text))
	if p.Pidfd == nil {
		p.UnitErr = fmt.Errorf("cannot tell the peer's unit: getsockopt SO_PEERPIDFD (Linux 6.5): %w", noPidfd)
		return
	}
	p.Unit, p.UnitErr = unitOf(named)
}

// reaped returns an error if the peer's pid is free for others. A process that has
// ended keeps its pid and its cgroup until it is reaped: cgroups(7).
func (p *Peer) reaped() error {
	if p.Pidfd == nil {
		return nil
	}
	err := onFD(p.Pidfd, func(fd int) error { return unix.PidfdSendSignal(fd, 0, nil, 0) })
	if errors.Is(err, unix.ESRCH) {
		return ErrUnplaced
	}
	return nil // also EPERM: it is there
}

// refusal returns why the peer cannot be a caller: it lives in below, or nobody knows.
func (p *Peer) refusal(below string) error {
	switch {
	case below == "":
		return nil
	case p.Cgroup == "" && p.UnitErr != nil:
		return fmt.Errorf("%w: %w", ErrUnplaced, p.UnitErr)
	case p.Cgroup == "":
		return ErrUnplaced
	case p.Cgroup == below || strings.HasPrefix(p.Cgroup, strings.TrimSuffix(below, "/")+"/"):
		return fmt.Errorf("%w: it lives in cgroup %s", ErrOwnPen, p.Cgroup)
	}
	return nil
}

func (p *Peer) close() error {
	if p.Pidfd == nil {
		return nil
	}
	return p.Pidfd.Close()
}

// parseCgroup takes the v2 path and the path that systemd's unit is in from
// /proc/PID/cgroup, proc_pid_cgroup(5). On a host where systemd keeps its units in a v1
// hierarchy of its own (name=systemd) and v2 has no units, that one counts.
func parseCgroup(text string) (v2, units string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		_, rest, _ := strings.Cut(line, ":")
		controllers, path, ok := strings.Cut(rest, ":")
		path = strings.TrimSuffix(path, " (deleted)")
		switch {
		case !ok || !strings.HasPrefix(path, "/"):
		case controllers == "" && strings.HasPrefix(line, "0:"):
			v2 = path
		case controllers == "name=systemd":
			units = path
		}
	}
	if _, err := unitOf(v2); err == nil || units == "" {
		units = v2
	}
	return v2, units
}

// unitOf returns the system unit of a cgroup path: its first component that is no
// slice, as sd_pid_get_unit(3) takes it.
func unitOf(path string) (string, error) {
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		name := strings.TrimPrefix(part, "_") // systemd's escape of names that look like controllers' files
		dot := strings.LastIndexByte(name, '.')
		if dot <= 0 || len(name) > maxUnitName || strings.Trim(name, unitChars) != "" || !validUnit(name[:dot]) {
			break
		}
		switch name[dot+1:] {
		case "slice":
			continue
		case "service", "scope", "socket", "mount", "swap":
			return name, nil
		}
		break
	}
	return "", fmt.Errorf("cannot tell the peer's unit: cgroup %q is in none", path)
}

const (
	maxUnitName = 255 // UNIT_NAME_MAX - 1 of systemd
	unitChars   = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.\\@"
)

// validUnit reports whether the part before the type is a plain or an instance name.
func validUnit(prefix string) bool {
	at := strings.IndexByte(prefix, '@')
	return at != 0 && at != len(prefix)-1 // "@x" has no name, "x@" is a template and never runs
}

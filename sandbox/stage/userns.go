package stage

import (
	"syscall"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/launch"
)

// userNS maps two ids into the pen's user namespace: the run uid and PID 1's. Uid
// 0 inside is PID 1's, which so keeps its capabilities over its exec and is
// nobody's on the host; with rootMap it is the run uid, and PID 1, which then is
// not root inside either, keeps them as ambient ones.
func (s *server) userNS(l *launch.Start, r *launch.Registers, rootMap bool) {
	run, init := 0, 0
	if rootMap {
		init = 1
		l.Ambient = ambient()
	} else {
		run = int(r.UID)
	}
	runGID := run
	if !rootMap {
		runGID = int(r.GID)
	}
	l.UIDMaps = []syscall.SysProcIDMap{{ContainerID: init, HostID: int(r.InitUID), Size: 1}, {ContainerID: run, HostID: int(r.UID), Size: 1}}
	l.GIDMaps = []syscall.SysProcIDMap{{ContainerID: init, HostID: int(r.InitGID), Size: 1}, {ContainerID: runGID, HostID: int(r.GID), Size: 1}}
	l.Groups = launch.GroupsAllowed
	l.Credential = &syscall.Credential{Uid: uint32(init), Gid: uint32(init)}
	r.UID, r.GID = uint32(run), uint32(runGID)
	r.InitUID, r.InitGID = uint32(init), uint32(init)
}

// ambient are the capabilities that PID 1 needs: capabilities(7). It has them in
// its own user namespace only and gives them up before its target's exec.
func ambient() []uintptr {
	return []uintptr{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP,
		unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE, unix.CAP_MKNOD,
	}
}

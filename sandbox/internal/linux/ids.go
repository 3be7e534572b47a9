package linux

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

func peerGroups(s int) ([]uint32, error) {
	g := make([]uint32, 64)
	for {
		n := uint32(len(g) * 4)
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&g[0])), uintptr(unsafe.Pointer(&n)), 0)
		if e == 0 {
			return g[:n/4], nil
		}
		if e == unix.ERANGE {
			g = make([]uint32, n/4)
		} else if e != unix.EINTR {
			return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", e)
		}
	}
}

// AsPeer calls f on this goroutine with the file-system ids and groups of p, so
// that every path is walked and every file made with p's rights: setfsuid(2),
// setfsgid(2), setgroups(2), of the goroutine's thread alone. Where this process
// is not root it has one user's rights only: p must be that user. When the
// thread's own ids cannot be put back, the answer is ErrTainted and the thread
// stays bound to the goroutine, which must then end: the thread ends with it.
func AsPeer(p Peer, f func() error) error {
	if euid := os.Geteuid(); euid != 0 {
		if uint32(euid) != p.UID {
			return fmt.Errorf("cannot act for uid %d: this process has the rights of uid %d only", p.UID, euid)
		}
		return f()
	}
	if p.UID == 0 {
		return f()
	}
	runtime.LockOSThread()
	own, err := threadGroups()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	got := setThread(p.UID, p.GID, p.Groups)
	if got == nil {
		got = f()
	}
	if err := setThread(0, 0, own); err != nil {
		return errors.Join(ErrTainted, err, got)
	}
	runtime.UnlockOSThread()
	return got
}

// ErrTainted says that a thread has kept somebody else's file-system ids.
var ErrTainted = errors.New("thread cannot take its own ids back; this is a bug in pinfold, please report")

func threadGroups() ([]uint32, error) {
	n, _, e := unix.RawSyscall(unix.SYS_GETGROUPS, 0, 0, 0)
	if e != 0 {
		return nil, os.NewSyscallError("getgroups", e)
	}
	if n == 0 {
		return nil, nil
	}
	g := make([]uint32, n)
	n, _, e = unix.RawSyscall(unix.SYS_GETGROUPS, n, uintptr(unsafe.Pointer(&g[0])), 0)
	if e != 0 {
		return nil, os.NewSyscallError("getgroups", e)
	}
	return g[:n], nil
}

// setThread sets the file-system ids and groups of the calling thread alone.
func setThread(uid, gid uint32, groups []uint32) error {
	var at unsafe.Pointer
	if len(groups) > 0 {
		at = unsafe.Pointer(&groups[0])
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(at), 0); e != 0 {
		return os.NewSyscallError("setgroups", e)
	}
	if err := setOne("setfsgid", unix.SYS_SETFSGID, gid); err != nil {
		return err
	}
	return setOne("setfsuid", unix.SYS_SETFSUID, uid)
}

// setOne sets an id whose call answers the old one and never an error: asked a
// second time it answers the new one.
func setOne(call string, number uintptr, id uint32) error {
	_, _, _ = unix.RawSyscall(number, uintptr(id), 0, 0)
	if r, _, _ := unix.RawSyscall(number, uintptr(id), 0, 0); uint32(r) != id {
		return os.NewSyscallError(call, unix.EPERM)
	}
	return nil
}

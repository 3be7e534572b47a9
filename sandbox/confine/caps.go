package confine

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// Capabilities that Needs may name: capabilities(7).
const (
	CapKill   = unix.CAP_KILL            // signal processes of other users
	CapLookAt = unix.CAP_DAC_READ_SEARCH // read files whoever owns them
)

// lastCap is the highest number that a capability set can hold: capabilities(7).
const lastCap = 63

// sets are the two words of each of the three sets that capget(2) tells.
type sets [2]unix.CapUserData

// dropCaps leaves every thread with those of keep that it has, in the permitted and the
// effective set, and with nothing in the inheritable, ambient and bounding sets. Without
// CAP_SETPCAP the bounding set stays: no_new_privs makes it idle.
func dropCaps(keep []int) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have sets
	if err := unix.Capget(&head, &have[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	if have[0].Effective&(1<<unix.CAP_SETPCAP) != 0 {
		if err := dropBounding(); err != nil {
			return err
		}
	}
	if err := everywhere("prctl PR_CAP_AMBIENT_CLEAR_ALL", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	var want sets
	for _, c := range keep {
		bit := uint32(1) << (c % 32)
		want[c/32].Permitted |= bit & have[c/32].Permitted
		want[c/32].Effective |= bit & have[c/32].Permitted
	}
	var pin runtime.Pinner // each thread reads them by their address
	defer pin.Unpin()
	pin.Pin(&head)
	pin.Pin(&want)
	_, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&want)), 0)
	if errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}

// dropBounding empties the bounding set of every thread.
func dropBounding() error {
	for c := range uintptr(lastCap + 1) {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil { // EINVAL: the kernel has no more of them
			return nil
		}
		if has == 0 {
			continue
		}
		if err := everywhere("prctl PR_CAPBSET_DROP", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return err
		}
	}
	return nil
}

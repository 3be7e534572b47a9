package stage

import (
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/launch"
	"pinfold/sandbox/internal/linux"
)

// nursery is a thread in a mount namespace of its own with next to nothing in it,
// from which PID 1s are started. The kernel copies every mount of the starter's
// namespace for each pen, and PID 1 takes the copies down again: on a host these are
// dozens. The thread is also in an unused network namespace, for the next pen alone.
// Nothing but starts ever runs on it, and it never comes back: it ends with the nursery.
type nursery struct {
	work chan func()
	ns   uint64 // inode of the mount namespace

	spare atomic.Uint64 // inode of the network namespace that waits for a pen; 0: none
}

// newNursery returns nil where the kernel refuses one: pens are then started from the
// host's mount namespace, which is slower and nothing else.
func newNursery() *nursery {
	n := &nursery{work: make(chan func(), maxLaunches)}
	ready := make(chan error)
	go n.settle(ready)
	if <-ready != nil {
		return nil
	}
	return n
}

// settle makes the calling goroutine's thread the nursery's. The process's first
// thread stays what it is: /proc/self shows others its mounts.
func (n *nursery) settle(ready chan<- error) {
	runtime.LockOSThread()
	if linux.FirstThread() {
		other := make(chan error)
		go n.settle(other) // cannot be on this thread, which is locked until it has answered
		ready <- <-other
		runtime.UnlockOSThread()
		return
	}
	ns, err := linux.LeaveMounts("/proc", os.FileMode(0o555))
	n.ns = ns
	if err == nil {
		n.renew(0)
	}
	ready <- err
	if err != nil {
		return
	}
	for f := range n.work {
		f()
	}
}

// renew leaves the network namespace last, which is a pen's by now, for a new one.
// Where the kernel refuses that, pens make their own.
func (n *nursery) renew(last uint64) {
	if ns, err := linux.LeaveNetwork(); err == nil && ns != last {
		n.spare.Store(ns)
	}
}

// start starts a PID 1. It returns the inode of the network namespace that PID 1
// begins in where that was made beforehand, else 0.
func (n *nursery) start(s launch.Start) (pid int, pidfd *os.File, net uint64, err error) {
	if n == nil || s.Flags&unix.CLONE_NEWNET == 0 { // the thread is not in the host's network
		pid, pidfd, err = launch.Run(s)
		return pid, pidfd, 0, err
	}
	if s.Flags&unix.CLONE_NEWUSER == 0 { // else the new user namespace must own it
		net = n.spare.Swap(0)
	}
	if net != 0 {
		s.Flags &^= unix.CLONE_NEWNET
	}
	ran := false
	s.On = func(f func()) {
		ran = true
		n.on(f)
	}
	pid, pidfd, err = launch.Run(s)
	switch {
	case net != 0 && ran:
		n.work <- func() { n.renew(net) } // beside what PID 1 does now
	case net != 0:
		n.spare.Store(net) // nobody was ever in it
	}
	return pid, pidfd, net, err
}

// on runs f on the nursery's thread, and returns when it has.
func (n *nursery) on(f func()) {
	done := make(chan struct{})
	n.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// inode is that of the nursery's mount namespace, 0 where there is none.
func (n *nursery) inode() uint64 {
	if n == nil {
		return 0
	}
	return n.ns
}

func (n *nursery) close() {
	if n != nil {
		close(n.work)
	}
}

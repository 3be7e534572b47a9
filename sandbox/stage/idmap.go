package stage

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/linux"
)

const maxMaps = 256 // user namespaces kept for idmapped mounts; beyond it all are dropped

// mapping says whose files on disk a pen's run ids own.
type mapping struct{ diskUID, diskGID, uid, gid uint32 }

// idmaps keeps a user namespace for each mapping in use: mount_setattr(2)
// MOUNT_ATTR_IDMAP wants one.
type idmaps struct {
	dir string // for the image, where anonymous files cannot be executed

	mu    sync.Mutex
	image *os.File
	ns    map[mapping]*os.File
}

// userns returns a descriptor of a user namespace in which the id on disk stands
// for the run id. The caller closes it.
func (m *idmaps) userns(k mapping) (*os.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f, ok := m.ns[k]; ok {
		return linux.Dup(f)
	}
	if len(m.ns) >= maxMaps {
		m.drop()
	}
	f, err := m.make(k)
	if err != nil {
		return nil, fmt.Errorf("cannot map uid %d on disk to %d: %w", k.diskUID, k.uid, err)
	}
	m.ns[k] = f
	return linux.Dup(f)
}

// make starts a child in a user namespace of its own that waits on its standard
// input and does nothing else, opens the namespace, and ends the child.
func (m *idmaps) make(k mapping) (*os.File, error) {
	if m.image == nil {
		f, err := waiter(m.dir)
		if err != nil {
			return nil, err
		}
		m.image = f
	}
	r, w, err := linux.Pipe("idmap")
	if err != nil {
		return nil, err
	}
	defer linux.CloseAll(w)
	attr := &syscall.ProcAttr{
		Files: []uintptr{uintptr(linux.FD(r))},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: int(k.diskUID), HostID: int(k.uid), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: int(k.diskGID), HostID: int(k.gid), Size: 1}},
		},
	}
	pid, err := syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(linux.FD(m.image)), []string{"pinfold-idmap", "/"}, attr)
	linux.CloseAll(r)
	if err != nil {
		return nil, os.NewSyscallError("clone CLONE_NEWUSER", err)
	}
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/user")
	linux.CloseAll(w)
	var st syscall.WaitStatus
	for {
		if _, e := syscall.Wait4(pid, &st, 0, nil); e != syscall.EINTR {
			break
		}
	}
	return f, err
}

// waiter is the image of a program that reads one byte and exits.
func waiter(dir string) (*os.File, error) {
	p := image.New()
	p.In("idmap")
	p.Call("read", []image.Arg{image.Int(0), image.Spare(), image.Int(1)})
	p.Call("exit_group", []image.Arg{image.Int(0)})
	q, err := p.Link()
	if err != nil {
		return nil, err
	}
	return q.Memfd("pinfold-idmap", dir)
}

func (m *idmaps) drop() {
	for k, f := range m.ns {
		linux.CloseAll(f)
		delete(m.ns, k)
	}
}

func (m *idmaps) close() {
	m.drop()
	linux.CloseAll(m.image)
}

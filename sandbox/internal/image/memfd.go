package image

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Mode lets everybody execute an image and nobody read it, so that whoever
// runs one without CAP_DAC_OVERRIDE over it is not dumpable from its first
// instruction: execve(2), PR_SET_DUMPABLE in prctl(2).
const Mode = 0o111

// seals forbid every change. F_SEAL_EXEC: Linux 6.3.
const (
	sealsOld = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	seals    = sealsOld | unix.F_SEAL_EXEC
)

// Memfd writes the image to a sealed memfd (memfd_create(2), Linux 3.17) that
// can be executed through /proc/self/fd. Where such files are refused
// (vm.memfd_noexec=2, a security module) it is an unlinked file in dir, which
// must be on a file system of its owner's that is not mounted noexec. The caller
// closes it.
func (p *Program) Memfd(name, dir string) (*os.File, error) {
	b, err := p.Image()
	if err != nil {
		return nil, err
	}
	f, err := sealed(name, b)
	if err == nil {
		return f, nil
	}
	if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return nil, err
	}
	u, second := unlinked(dir, b)
	if second != nil {
		return nil, fmt.Errorf("cannot write image: %w; instead of it: %w", err, second)
	}
	return u, nil
}

func sealed(name string, b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	old := errors.Is(err, unix.EINVAL) // MFD_EXEC: Linux 6.3
	if old {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	s := seals
	if old {
		s = sealsOld
	}
	if err := fill(f, b); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, s); err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl F_ADD_SEALS", err), f.Close())
	}
	return f, nil
}

// unlinked writes the image to a file without a name and opens it again for
// reading alone: a descriptor that can write makes its execution ETXTBSY.
// Nothing is forked meanwhile: a child would hold a copy of it until it executes.
func unlinked(dir string, b []byte) (*os.File, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	w, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_RDWR|unix.O_CLOEXEC, 0o500)
	if err != nil {
		return nil, err
	}
	if err := fill(w, b); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	name := fmt.Sprintf("/proc/self/fd/%d", w.Fd())
	r, err := os.OpenFile(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return r, nil
}

func fill(f *os.File, b []byte) error {
	if _, err := f.Write(b); err != nil {
		return err
	}
	return f.Chmod(Mode)
}

func bug(what string, err error) error {
	return fmt.Errorf("%s: %w (this is a bug in pinfold, please report)", what, err)
}

package linux

import (
	"errors"
	"io"
	"os"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Resolve restricts how OpenAt walks a path: bits of openat2(2), Linux 5.6.
type Resolve uint64

// Ways to walk.
const (
	Plain   Resolve = unix.RESOLVE_NO_MAGICLINKS                                                            // symlinks are followed
	Strict  Resolve = unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS                                 // a symlink anywhere is ELOOP
	Beneath Resolve = unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH          // and .. or / out of the directory is EXDEV
	OneFS   Resolve = unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH | noXDev // and another mount is EXDEV
	InRoot  Resolve = unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_IN_ROOT                                     // symlinks are followed as if the directory were /
)

const noXDev = unix.RESOLVE_NO_XDEV

// OpenAt opens name below dir (nil: the working directory) by openat2(2), with
// O_CLOEXEC. The caller closes the result, whose name is the path opened.
func OpenAt(dir *os.File, name string, flags int, how Resolve) (*os.File, error) {
	n, err := OpenNumber(dir, name, flags, how)
	if err != nil {
		return nil, err
	}
	if dir != nil && !path.IsAbs(name) {
		name = path.Join(dir.Name(), name)
	}
	return os.NewFile(uintptr(n), name), nil
}

// OpenNumber is OpenAt for a descriptor that is only handed on: an *os.File asks
// the kernel what it is.
func OpenNumber(dir *os.File, name string, flags int, how Resolve) (int, error) {
	h := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: uint64(how)}
	n := -1
	err := retry("openat2 "+name, func() (err error) { n, err = unix.Openat2(fd(dir), name, &h); return })
	if err != nil {
		return -1, err
	}
	return n, nil
}

// CloseNumbers closes descriptors that no *os.File owns; −1 is none. Closing is all
// that is left to do with them, so their errors say nothing.
func CloseNumbers(numbers ...int) {
	for _, n := range numbers {
		if n >= 0 {
			_ = unix.Close(n)
		}
	}
}

// Reopen opens the file of an O_PATH descriptor again with flags, by its name in
// /proc/self/fd.
func Reopen(f *os.File, flags int) (*os.File, error) {
	var n int
	err := retry("open "+f.Name(), func() (err error) {
		n, err = unix.Open("/proc/self/fd/"+strconv.Itoa(fd(f)), flags|unix.O_CLOEXEC, 0)
		return
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), f.Name()), nil
}

// Dup returns a second descriptor of f's open file, with O_CLOEXEC.
func Dup(f *os.File) (*os.File, error) {
	var n int
	err := retry("fcntl F_DUPFD_CLOEXEC "+f.Name(), func() (err error) {
		n, err = unix.FcntlInt(uintptr(fd(f)), unix.F_DUPFD_CLOEXEC, 3)
		return
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), f.Name()), nil
}

// DupNumber is Dup for a descriptor that is only handed on.
func DupNumber(f *os.File) (int, error) { return dupNumber(fd(f)) }

// DupFile is Dup for a descriptor that was passed as a bare number.
func DupFile(n int, name string) (*os.File, error) {
	d, err := dupNumber(n)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(d), name), nil
}

func dupNumber(of int) (int, error) {
	n := -1
	err := retry("fcntl F_DUPFD_CLOEXEC", func() (err error) {
		n, err = unix.FcntlInt(uintptr(of), unix.F_DUPFD_CLOEXEC, 3)
		return
	})
	if err != nil {
		return -1, err
	}
	return n, nil
}

// Stat is stat(2) of an open file.
func Stat(f *os.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := retry("fstat "+f.Name(), func() error { return unix.Fstat(fd(f), &st) })
	return st, err
}

// StatFS tells which file system f is on: fstatfs(2). O_PATH descriptors do (Linux 3.12).
func StatFS(f *os.File) (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := retry("fstatfs "+f.Name(), func() error { return unix.Fstatfs(fd(f), &st) })
	return st, err
}

// StatPath is stat(2) of a path, symlinks followed (magic links too).
func StatPath(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := retry("stat "+name, func() error { return unix.Stat(name, &st) })
	return st, err
}

// LstatAt is fstatat(2) of name below dir without following a last symlink.
func LstatAt(dir *os.File, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := retry("newfstatat "+name, func() error { return unix.Fstatat(fd(dir), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, err
}

// Mount is which mount a file was reached by, and that mount's flags.
type Mount struct {
	ID    uint64 // never used again since Linux 6.8: STATX_MNT_ID_UNIQUE; 0 before 5.8
	Flags int64  // ST_RDONLY and the like: statfs(2)
}

// MountOf returns the mount of an open file.
func MountOf(f *os.File) (Mount, error) {
	var st unix.Statx_t
	err := retry("statx", func() error {
		return unix.Statx(fd(f), "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID|unix.STATX_MNT_ID_UNIQUE, &st)
	})
	if err != nil {
		return Mount{}, err
	}
	fs, err := StatFS(f)
	return Mount{st.Mnt_id, fs.Flags}, err
}

// IsMountRoot reports whether f is the root of a mount: statx(2)
// STATX_ATTR_MOUNT_ROOT, Linux 5.8.
func IsMountRoot(f *os.File) (bool, error) {
	var st unix.Statx_t
	err := retry("statx "+f.Name(), func() error {
		return unix.Statx(fd(f), "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
	})
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}

// CanExec reports whether the calling thread's file-system ids may execute f:
// faccessat2(2) with AT_EACCESS, Linux 5.8. A noexec mount counts as no.
func CanExec(f *os.File) bool {
	return retry("faccessat2 "+f.Name(), func() error {
		return unix.Faccessat2(fd(f), "", unix.X_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH)
	}) == nil
}

// PathOf returns the name of the file that f is open on, as readlink(2) of
// /proc/self/fd shows it.
func PathOf(f *os.File) (string, error) {
	return ReadLinkAt(nil, "/proc/self/fd/"+strconv.Itoa(fd(f)))
}

// ReadLinkAt is readlinkat(2); an empty name reads the symlink that dir itself
// is open on.
func ReadLinkAt(dir *os.File, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	var n int
	err := retry("readlinkat "+name, func() (err error) { n, err = unix.Readlinkat(fd(dir), name, buf); return })
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// MkdirAt is mkdirat(2).
func MkdirAt(dir *os.File, name string, mode uint32) error {
	return retry("mkdirat "+name, func() error { return unix.Mkdirat(fd(dir), name, mode) })
}

// MkfileAt makes an empty regular file that must not exist: mknodat(2).
func MkfileAt(dir *os.File, name string, mode uint32) error {
	return retry("mknodat "+name, func() error { return unix.Mknodat(fd(dir), name, unix.S_IFREG|mode, 0) })
}

// MkdevAt makes a character device that everybody may read and write: mknodat(2).
func MkdevAt(dir *os.File, name string, number uint64) error {
	const mode = 0o666
	if err := retry("mknodat "+name, func() error { return unix.Mknodat(fd(dir), name, unix.S_IFCHR|mode, int(number)) }); err != nil {
		return err
	}
	return retry("fchmodat "+name, func() error { return unix.Fchmodat(fd(dir), name, mode, 0) }) // whatever the umask
}

// SymlinkAt is symlinkat(2).
func SymlinkAt(target string, dir *os.File, name string) error {
	return retry("symlinkat "+name, func() error { return unix.Symlinkat(target, fd(dir), name) })
}

// RmdirAt removes an empty directory: unlinkat(2) with AT_REMOVEDIR.
func RmdirAt(dir *os.File, name string) error {
	return retry("unlinkat "+name, func() error { return unix.Unlinkat(fd(dir), name, unix.AT_REMOVEDIR) })
}

// Lock takes an exclusive flock(2) of f without waiting; EWOULDBLOCK when another has it.
func Lock(f *os.File) error {
	return retry("flock "+f.Name(), func() error { return unix.Flock(fd(f), unix.LOCK_EX|unix.LOCK_NB) })
}

// Pipe makes a pipe: pipe2(2) with O_CLOEXEC, both ends blocking.
func Pipe(name string) (r, w *os.File, err error) {
	var p [2]int
	if err := retry("pipe2", func() error { return unix.Pipe2(p[:], unix.O_CLOEXEC) }); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(p[0]), name+" (read end)"), os.NewFile(uintptr(p[1]), name+" (write end)"), nil
}

// StreamPipe makes a pipe of which both ends are non-blocking; so they are pollable
// wherever they are received. Who wants to block sets the end that it was given so.
func StreamPipe() (r, w int, err error) {
	var p [2]int
	if err := retry("pipe2", func() error { return unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK) }); err != nil {
		return -1, -1, err
	}
	return p[0], p[1], nil
}

// GatePipe makes a pipe that is waited for with blocking reads, and written to once.
func GatePipe() (r, w int, err error) {
	var p [2]int
	if err := retry("pipe2", func() error { return unix.Pipe2(p[:], unix.O_CLOEXEC) }); err != nil {
		return -1, -1, err
	}
	return p[0], p[1], nil
}

// AccessMode returns how f was opened: O_RDONLY, O_WRONLY or O_RDWR of F_GETFL, fcntl(2).
func AccessMode(f *os.File) (int, error) {
	var n int
	err := retry("fcntl F_GETFL", func() (err error) { n, err = unix.FcntlInt(uintptr(fd(f)), unix.F_GETFL, 0); return })
	return n & unix.O_ACCMODE, err
}

// Pollable returns f's descriptor as a file that the runtime waits for without a
// thread. The open file becomes non-blocking; f is closed whatever happens.
func Pollable(f *os.File) (*os.File, error) {
	if f.SetDeadline(time.Time{}) == nil {
		return f, nil // it is so already
	}
	d, err := Dup(f)
	CloseAll(f)
	if err != nil {
		return nil, err
	}
	defer CloseAll(d)
	n := fd(d)
	if err := retry("fcntl O_NONBLOCK", func() error { return unix.SetNonblock(n, true) }); err != nil {
		return nil, err
	}
	var m int
	if err := retry("fcntl F_DUPFD_CLOEXEC", func() (err error) { m, err = unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 3); return }); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(m), d.Name()), nil
}

// SealedFile returns a memfd that holds data and can no longer be changed.
func SealedFile(name string, data []byte) (*os.File, error) {
	f, err := AnonymousFile(name)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(data); err != nil {
		CloseAll(f)
		return nil, err
	}
	err = retry("fcntl F_ADD_SEALS", func() error {
		_, err := unix.FcntlInt(uintptr(fd(f)), unix.F_ADD_SEALS, seals)
		return err
	})
	if err != nil {
		CloseAll(f)
		return nil, err
	}
	return f, nil
}

const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// AnonymousFile returns a memfd that can be sealed, and not executed where the kernel
// knows MFD_NOEXEC_SEAL: memfd_create(2), Linux 6.3.
func AnonymousFile(name string) (*os.File, error) {
	var n int
	create := func(flags int) error {
		return retry("memfd_create", func() (err error) { n, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|flags); return })
	}
	err := create(unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		err = create(unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), name), nil
}

// IsSealed reports whether f can no longer be changed by anyone: it is a memfd
// with all of SealedFile's seals.
func IsSealed(n int) bool {
	var s int
	err := retry("fcntl F_GET_SEALS", func() (err error) { s, err = unix.FcntlInt(uintptr(n), unix.F_GET_SEALS, 0); return })
	return err == nil && s&seals == seals
}

// ReadProc returns what a file of proc(5) or of a cgroup holds, whose size is not
// known beforehand; at most limit bytes, more is ErrTruncated.
func ReadProc(name string, limit int) ([]byte, error) {
	var n int
	if err := retry("open "+name, func() (err error) { n, err = unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0); return }); err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(n) }()
	return readAll(n, name, limit)
}

// ReadNumber is ReadProc of an open descriptor, from its beginning.
func ReadNumber(n int, name string, limit int) ([]byte, error) {
	if err := retry("lseek "+name, func() error { _, err := unix.Seek(n, 0, io.SeekStart); return err }); err != nil {
		return nil, err
	}
	return readAll(n, name, limit)
}

// PreadNumber fills b from the beginning of a file; one that is shorter is
// io.ErrUnexpectedEOF.
func PreadNumber(n int, b []byte) error {
	for at := 0; at < len(b); {
		var got int
		if err := retry("pread", func() (err error) { got, err = unix.Pread(n, b[at:], int64(at)); return }); err != nil {
			return err
		}
		if got == 0 {
			return io.ErrUnexpectedEOF
		}
		at += got
	}
	return nil
}

// WriteNumber writes all of b in one write(2).
func WriteNumber(n int, b []byte) error {
	return retry("write", func() error {
		k, err := unix.Write(n, b)
		if err == nil && k < len(b) {
			err = unix.EIO
		}
		return err
	})
}

func readAll(n int, name string, limit int) ([]byte, error) {
	b := make([]byte, 0, 4096)
	for {
		if len(b) == cap(b) {
			b = append(b, make([]byte, 4096)...)[:len(b)]
		}
		var k int
		err := retry("read "+name, func() (err error) { k, err = unix.Read(n, b[len(b):cap(b)]); return })
		if err != nil {
			return nil, err
		}
		if k == 0 {
			return b, nil
		}
		if b = b[:len(b)+k]; len(b) > limit {
			return nil, ErrTruncated
		}
	}
}

package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxFile bounds what is read of one cgroup file at once; statistics are a few KiB.
const maxFile = 64 << 10

// dir is an open cgroup directory. Everything below it is reached relative to the descriptor, so that no
// long path is walked and nothing can be swapped above it.
type dir struct {
	fd   int // −1: not open
	path string
}

// openDir opens the directory at path.
func openDir(path string) (dir, error) {
	return dir{fd: unix.AT_FDCWD, path: "/"}.open(path)
}

// at names an object below the directory in an error.
func (d dir) at(call, name string, err error) error {
	if !filepath.IsAbs(name) {
		name = filepath.Join(d.path, name)
	}
	return &os.PathError{Op: call, Path: name, Err: err}
}

// open opens the directory name below d.
func (d dir) open(name string) (dir, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return dir{fd: -1}, d.at("openat", name, err)
	}
	path := name
	if !filepath.IsAbs(name) {
		path = filepath.Join(d.path, name)
	}
	return dir{fd: fd, path: path}, nil
}

// close gives the descriptor back.
func (d *dir) close() error {
	if d.fd < 0 {
		return nil
	}
	err := unix.Close(d.fd)
	d.fd = -1
	if err != nil {
		return d.at("close", "", err)
	}
	return nil
}

// mkdir makes the cgroup name below d; ErrGone if d itself was removed.
func (d dir) mkdir(name string) error {
	if _, err := retry(func() (int, error) { return 0, unix.Mkdirat(d.fd, name, 0o755) }); err != nil {
		return gone(d.at("mkdirat", name, err))
	}
	return nil
}

// rmdir removes the cgroup name below d; one that is not there is no error.
func (d dir) rmdir(name string) error {
	_, err := retry(func() (int, error) { return 0, unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return d.at("unlinkat", name, err)
	}
	return nil
}

// write writes value to the file name in one write(2), as cgroup files want it.
func (d dir) write(name, value string) error {
	fd, err := d.file(name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = retry(func() (int, error) { return unix.Write(fd, []byte(value)) })
	return errors.Join(wrap(err, d, "write", name), wrap(unix.Close(fd), d, "close", name))
}

// set writes value to the file name and reads the file back through the same descriptor.
func (d dir) set(name, value string) (string, error) {
	fd, err := d.file(name, unix.O_RDWR)
	if err != nil {
		return "", err
	}
	var buf [256]byte
	n := 0
	_, err = retry(func() (int, error) { return unix.Write(fd, []byte(value)) })
	err = wrap(err, d, "write", name)
	if err == nil {
		n, err = retry(func() (int, error) { return unix.Pread(fd, buf[:], 0) })
		err = wrap(err, d, "pread", name)
	}
	err = errors.Join(err, wrap(unix.Close(fd), d, "close", name))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(buf[:n])), nil
}

// read returns the file name without white space around it.
func (d dir) read(name string) (string, error) {
	fd, err := d.file(name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	text, err := readFD(fd)
	err = errors.Join(wrap(err, d, "read", name), wrap(unix.Close(fd), d, "close", name))
	return strings.TrimSpace(text), err
}

// number returns the file name as a number; "max" gives −1.
func (d dir) number(name string) (int64, error) {
	text, err := d.read(name)
	if err != nil {
		return -1, err
	}
	if text == "max" {
		return -1, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1, d.at("read", name, err)
	}
	return n, nil
}

// file opens the file name below d.
func (d dir) file(name string, flags int) (int, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(d.fd, name, flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, d.at("openat", name, err)
	}
	return fd, nil
}

// names lists the directories directly below name.
func (d dir) names(name string) ([]string, error) {
	fd, err := d.file(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.path, name))
	entries, err := f.ReadDir(-1)
	err = errors.Join(err, f.Close())
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// pids returns the processes in the cgroup name (not in those below it).
func (d dir) pids(name string) ([]int, error) {
	text, err := d.read(filepath.Join(name, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var out []int
	for field := range strings.FieldsSeq(text) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, d.at("read", name, err)
		}
		out = append(out, pid)
	}
	return out, nil
}

// The kernel gives a file in reads of up to a page, of whole records where it has several: it leaves less than longestRecord
// of a page, or of the buffer, empty rather than cut one.
const (
	leastPage     = 4096
	longestRecord = 256
)

// readFD reads an open cgroup file from its beginning to its end, which is where a read leaves room for one more record.
func readFD(fd int) (string, error) {
	buf := make([]byte, 0, 4096)
	for {
		n, err := retry(func() (int, error) { return unix.Pread(fd, buf[len(buf):cap(buf)], int64(len(buf))) })
		if err != nil || n == 0 {
			return string(buf), err
		}
		buf = buf[:len(buf)+n]
		if n <= leastPage-longestRecord && cap(buf)-len(buf) >= longestRecord {
			return string(buf), nil
		}
		if len(buf) == cap(buf) {
			if len(buf) >= maxFile {
				return string(buf), nil
			}
			buf = append(make([]byte, 0, 4*cap(buf)), buf...)
		}
	}
}

// wrap names call and object of an errno; nil stays nil.
func wrap(err error, d dir, call, name string) error {
	if err == nil {
		return nil
	}
	return d.at(call, name, err)
}

// retry calls the kernel again when a signal came in between.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// fields reads "key value" lines; lines of another form are left out.
func fields(text string) map[string]int64 {
	out := make(map[string]int64, 16)
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			out[key] = n
		}
	}
	return out
}

package stage

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/linux"
)

const maxLinks = 40 // symlinks followed on one path, as the kernel has it: path_resolution(7)

// openTrusted opens a path of the host as O_PATH. On the way it follows only
// symlinks that root (or the user of a rootless stage) owns, so that nobody else
// can send it somewhere; a symlink at the end is opened itself.
func (o *owners) openTrusted(p string) (*os.File, error) {
	for range maxLinks {
		f, err := linux.OpenAt(nil, p, unix.O_PATH|unix.O_NOFOLLOW, linux.Strict)
		if !errors.Is(err, unix.ELOOP) {
			return f, err
		}
		if p, err = o.throughLink(p, 1); err != nil {
			return nil, err
		}
	}
	return nil, &os.PathError{Op: "open", Path: p, Err: unix.ELOOP}
}

// openFollowed is openTrusted that follows such a symlink at the end too.
func (o *owners) openFollowed(p string) (*os.File, error) {
	for range maxLinks {
		f, err := linux.OpenAt(nil, p, unix.O_PATH, linux.Strict)
		if !errors.Is(err, unix.ELOOP) {
			return f, err
		}
		if p, err = o.throughLink(p, 0); err != nil {
			return nil, err
		}
	}
	return nil, &os.PathError{Op: "open", Path: p, Err: unix.ELOOP}
}

// throughLink replaces the first symlink on p by what it points to; the last keep
// names of p are left alone.
func (o *owners) throughLink(p string, keep int) (string, error) {
	names := strings.Split(strings.TrimPrefix(p, "/"), "/")
	for i := 1; i <= len(names)-keep; i++ {
		at := "/" + path.Join(names[:i]...)
		f, err := linux.OpenAt(nil, at, unix.O_PATH|unix.O_NOFOLLOW, linux.Strict)
		if err != nil {
			return "", err
		}
		st, err := linux.Stat(f)
		to := ""
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			to, err = o.readTrusted(f, st)
		}
		linux.CloseAll(f)
		if err != nil {
			return "", err
		}
		if to == "" {
			continue
		}
		if !path.IsAbs(to) {
			to = path.Join(path.Dir(at), to)
		}
		return path.Join(append([]string{to}, names[i:]...)...), nil
	}
	return "", &os.PathError{Op: "open", Path: p, Err: unix.ELOOP}
}

// readTrusted reads the symlink that f is open on, if its owner is to be trusted.
func (o *owners) readTrusted(f *os.File, st unix.Stat_t) (string, error) {
	uid, err := o.uid(f, st)
	if err != nil {
		return "", err
	}
	if uid != 0 && int(uid) != os.Geteuid() {
		return "", &os.PathError{Op: "follow the symlink of uid " + itoa(uid), Path: f.Name(), Err: unix.ELOOP}
	}
	return linux.ReadLinkAt(f, "")
}

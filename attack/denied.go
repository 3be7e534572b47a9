package attack

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// denied: a denied path stays denied, whatever is done to what lies above it. The
// workspace is the one that Workspace makes.
func denied() []Attack {
	var all []Attack
	shut := []string{"EACCES", "EROFS", "EBUSY", "EXDEV", "EEXIST", "ENOTDIR", "ENOENT", "empty", "ENOTEMPTY", "EPERM", "EINVAL"}
	add := func(id, tries string, t try) {
		all = append(all, Attack{ID: "denied-" + id, Layer: Mounts, Tries: tries, Want: shut, Needs: []Need{Denies}, Control: user(), try: t})
	}
	move := func(a, b string, flags uint) try {
		return func(*Scene) error { return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, flags) }
	}
	plain := func(f func() error) try { return func(*Scene) error { return f() } }
	add("read", "read a denied file", reads("keep/secret"))
	add("read-dot-dot", "read it by keep/../keep", reads("./keep/../keep/secret"))
	add("read-proc-cwd", "read it by /proc/self/cwd", reads("/proc/self/cwd/keep/secret"))
	add("read-symlink", "read it by a symlink", reads("alias"))
	add("write", "open it for writing", opens("keep/secret", unix.O_WRONLY))
	add("write-nested", "write a denied file in a directory", opens("tree/.git/config", unix.O_WRONLY))
	add("truncate", "truncate it", plain(func() error { return unix.Truncate("keep/secret", 0) }))
	add("chmod", "chmod it", plain(func() error { return unix.Chmod("keep/secret", 0o666) }))
	add("link", "make a hard link to it", plain(func() error { return unix.Link("keep/secret", "linked") }))
	add("link-follow", "linkat with AT_SYMLINK_FOLLOW", plain(func() error {
		return unix.Linkat(unix.AT_FDCWD, "alias", unix.AT_FDCWD, "linked2", unix.AT_SYMLINK_FOLLOW)
	}))
	add("rename-parent", "rename the directory above it", move("keep", "moved", 0))
	add("rename-grandparent", "rename a directory two above", move("tree", "moved", 0))
	add("rename-dotgit", "rename .git", move("tree/.git", "tree/moved", 0))
	add("exchange-parent", "exchange the directory above", move("keep", "other", unix.RENAME_EXCHANGE))
	add("rename-itself", "rename the file", move("keep/secret", "taken", 0))
	add("unlink", "remove the file", plain(func() error { return unix.Unlink("keep/secret") }))
	add("remove-all", "remove the directory with all in it", plain(func() error { return os.RemoveAll("keep") }))
	add("replace", "rename a file over it", plain(func() error {
		if err := os.WriteFile("mine", nil, 0o600); err != nil {
			return err
		}
		return os.Rename("mine", "keep/secret")
	}))
	add("absent-fill", "make a file in a denied path that is absent", plain(func() error {
		if err := os.Mkdir("tree/.git/hooks", 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		return os.WriteFile("tree/.git/hooks/x", nil, 0o700)
	}))
	add("absent-rename", "rename a directory to its place", move("other", "tree/.git/hooks", 0))
	add("file-to-directory", "make a directory of a file above a denied path", plain(func() error { return replaceByDir("link/.git") }))
	return class(Paths, all...)
}

// replaceByDir removes a file and makes a directory with a file in its place.
func replaceByDir(path string) error {
	if err := unix.Unlink(path); err != nil {
		if err = os.Rename(path, path+".old"); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(path, "config"), []byte("x"), 0o600)
}

// Workspace fills a directory with what the attacks on denied paths need.
func Workspace(dir string) error {
	for _, d := range []string{"keep", "other", "tree", "tree/.git", "link"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	for _, f := range []string{"keep/secret", "tree/.git/config", "link/.git"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("secret\n"), 0o600); err != nil {
			return err
		}
	}
	return os.Symlink("keep/secret", filepath.Join(dir, "alias"))
}

// DeniedPaths are the paths of that workspace which a policy must deny.
func DeniedPaths() []string {
	return []string{"keep/secret", "tree/.git/config", "tree/.git/hooks", "link/.git/config"}
}

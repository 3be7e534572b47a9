package attack

import "golang.org/x/sys/unix"

// gaps: what Landlock does not cover, or an old one lacks, another layer carries. Where
// one of these gets through it changes nothing: what it sets is as it was before.
func gaps() []Attack {
	shut := []string{"EROFS", "EACCES"}
	var all []Attack
	add := func(id, tries string, c Control, t func(s *Scene, st *unix.Stat_t) error) {
		all = append(all, Attack{ID: id, Layer: Mounts, Tries: tries, Want: shut, Control: c, try: func(s *Scene) error {
			var st unix.Stat_t
			if err := unix.Stat(s.File, &st); err != nil {
				return lacking("a file of the view: " + told(err))
			}
			return t(s, &st)
		}})
	}
	const name = "/bin/pinfold-attack"
	add("chmod", "chmod a file of the view", user(), func(s *Scene, st *unix.Stat_t) error { return unix.Chmod(s.File, st.Mode&0o777) })
	add("chown", "chown a file of the view", user(), func(s *Scene, st *unix.Stat_t) error { return unix.Chown(s.File, int(st.Uid), int(st.Gid)) })
	add("utimes", "set the times of a file of the view", user(), func(s *Scene, st *unix.Stat_t) error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, s.File, []unix.Timespec{st.Atim, st.Mtim}, 0)
	})
	add("xattr-set", "set an attribute of a file of the view", past(AsUser), func(s *Scene, _ *unix.Stat_t) error {
		return unix.Setxattr(s.File, "user.pinfold", []byte("x"), unix.XATTR_REPLACE)
	})
	add("xattr-remove", "remove an attribute of a file of the view", past(AsUser), func(s *Scene, _ *unix.Stat_t) error { return unix.Removexattr(s.File, "user.pinfold") })
	add("truncate", "truncate a file of the view to the size that it has", user(), func(s *Scene, st *unix.Stat_t) error { return unix.Truncate(s.File, st.Size) })
	add("open-write", "open a file of the view for writing", user(), func(s *Scene, _ *unix.Stat_t) error { return open(s.File, unix.O_WRONLY) })
	add("open-append", "open a file of the view for appending", user(), func(s *Scene, _ *unix.Stat_t) error { return open(s.File, unix.O_WRONLY|unix.O_APPEND) })
	add("rename", "rename a file of the view to the name that it has", user(), func(s *Scene, _ *unix.Stat_t) error { return unix.Rename(s.File, s.File) })
	add("exchange", "exchange a directory of the view with itself", user(), func(s *Scene, _ *unix.Stat_t) error {
		return unix.Renameat2(unix.AT_FDCWD, s.View+"/bin", unix.AT_FDCWD, s.View+"/bin", unix.RENAME_EXCHANGE)
	})
	add("rmdir", "remove a directory of the view that is not empty", past(AsUser), func(s *Scene, _ *unix.Stat_t) error { return unix.Rmdir(s.View + "/bin") })
	add("link", "link a file of the view", user(), func(s *Scene, _ *unix.Stat_t) error {
		return removing(s.File+"-link", unix.Link(s.File, s.File+"-link"))
	})
	add("mkdir", "make a directory in the view", user(), func(s *Scene, _ *unix.Stat_t) error { return removing(s.View+name, unix.Mkdir(s.View+name, 0o755)) })
	add("symlink", "make a symlink in the view", user(), func(s *Scene, _ *unix.Stat_t) error { return removing(s.View+name, unix.Symlink("x", s.View+name)) })
	add("mkfifo", "make a fifo in the view", user(), func(s *Scene, _ *unix.Stat_t) error { return removing(s.View+name, unix.Mkfifo(s.View+name, 0o600)) })
	add("create", "make a file in the view", user(), func(s *Scene, _ *unix.Stat_t) error {
		return removing(s.View+name, open(s.View+name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY))
	})
	for _, p := range []string{"/etc/shadow", "/root", "/boot", "/sys", "/var/log", "/var/lib"} {
		all = append(all, Attack{ID: "stat-" + slug(p), Layer: View, Tries: "learn by stat that " + p + " is there", Want: []string{"ENOENT"}, Reads: p, Control: user(), try: stats(p)})
	}
	for _, k := range kinds() {
		all = append(all, Attack{ID: "abstract-" + k.name, Layer: Landlock, Tries: "connect to an abstract socket with the host's network", Want: []string{"EPERM"}, Needs: []Need{NetHost, Scoped}, Control: user(), try: func(s *Scene) error {
			return connects(k.kind, "@"+s.Word+"-"+k.name)
		}})
	}
	return class(Gaps, all...)
}

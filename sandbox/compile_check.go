package sandbox

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
)

// check refuses what cannot be built. Whether it may be built is for the stage.
func (b Build) check(p Profile) error {
	switch {
	case len(b.Join) > image.MaxJoin:
		return fmt.Errorf("%d cgroups to join: at most %d", len(b.Join), image.MaxJoin)
	case p.RootMap && !p.UserNS:
		return fmt.Errorf("rootmap needs userns")
	case len(p.Hostname) > 64:
		return fmt.Errorf("hostname of %d bytes: at most 64", len(p.Hostname))
	case b.Filter != nil && len(b.Filter) == 0:
		return fmt.Errorf("the seccomp filter is empty")
	}
	if err := checkMounts(p); err != nil {
		return err
	}
	if err := checkRules(p); err != nil {
		return err
	}
	for _, l := range p.Rlimits {
		if _, ok := rlimitNumber(l.Name); !ok {
			return fmt.Errorf("rlimit %q is not known", l.Name)
		}
	}
	for i, d := range b.DenyMounts {
		if err := checkDeny(d, len(p.Attach)+i); err != nil {
			return err
		}
	}
	for _, i := range b.AttachFiles {
		if i < 0 || i >= len(p.Attach) {
			return fmt.Errorf("attach %d is a file, and there are %d", i, len(p.Attach))
		}
	}
	return nil
}

// checkMounts looks at what PID 1 mounts: each path once, none hidden.
func checkMounts(p Profile) error {
	seen := map[string]string{"/": "the root", procDir: "proc", ptsDir: "devpts"}
	add := func(kind, name string) error {
		if !strings.HasPrefix(name, "/") || path.Clean(name) != name || strings.ContainsRune(name, 0) {
			return fmt.Errorf("%s %q is not an absolute, clean path", kind, name)
		}
		if other, ok := seen[name]; ok {
			return fmt.Errorf("%s %s is %s already", kind, name, other)
		}
		if within(name, procDir) || within(name, ptsDir) {
			return fmt.Errorf("%s %s lies inside a file system of the kernel's", kind, name)
		}
		seen[name] = kind
		return nil
	}
	for _, t := range p.Private {
		if err := add("private", t.Path); err != nil {
			return err
		}
		if t.Size <= 0 || t.Inodes <= 0 || t.Mode&^0o1777 != 0 {
			return fmt.Errorf("private %s: size %d, inodes %d and mode %#o are not a tmpfs with limits", t.Path, t.Size, t.Inodes, t.Mode)
		}
	}
	for _, a := range p.Attach {
		if err := add("attach", a.Path); err != nil {
			return err
		}
	}
	for _, e := range p.View {
		for _, t := range p.Private {
			if e.Path != t.Path && within(e.Path, t.Path) {
				return fmt.Errorf("view entry %s would be hidden by private %s", e.Path, t.Path)
			}
		}
	}
	return nil
}

// checkRules refuses rules on what is not there when PID 1 adds them.
func checkRules(p Profile) error {
	for _, r := range p.Landlock.Rules {
		if !ofInit(p, r.Path) {
			continue
		}
		for _, t := range p.Private {
			if r.Path != t.Path && within(r.Path, t.Path) {
				return fmt.Errorf("rule on %s lies inside private %s, which begins empty", r.Path, t.Path)
			}
		}
	}
	return nil
}

func checkDeny(d DenyMount, before int) error {
	if d.From == FromView {
		if !strings.HasPrefix(d.Path, "/") || path.Clean(d.Path) != d.Path || d.Path == "/" {
			return fmt.Errorf("denied path %q is not an absolute, clean path below /", d.Path)
		}
		return nil
	}
	if d.From < 0 || d.From >= before {
		return fmt.Errorf("denied path %q begins at mount %d of %d", d.Path, d.From, before)
	}
	if d.Path == "" || d.Path == "." || d.Path == ".." || strings.ContainsAny(d.Path, "/\x00") {
		return fmt.Errorf("denied path %q below a mount is not one name", d.Path)
	}
	return nil
}

// within says whether name is dir or lies below it.
func within(name, dir string) bool {
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}

// rlimitNumber returns the number of a limit: setrlimit(2).
func rlimitNumber(name string) (int, bool) {
	n, ok := map[string]int{
		"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA,
		"fsize": unix.RLIMIT_FSIZE, "locks": unix.RLIMIT_LOCKS, "memlock": unix.RLIMIT_MEMLOCK,
		"msgqueue": unix.RLIMIT_MSGQUEUE, "nice": unix.RLIMIT_NICE, "nofile": unix.RLIMIT_NOFILE,
		"nproc": unix.RLIMIT_NPROC, "rss": unix.RLIMIT_RSS, "rtprio": unix.RLIMIT_RTPRIO,
		"rttime": unix.RLIMIT_RTTIME, "sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
	}[name]
	return n, ok
}

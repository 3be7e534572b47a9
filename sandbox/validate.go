package sandbox

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Limits of a Spec. What is larger is refused before anything is built.
const (
	MaxEntries  = 4096      // things in a view
	MaxData     = 1 << 20   // bytes of all EntryFile data of a view
	MaxAttaches = 64        // attached trees
	MaxPrivate  = 64        // private memory file systems
	MaxTmpfs    = 1 << 40   // bytes of one memory file system
	MaxInodes   = 1 << 31   // inodes of one memory file system
	MaxDenies   = 1024      // denied paths
	MaxRules    = 4096      // Landlock rules
	MaxNames    = 1024      // system calls that policy added or took away
	MaxArgs     = 1 << 16   // arguments and environment entries together
	MaxArgLen   = 128 << 10 // bytes of one of them with its NUL: MAX_ARG_STRLEN, execve(2)
	MaxArgBytes = 2 << 20   // bytes of all of them
	MaxJoins    = 4         // cgroup files that the target enters
	maxPath     = 4095      // bytes of a path: PATH_MAX without its NUL
	maxName     = 255       // bytes of one component: NAME_MAX
	maxHostname = 64        // bytes: HOST_NAME_MAX, sethostname(2)
)

// Validate says everything that is wrong with s on any machine: nil, or all
// problems joined. It keeps what no Spec can lower: never uid or gid 0, no control
// that cannot be off, absolute and clean paths, bounded sizes and counts, no NUL.
func (s Spec) Validate() error {
	var p problems
	p.profile(&s.Profile)
	p.site(&s.Site, &s.Profile)
	p.command(&s.Command)
	return p.err()
}

// Validate says what is wrong with a Command as Spec.Validate does.
func (c *Command) Validate() error {
	var p problems
	p.command(c)
	return p.err()
}

// Validate says what is wrong with an Opening as Spec.Validate does.
func (o Opening) Validate() error {
	var p problems
	p.opening(o)
	return p.err()
}

// ValidateSite is Validate for a Spec whose Command is not known yet.
func (s Spec) ValidateSite() error {
	var p problems
	p.profile(&s.Profile)
	p.site(&s.Site, &s.Profile)
	return p.err()
}

// problems collects what is wrong.
type problems []error

func (p *problems) err() error {
	if len(*p) == 0 {
		return nil
	}
	return fmt.Errorf("cannot accept the spec: %w", errors.Join(*p...))
}

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

func (p *problems) check(ok bool, format string, args ...any) {
	if !ok {
		p.add(format, args...)
	}
}

func (p *problems) path(what, s string) {
	switch {
	case len(s) > maxPath:
		p.add("%s is longer than %d bytes", what, maxPath)
	case strings.ContainsRune(s, 0):
		p.add("%s %q holds a NUL", what, s)
	case !path.IsAbs(s) || path.Clean(s) != s:
		p.add("%s %q is not an absolute clean path", what, s)
	case slices.ContainsFunc(strings.Split(s, "/"), func(c string) bool { return len(c) > maxName }):
		p.add("%s %q has a name of more than %d bytes", what, s, maxName)
	}
}

// inside is a path below the root of the view.
func (p *problems) inside(what, s string) {
	p.path(what, s)
	p.check(s != "/", "%s is the root of the view", what)
}

// relative is a clean path below a base, or the base itself as ".".
func (p *problems) relative(what, s string) {
	ok := s != "" && len(s) <= maxPath && !strings.ContainsRune(s, 0) && !path.IsAbs(s) && path.Clean(s) == s &&
		s != "." && s != ".." && !strings.HasPrefix(s, "../")
	p.check(ok, "%s %q is not a clean path below its base", what, s)
}

func (p *problems) profile(f *Profile) {
	p.check(len(f.Name) <= maxName && !strings.ContainsRune(f.Name, 0), "profile name is too long or holds a NUL")
	p.check(len(f.Hostname) <= maxHostname && hostname(f.Hostname), "host name %q is not letters, digits, - and .", f.Hostname)
	p.view(f.View)
	p.mounts(f)
	p.denies(f)
	p.check(f.Proc == ProcMasked || f.Proc == ProcPids, "proc %q is not masked or pids", f.Proc)
	p.check(f.Net == NetNone || f.Net == NetHost, "net %q is not none or host", f.Net)
	p.check(f.Exec == ExecAnything || f.Exec == ExecListed, "exec %q is not anything or listed", f.Exec)
	p.check(f.Stdin == StdinPipe || f.Stdin == StdinNull, "stdin %q is not pipe or null", f.Stdin)
	p.check(!f.RootMap || f.UserNS, "rootmap needs a user namespace")
	p.filter(f.Seccomp)
	p.rules(f.Landlock)
	p.rlimits(f.Rlimits)
	p.controls(f)
}

func hostname(s string) bool {
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") == ""
}

func (p *problems) view(view []Entry) {
	p.check(len(view) <= MaxEntries, "%d entries of the view are more than %d", len(view), MaxEntries)
	seen := make(map[string]bool, len(view))
	data := 0
	for _, e := range view {
		p.inside("entry", e.Path)
		p.check(!seen[e.Path], "entry %s stands twice", e.Path)
		seen[e.Path] = true
		data += len(e.Data)
		p.entry(e)
	}
	p.check(data <= MaxData, "the view's files hold %d bytes, more than %d", data, MaxData)
}

func (p *problems) entry(e Entry) {
	p.check(e.Missing == "" || e.Missing == MissingFail || e.Missing == MissingSkip || e.Missing == MissingCreate,
		"entry %s: missing %q is not fail, skip or create", e.Path, e.Missing)
	p.check(e.Kind == EntryBind || !e.Follow, "entry %s: only a bind follows symlinks", e.Path)
	p.check(e.Kind == EntryBind && !e.Writable || !e.Copy, "entry %s: only a read-only bind may be a copy", e.Path)
	p.check(e.Kind == EntryFile || e.Data == "", "entry %s: only a file has data", e.Path)
	switch e.Kind {
	case EntryBind:
		p.path("source of entry "+e.Path, e.Source)
	case EntryDevice:
		p.check(slices.Contains(devices(), e.Source), "entry %s: device %q is not one of %v", e.Path, e.Source, devices())
		p.check(strings.HasPrefix(e.Path, "/dev/"), "entry %s: a device outside of /dev", e.Path)
	case EntrySymlink:
		p.check(e.Source != "" && len(e.Source) <= maxPath && !strings.ContainsRune(e.Source, 0), "entry %s: bad symlink target", e.Path)
	case EntryFile, EntryDir:
		p.check(e.Source == "", "entry %s: %s has no source", e.Path, e.Kind)
	default:
		p.add("entry %s: unknown kind %q", e.Path, e.Kind)
	}
}

// devices are the device nodes that may stand in a view.
func devices() []string {
	return []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}
}

func (p *problems) mounts(f *Profile) {
	p.check(len(f.Attach) <= MaxAttaches, "%d attaches are more than %d", len(f.Attach), MaxAttaches)
	p.check(len(f.Private) <= MaxPrivate, "%d private file systems are more than %d", len(f.Private), MaxPrivate)
	seen := map[string]bool{}
	for _, a := range f.Attach {
		p.inside("attach", a.Path)
		p.check(!seen[a.Path], "attach %s stands twice", a.Path)
		seen[a.Path] = true
	}
	for _, t := range f.Private {
		p.inside("private file system", t.Path)
		p.check(!seen[t.Path], "private file system %s stands twice", t.Path)
		seen[t.Path] = true
		p.check(t.Size > 0 && t.Size <= MaxTmpfs, "private file system %s: size %d is not 1 to %d bytes", t.Path, t.Size, int64(MaxTmpfs))
		p.check(t.Inodes > 0 && t.Inodes <= MaxInodes, "private file system %s: %d inodes are not 1 to %d", t.Path, t.Inodes, int64(MaxInodes))
		p.check(t.Mode&^0o1777 == 0, "private file system %s: mode %#o has bits beyond 01777", t.Path, t.Mode)
	}
}

func (p *problems) denies(f *Profile) {
	p.check(len(f.Deny) <= MaxDenies, "%d denied paths are more than %d", len(f.Deny), MaxDenies)
	for _, d := range f.Deny {
		p.inside("denied path", d.Path)
		p.check(d.Absent == AbsentPlaceholder || d.Absent == AbsentRefuse || d.Absent == AbsentCheck || d.Absent == AbsentSkip,
			"denied path %s: absent %q is not placeholder, refuse, check or skip", d.Path, d.Absent)
		for _, a := range f.Attach {
			p.check(!Below(a.Path, d.Path), "denied path %s holds the attach %s", d.Path, a.Path)
		}
		for _, t := range f.Private {
			p.check(!Below(t.Path, d.Path), "denied path %s holds the private file system %s", d.Path, t.Path)
		}
	}
}

// Below reports whether the clean absolute path p is dir or lies below it: /srv
// holds /srv/a and never /srv-evil.
func Below(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}

func (p *problems) filter(f Filter) {
	p.check(f.Base == "default" || f.Base == "strict", "seccomp base %q is not default or strict", f.Base)
	p.check(len(f.Allow)+len(f.Deny) <= MaxNames, "%d names of system calls are more than %d", len(f.Allow)+len(f.Deny), MaxNames)
	for _, n := range slices.Concat(f.Allow, f.Deny) {
		ok := n != "" && len(n) <= 64 && strings.Trim(n, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
		p.check(ok, "%q is not the name of a system call", n)
	}
}

func (p *problems) rules(r Rules) {
	p.check(len(r.Rules) <= MaxRules, "%d Landlock rules are more than %d", len(r.Rules), MaxRules)
	for _, l := range r.Rules {
		p.path("Landlock rule", l.Path)
		p.check(l.Access != "" && strings.Trim(string(l.Access), "rwxl") == "", "Landlock rule %s: access %q is not letters of rwxl", l.Path, l.Access)
	}
}

func (p *problems) rlimits(limits []Rlimit) {
	seen := map[string]bool{}
	for _, l := range limits {
		_, ok := RlimitNumber(l.Name)
		p.check(ok, "unknown rlimit %q", l.Name)
		p.check(!seen[l.Name], "rlimit %s stands twice", l.Name)
		seen[l.Name] = true
	}
}

func (p *problems) controls(f *Profile) {
	names := make([]Control, len(f.Controls))
	for i, n := range f.Controls {
		names[i] = n.Control
		p.check(n.Level == LevelRequired || n.Level == LevelBestEffort || n.Level == LevelOff,
			"control %s: level %q is not required, best_effort or off", n.Control, n.Level)
		if n.Level != LevelRequired && slices.Contains(floors(), n.Control) {
			p.check(n.Level != LevelOff, "control %s cannot be off", n.Control)
		}
	}
	p.check(slices.Equal(names, Controls()), "the controls are not %v, once each in that order", Controls())
}

// floors are the controls that no Spec can switch off.
func floors() []Control {
	return []Control{ControlMounts, ControlSeccomp, ControlCaps, ControlPidNS, ControlIPCNS}
}

func (p *problems) command(c *Command) {
	p.opening(c.Opening())
	p.args(c)
}

func (p *problems) opening(o Opening) {
	p.inside("program", o.Program)
	p.path("working directory", o.Dir)
}

func (p *problems) site(c *Site, f *Profile) {
	p.check(c.UID != 0 && c.GID != 0, "nothing is started as uid or gid 0")
	p.check(c.UID != ^uint32(0) && c.GID != ^uint32(0), "%d is no uid or gid", ^uint32(0))
	p.check(len(c.Attach) == len(f.Attach), "facts of %d attaches for %d attaches", len(c.Attach), len(f.Attach))
	if slices.ContainsFunc(f.Attach, func(a Attach) bool { return a.IDMap }) {
		p.check(c.DiskUID != 0 && c.DiskGID != 0, "uid or gid 0 on disk is never mapped into a pen")
		p.check(c.DiskUID != ^uint32(0) && c.DiskGID != ^uint32(0), "%d is no uid or gid on disk", ^uint32(0))
	}
	p.relative("cgroup", c.Cgroup)
	p.check(len(c.Join) <= MaxJoins, "%d cgroup files to join are more than %d", len(c.Join), MaxJoins)
	for _, j := range c.Join {
		p.relative("cgroup file of "+j.Controller, j.Path)
		b := path.Base(j.Path)
		p.check(b == "tasks" || b == "cgroup.procs", "cgroup file %q is not tasks or cgroup.procs", j.Path)
	}
}

func (p *problems) args(c *Command) {
	p.check(len(c.Argv) > 0, "no arguments, not even the program's name")
	p.check(len(c.Argv)+len(c.Env) <= MaxArgs, "%d arguments and environment entries are more than %d", len(c.Argv)+len(c.Env), MaxArgs)
	n := 0
	for i, a := range c.Argv {
		n += len(a) + 1
		p.check(len(a) < MaxArgLen && !strings.ContainsRune(a, 0), "argument %d is too long or holds a NUL", i)
	}
	for i, e := range c.Env { // never shown: it may be a secret
		n += len(e) + 1
		p.check(len(e) < MaxArgLen && !strings.ContainsRune(e, 0), "environment entry %d is too long or holds a NUL", i)
		p.check(strings.IndexByte(e, '=') > 0, "environment entry %d is not NAME=value", i)
	}
	p.check(n <= MaxArgBytes, "arguments and environment take %d bytes, more than %d", n, MaxArgBytes)
}

// RlimitNumber returns the RLIMIT number of a name: getrlimit(2).
func RlimitNumber(name string) (int, bool) {
	i := slices.Index(rlimitNames(), name)
	return i, i >= 0
}

// rlimitNames are the limits in the order of their numbers, which x86-64 and
// arm64 share.
func rlimitNames() []string {
	return []string{
		"cpu", "fsize", "data", "stack", "core", "rss", "nproc", "nofile", "memlock", "as", "locks", "sigpending",
		"msgqueue", "nice", "rtprio", "rttime",
	}
}

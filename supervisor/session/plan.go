package session

import (
	"fmt"
	"path"
	"strings"

	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/sandbox"
)

// Sizes and modes of what every pen has.
const (
	shmSize    = 64 * policy.MiB // of /dev/shm
	perInode   = 16 * policy.KiB // a memory file system has one inode for so many of its bytes
	minInodes  = 1024
	modeSticky = 0o1777
)

// Place is what a session knows about one spawn beside its grant: ids, names and
// the trees that were looked at or made for it.
type Place struct {
	Name             string // of the run uid inside
	UID, GID         uint32 // run ids on the host
	DiskUID, DiskGID uint32 // owner of the workspace on disk
	Cgroup           string // relative to the base; empty: not known yet
	Join             []cgroup.JoinFile
	Work             sandbox.Identity // root of the workspace
	Home             sandbox.Identity // root of the home directory, where the grant has one
	Listed           []string         // with exec: listed, every file that may be executed or mapped as code
	Stdin            sandbox.StdinMode
	Rows, Cols       uint16
}

// LackingError is a required control that this host cannot give.
type LackingError struct {
	Control sandbox.Control
	Why     string
	Fix     string
}

func (l *LackingError) Error() string {
	return fmt.Sprintf("cannot start: required control %s is not available: %s", l.Control, l.Why)
}

// Plan turns a grant into what the kernel is asked for: the one place where
// permission becomes mechanism. It is pure: the same grant at the same place on a
// host with the same features gives the same plan.
func Plan(g *policy.Grant, p Place) (sandbox.Spec, cgroup.Limits) {
	prof := sandbox.Profile{
		Name: g.Profile, Hostname: hostname,
		View: view(g, p), Attach: attaches(g), Private: private(g), Deny: denies(g),
		Proc: sandbox.ProcMasked, Net: sandbox.NetMode(g.Net), UserNS: g.UserNS, RootMap: g.AllowRoot,
		Exec: sandbox.ExecMode(g.Exec), PTY: g.PTY, Stdin: p.Stdin,
		Seccomp:  sandbox.Filter{Base: g.Seccomp.Base, Allow: g.Seccomp.Allow, Deny: g.Seccomp.Deny},
		Landlock: sandbox.Rules{Rules: rules(g, p)},
	}
	if g.Seccomp.Base == "strict" {
		prof.Proc = sandbox.ProcPids
	}
	for _, r := range g.Rlimits {
		l := sandbox.Rlimit{Name: r.Name, Value: r.Value}
		if none := sandbox.NoCore(); l.Name == none.Name && l.Value == 0 {
			l = none
		}
		prof.Rlimits = append(prof.Rlimits, l)
	}
	for _, n := range g.Controls {
		prof.Controls = append(prof.Controls, sandbox.Need{Control: sandbox.Control(n.Control), Level: sandbox.Level(n.Level)})
	}
	return sandbox.Spec{Profile: prof, Site: site(g, p), Command: command(g, p)}, limits(g)
}

func site(g *policy.Grant, p Place) sandbox.Site {
	s := sandbox.Site{UID: p.UID, GID: p.GID, DiskUID: p.DiskUID, DiskGID: p.DiskGID, Rows: p.Rows, Cols: p.Cols}
	if hasHome(g) {
		s.Attach = append(s.Attach, p.Home)
	}
	s.Attach = append(s.Attach, p.Work)
	inJob(&s, p.Cgroup, p.Join)
	return s
}

// inJob puts a pen into the cgroup of its process.
func inJob(s *sandbox.Site, path string, join []cgroup.JoinFile) {
	s.Cgroup, s.Join = path, nil
	for _, j := range join {
		s.Join = append(s.Join, sandbox.JoinFile{Controller: j.Controller, Path: j.Path})
	}
}

func command(g *policy.Grant, p Place) sandbox.Command {
	return sandbox.Command{
		Program:   g.Program.Path,
		ProgramID: sandbox.Identity(g.Program.ID),
		Script:    g.Program.Kind == policy.KindScript,
		Argv:      g.Argv, Env: g.Env, Dir: g.Workspace.Cwd, DirID: p.Work,
	}
}

// view lists what exists inside: the base view, the paths of the policy, and with
// exec: listed the files that may be executed, over an otherwise noexec view.
func view(g *policy.Grant, p Place) []sandbox.Entry {
	who := person{Name: p.Name, UID: p.UID, GID: p.GID, Home: g.Home.Path}
	if g.AllowRoot {
		who.Name, who.UID, who.GID = "root", 0, 0
	}
	if g.Home.Kind == policy.HomeNone {
		who.Home = "/"
	}
	es := baseView(who, g.PTY)
	listed := g.Exec == policy.ExecListed
	bind := func(path string, writable bool) {
		es = append(es, sandbox.Entry{
			Kind: sandbox.EntryBind, Path: path, Source: path,
			Writable: writable, NoExec: listed, Missing: sandbox.Missing(g.Missing),
		})
	}
	for _, r := range g.Read {
		if !inWorkspace(g, r.Path) {
			bind(r.Path, false)
		}
	}
	for _, r := range g.Write {
		if !inWorkspace(g, r.Path) {
			bind(r.Path, true)
		}
	}
	for _, f := range p.Listed {
		es = append(es, sandbox.Entry{Kind: sandbox.EntryBind, Path: f, Source: f, Missing: sandbox.MissingFail})
	}
	return tidy(es)
}

// inWorkspace reports whether a path of the policy is the workspace itself, which
// is mounted from the descriptor that was looked at and never by name.
func inWorkspace(g *policy.Grant, p string) bool {
	return p == g.Workspace.Path || below(p, g.Workspace.Path)
}

func hasHome(g *policy.Grant) bool { return g.Home.Kind != policy.HomeNone }

// attaches lists the trees that come as descriptors, in the order of
// Site.Attach: the home first, since a workspace may lie below it.
func attaches(g *policy.Grant) []sandbox.Attach {
	noexec := g.Exec == policy.ExecListed
	var as []sandbox.Attach
	if hasHome(g) {
		as = append(as, sandbox.Attach{Path: g.Home.Path, Writable: true, NoExec: noexec, IDMap: g.Home.Kind == policy.HomeCache && mapped(g)})
	}
	return append(as, sandbox.Attach{
		Path: g.Workspace.Path, Writable: g.Workspace.Write || g.Workspace.Scratch, NoExec: noexec,
		IDMap: !g.Workspace.Scratch && mapped(g),
	})
}

// mapped reports whether files on disk belong to another uid than the one that
// the command runs as.
func mapped(g *policy.Grant) bool { return g.RunAs.Kind == policy.RunAsDynamic }

func private(g *policy.Grant) []sandbox.Tmpfs {
	shm := min(shmSize, g.Tmp.Size)
	return []sandbox.Tmpfs{
		{Path: "/dev/shm", Size: sandbox.Bytes(shm), Inodes: inodes(shm), Mode: modeSticky, NoExec: true},
		{Path: "/tmp", Size: sandbox.Bytes(g.Tmp.Size), Inodes: inodes(g.Tmp.Size), Mode: modeSticky, NoExec: !g.Tmp.Exec},
	}
}

func inodes(size policy.Bytes) int64 { return max(minInodes, int64(size/perInode)) }

// denies lists what exists in the view and must not be read, or not be written.
// The built-in paths are skipped where nothing of the view would show them. Those
// that are absent from a tree that the pen may write are looked for at the end, and
// the verdict tells which it made: placeholders for all of them would break the
// programs outside that read them.
func denies(g *policy.Grant) []sandbox.Deny {
	var ds []sandbox.Deny
	for _, d := range g.Deny {
		ds = append(ds, sandbox.Deny{Path: d.Path, Absent: sandbox.Absent(d.Absent)})
	}
	for _, h := range g.Hidden {
		switch {
		case writable(g, h):
			ds = append(ds, sandbox.Deny{Path: h, Absent: sandbox.AbsentCheck})
		case visible(g, h):
			ds = append(ds, sandbox.Deny{Path: h, Absent: sandbox.AbsentSkip})
		}
	}
	for _, u := range g.Unwritable {
		if writable(g, u) {
			ds = append(ds, sandbox.Deny{Path: u, Absent: sandbox.AbsentCheck, Readable: true})
		}
	}
	return ds
}

func visible(g *policy.Grant, p string) bool {
	for _, r := range g.Read {
		if below(p, r.Path) && !underHome(g, p, r.Path) {
			return true
		}
	}
	return writable(g, p)
}

func writable(g *policy.Grant, p string) bool {
	for _, w := range g.Write {
		if below(p, w.Path) && !underHome(g, p, w.Path) {
			return true
		}
	}
	return !g.Workspace.Scratch && g.Workspace.Write && below(p, g.Workspace.Path)
}

// underHome reports whether p is hidden from the tree of dir by the pen's own home
// that is mounted over it.
func underHome(g *policy.Grant, p, dir string) bool {
	return hasHome(g) && below(g.Home.Path, dir) && below(p, g.Home.Path)
}

// rules repeats the allows for Landlock.
func rules(g *policy.Grant, p Place) []sandbox.Rule {
	read, write := sandbox.Access("rx"), sandbox.Access("rwx")
	if g.Exec == policy.ExecListed {
		read, write = "r", "rw"
	}
	rs := []sandbox.Rule{
		{Path: "/", Access: sandbox.AccessList},
		{Path: "/proc", Access: "rw"},
		{Path: "/dev", Access: "rw"},
		{Path: "/dev/pts", Access: "rw"},
		{Path: "/dev/shm", Access: "rw"},
		{Path: "/etc", Access: "r"},
		{Path: "/tmp", Access: tmpAccess(g)},
	}
	for _, r := range g.Read {
		if !inWorkspace(g, r.Path) {
			rs = append(rs, sandbox.Rule{Path: r.Path, Access: read})
		}
	}
	for _, r := range g.Write {
		if !inWorkspace(g, r.Path) {
			rs = append(rs, sandbox.Rule{Path: r.Path, Access: write})
		}
	}
	for _, f := range p.Listed {
		rs = append(rs, sandbox.Rule{Path: f, Access: "rx"})
	}
	for _, a := range attaches(g) {
		access := read
		if a.Writable {
			access = write
		}
		rs = append(rs, sandbox.Rule{Path: a.Path, Access: access})
	}
	return rs
}

func tmpAccess(g *policy.Grant) sandbox.Access {
	if g.Tmp.Exec {
		return "rwx"
	}
	return "rw"
}

func limits(g *policy.Grant) cgroup.Limits {
	l, off := cgroup.NoLimits(), map[policy.Control]bool{}
	for _, n := range g.Controls {
		off[n.Control] = n.Level == policy.LevelOff
	}
	if !off[policy.ControlMemory] {
		l.Memory, l.Swap = cgroup.Bytes(g.Cgroup.Memory), cgroup.Bytes(g.Cgroup.Swap)
	}
	if !off[policy.ControlPids] {
		l.Pids = g.Cgroup.Pids
	}
	if !off[policy.ControlCPU] {
		l.CPU = g.Cgroup.CPU
	}
	if !off[policy.ControlIO] {
		l.IOWeight = g.Cgroup.IOWeight
	}
	return l
}

// lackingErrors are all required controls that this host cannot give, in one line.
type lackingErrors []*LackingError

func (l lackingErrors) Error() string {
	texts := make([]string, len(l))
	for i, e := range l {
		texts[i] = e.Error()
	}
	return strings.Join(texts, "; ")
}

func (l lackingErrors) Unwrap() []error {
	errs := make([]error, len(l))
	for i, e := range l {
		errs[i] = e
	}
	return errs
}

// fix is the first cure that is known.
func (l lackingErrors) fix() string {
	for _, e := range l {
		if e.Fix != "" {
			return e.Fix
		}
	}
	return ""
}

// CheckHost refuses a plan that needs what this host lacks. Controls that are
// wanted at best effort are named in the record instead.
func CheckHost(g *policy.Grant, host []sandbox.Lack, cgroups map[string]string) error {
	var errs lackingErrors
	for _, n := range g.Controls {
		if n.Level != policy.LevelRequired {
			continue
		}
		for _, l := range host {
			if l.Control == sandbox.Control(n.Control) && !strings.HasPrefix(string(l.Control), "cgroup.") {
				errs = append(errs, &LackingError{l.Control, l.Why, l.Fix})
			}
		}
		if why, ok := cgroups[strings.TrimPrefix(string(n.Control), "cgroup.")]; ok && asked(g, n.Control) {
			errs = append(errs, &LackingError{Control: sandbox.Control(n.Control), Why: why})
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return errs
}

// asked reports whether the grant sets a limit that the control carries.
func asked(g *policy.Grant, c policy.Control) bool {
	return map[policy.Control]bool{
		policy.ControlMemory: g.Cgroup.Memory > 0,
		policy.ControlPids:   g.Cgroup.Pids > 0,
		policy.ControlCPU:    g.Cgroup.CPU > 0,
		policy.ControlIO:     g.Cgroup.IOWeight > 0,
	}[c]
}

// mountpoint returns the workspace's path inside the home directory, empty where
// it does not lie there.
func mountpoint(g *policy.Grant) string {
	if !hasHome(g) || !below(g.Workspace.Path, g.Home.Path) {
		return ""
	}
	return strings.TrimPrefix(path.Clean(g.Workspace.Path), g.Home.Path+"/")
}

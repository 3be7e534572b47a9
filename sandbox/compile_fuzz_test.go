package sandbox

import (
	"bytes"
	"debug/elf"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/filter"
	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/stagewire"
)

// FuzzCompile: a Profile that Validate accepts compiles, or says why not; the
// Program links, its image is an ELF file, every jump lands on a step, and no step
// comes to a filter that refuses it.
func FuzzCompile(f *testing.F) {
	for _, p := range fuzzProfiles() {
		b, err := stagewire.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		for _, knobs := range []uint16{0, 0x1ff, 0x0a7} {
			f.Add(b, knobs, uint8(7))
		}
	}
	filters := map[string]*filter.Program{} // of the bases: to compile one takes longer than all the rest
	for _, base := range []string{filter.Default, filter.Strict} {
		fp, err := filter.Compile(base, nil, nil, filter.Options{Memfd: filter.MemfdRefused})
		if err != nil {
			f.Fatal(err)
		}
		filters[base] = fp
	}
	f.Fuzz(func(t *testing.T, raw []byte, knobs uint16, abi uint8) {
		var p Profile
		if stagewire.Unmarshal(raw, &p) != nil {
			return
		}
		b := fuzzBuild(p, knobs, abi)
		valid := fuzzSpec(p).Validate() == nil
		fp := filters[p.Seccomp.Base]
		if fp == nil && valid {
			t.Fatalf("Validate accepts the filter %q, which there is not", p.Seccomp.Base)
		}
		if fp != nil && len(p.Seccomp.Allow)+len(p.Seccomp.Deny) > 0 {
			fp, _ = filter.Compile(p.Seccomp.Base, p.Seccomp.Allow, p.Seccomp.Deny, filter.Options{Memfd: filter.MemfdRefused}) // nil: unknown names
		}
		if fp != nil {
			b.Filter = fp.Insns
		}
		prog, err := Compile(p, b)
		if err != nil {
			if valid && strings.Contains(err.Error(), "bug in pinfold") && p.Seccomp.Deny == nil {
				t.Fatalf("Compile(%s) = %v; want no bug of ours for a valid profile", raw, err)
			}
			return
		}
		checkProgram(t, prog, b)
	})
}

// fuzzProfiles are the beginnings: they reach every part of the compiler.
func fuzzProfiles() []Profile {
	full := testProfile()
	full.View = []Entry{
		{Kind: EntryDir, Path: "/etc"},
		{Kind: EntryFile, Path: "/etc/hosts", Data: "127.0.0.1 localhost\n"},
		{Kind: EntryBind, Path: "/usr", Source: "/usr"},
		{Kind: EntrySymlink, Path: "/bin", Source: "usr/bin"},
		{Kind: EntryDevice, Path: "/dev/null", Source: "/dev/null", Writable: true},
	}
	full.Deny = []Deny{{Path: "/home/u/work/.git", Absent: AbsentPlaceholder}}
	for _, c := range Controls() {
		level := LevelRequired
		if c == ControlUserNS {
			level = LevelOff
		}
		full.Controls = append(full.Controls, Need{Control: c, Level: level})
	}
	pty, user, listed, strict := full, full, full, full
	pty.PTY = true
	user.UserNS, user.RootMap, user.Proc, user.Net = true, true, ProcPids, NetHost
	listed.Exec = ExecListed
	strict.Seccomp.Base, strict.Stdin = filter.Strict, StdinNull
	return []Profile{full, pty, user, listed, strict, {}, testProfile()}
}

func fuzzSpec(p Profile) Spec {
	s := Spec{
		Profile: p,
		Site:    Site{UID: 1000, GID: 1000, Cgroup: "callers/1000/s/p", Attach: make([]Identity, len(p.Attach))},
		Command: Command{Program: "/usr/bin/true", Dir: "/", Argv: []string{"true"}},
	}
	for i := range s.Site.Attach {
		s.Site.Attach[i] = Identity{Dev: 1, Ino: uint64(i) + 1}
	}
	return s
}

func fuzzBuild(p Profile, knobs uint16, abi uint8) Build {
	on := func(bit int) Switch {
		if knobs&(1<<bit) != 0 {
			return On
		}
		return Off
	}
	b := Build{
		IntoCgroup: on(0), Groups: on(1), MemfdNoexec: on(2), Announce: on(3), LandlockABI: int(abi % 8),
		Join: []Join{JoinTasks, JoinTasks, JoinProcs}[:knobs>>4&3],
	}
	if on(6) == On && len(p.Attach) > 0 {
		b.AttachFiles = []int{len(p.Attach) - 1}
		b.DenyMounts = []DenyMount{{From: 0, Path: "x"}, {From: len(p.Attach), Path: "y"}, {From: FromView, Path: "/z"}}
	}
	if on(7) == On {
		b.Ignored = []int{int(unix.SIGINT), int(unix.SIGPIPE)}
	}
	if on(8) == On {
		b.LastCap, b.Closed = 40, []string{"/proc/kcore", "/proc/keys"}
	}
	return b
}

// fuzzStep takes Raw apart: number, call, arguments, results.
var fuzzStep = regexp.MustCompile(`^(\d+) (\w+)\(([^)]*)\)(.*)$`)

// checkProgram looks at a Program from outside, by what it prints and the model of
// the filter, and not by what its builder checked.
func checkProgram(t *testing.T, prog *image.Program, b Build) {
	t.Helper()
	img, err := prog.Image()
	if err != nil {
		t.Fatalf("Image() = %v", err)
	}
	e, err := elf.NewFile(bytes.NewReader(img))
	if err != nil || e.Type != elf.ET_EXEC || len(e.Progs) < 2 {
		t.Fatalf("Image() is no program: %+v, %v", e, err)
	}
	if prog.String() == "" {
		t.Error("String() is empty")
	}
	lines := strings.Split(strings.TrimSuffix(prog.Raw(), "\n"), "\n")
	if len(lines) != prog.Len() {
		t.Fatalf("Raw() has %d lines; want %d", len(lines), prog.Len())
	}
	model, bound := filter.Program{Insns: b.Filter}, ""
	for i, l := range lines {
		m := fuzzStep.FindStringSubmatch(l)
		if m == nil || m[1] != strconv.Itoa(i) {
			t.Fatalf("Raw() line %d = %q", i, l)
		}
		if _, to, ok := strings.Cut(m[4], "@"); ok {
			if n, err := strconv.Atoi(to); err != nil || n < 0 || n >= len(lines) {
				t.Errorf("step %q jumps to %q; want a step", l, to)
			}
		}
		if bound == prog.Where(i) && bound == WhereTarget && m[2] != "set" {
			if want, got := answerTo(m), ask(t, &model, m); got != want {
				t.Errorf("the target's filter answers %#x to %q; want %#x", got, l, want)
			}
		}
		if m[2] == "seccomp" {
			bound = prog.Where(i)
		}
	}
	if b.Filter != nil && bound == "" {
		t.Error("no step installs a filter")
	}
}

// answerTo is what a filter must say to a step: what the step wants.
func answerTo(m []string) uint32 {
	if strings.Contains(m[4], " want=0") || !strings.Contains(m[4], "ignore=") {
		if _, e, ok := strings.Cut(m[4], "ignore="); ok {
			if n, err := strconv.Atoi(strings.Fields(e)[0]); err == nil {
				return unix.SECCOMP_RET_ERRNO | uint32(n)
			}
		}
	}
	return unix.SECCOMP_RET_ALLOW
}

func ask(t *testing.T, p *filter.Program, m []string) uint32 {
	t.Helper()
	numbers := map[string]int64{
		"add_key": unix.SYS_ADD_KEY, "memfd_create": unix.SYS_MEMFD_CREATE, "rt_sigprocmask": unix.SYS_RT_SIGPROCMASK,
		"rt_sigaction": unix.SYS_RT_SIGACTION, "write": unix.SYS_WRITE, "sendmsg": unix.SYS_SENDMSG, "sendto": unix.SYS_SENDTO, "read": unix.SYS_READ,
		"close": unix.SYS_CLOSE, "openat": unix.SYS_OPENAT, "fchdir": unix.SYS_FCHDIR, "execveat": unix.SYS_EXECVEAT, "execve": unix.SYS_EXECVE, "exit_group": unix.SYS_EXIT_GROUP,
	}
	nr, ok := numbers[m[2]]
	if !ok {
		t.Fatalf("the target calls %s under its filter; want it known to this test", m[2])
	}
	var args [6]uint64
	for i, a := range strings.Split(m[3], ", ") {
		if a == "" || strings.HasPrefix(a, "$") {
			continue
		}
		n, err := strconv.ParseUint(a, 0, 64)
		if err != nil {
			t.Fatal(fmt.Errorf("argument of %s: %w", m[0], err))
		}
		args[i] = n
	}
	return p.Run(auditArch(), nr, args)
}

func auditArch() uint32 {
	if runtime.GOARCH == "amd64" {
		return unix.AUDIT_ARCH_X86_64
	}
	return unix.AUDIT_ARCH_AARCH64
}

// TestFuzzSeeds: what FuzzCompile begins with reaches the compiler.
func TestFuzzSeeds(t *testing.T) {
	for i, p := range fuzzProfiles()[:5] {
		if err := fuzzSpec(p).Validate(); err != nil {
			t.Errorf("Validate(seed %d) = %v; want nil", i, err)
		}
		b := fuzzBuild(p, 0x1ff, 7)
		fp, err := filter.Compile(p.Seccomp.Base, nil, nil, filter.Options{Memfd: filter.MemfdRefused})
		if err != nil {
			t.Fatal(err)
		}
		b.Filter = fp.Insns
		prog, err := Compile(p, b)
		if err != nil {
			t.Fatalf("Compile(seed %d) = %v; want nil", i, err)
		}
		checkProgram(t, prog, b)
		if !strings.Contains(prog.Raw(), "add_key(") {
			t.Errorf("the program of seed %d has no canary: the filter is not looked at", i)
		}
	}
}

package filter

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"pinfold/test/testkit"
)

var update = flag.Bool("update", false, "write the tables and golden files anew")

func compile(tb testing.TB, base string, opt Options) *Program {
	tb.Helper()
	p, err := Compile(base, nil, nil, opt)
	if err != nil {
		tb.Fatalf("Compile(%q, %+v) = %v; want a program", base, opt, err)
	}
	return p
}

func everyProgram(tb testing.TB) map[string]*Program {
	tb.Helper()
	out := map[string]*Program{}
	for _, arch := range []Arch{AMD64, ARM64} {
		for _, base := range []string{Default, Strict} {
			for _, memfd := range []Memfd{MemfdAllowed, MemfdRefused} {
				out[fmt.Sprintf("%s-%s-%s", arch, base, memfd)] = compile(tb, base, Options{Arch: arch, Memfd: memfd})
			}
			out[fmt.Sprintf("%s-%s-nocore", arch, base)] = compile(tb, base, Options{Arch: arch, Core: CoreNever})
		}
		p, err := Compile(Default, []string{"ptrace", "unshare"}, []string{"socket", "read"}, Options{Arch: arch})
		if err != nil {
			tb.Fatalf("Compile with allow and deny = %v; want a program", err)
		}
		out[string(arch)+"-policy"] = p
	}
	return out
}

// interesting gives, for every argument, the words at which some test of some
// rule turns, their neighbours, and the same with high bits set.
func interesting(r rule) [][6]uint64 {
	values := []uint64{0, 1, 0o777, 0o4755, 0o2755, 0o6000, unix.O_CREAT, unix.O_TMPFILE, 1 << 31, 1<<32 - 1}
	for _, c := range r.clauses {
		for _, one := range c.tests {
			for _, v := range one.in {
				values = append(values, uint64(v), uint64(v)-1, uint64(v)+1, uint64(v|^one.mask), uint64(v)|1<<32, uint64(v)|1<<63, uint64(v)<<32)
			}
			for bit := range 32 {
				if one.mask != whole && one.mask&(1<<bit) != 0 {
					values = append(values, 1<<bit)
				}
			}
		}
	}
	var out [][6]uint64
	rng := rand.New(rand.NewPCG(1, uint64(len(values))))
	for range 400 {
		var args [6]uint64
		for i := range args {
			args[i] = values[rng.IntN(len(values))]
		}
		out = append(out, args)
	}
	return out
}

// TestModel checks the compiled form against the declarative one for every
// number up to 65535, around every power of two, in the x32 ABI, for arguments
// around every value that a rule names.
func TestModel(t *testing.T) {
	for name, p := range everyProgram(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			numbers := []int64{-1, -2, 1<<31 - 1, -1 << 31, 1 << 40, 0x40000000}
			for n := range int64(1 << 16) {
				numbers = append(numbers, n)
			}
			for n := range int64(1024) {
				numbers = append(numbers, 0x40000000|n, int64(uint32(0x80000000)|uint32(n)), 1<<32|n)
			}
			for _, nr := range numbers {
				r := p.rules.byNr[uint32(nr)]
				inputs := [][6]uint64{{}}
				if len(r.clauses) > 0 {
					inputs = interesting(r)
				}
				for _, args := range inputs {
					got, want := p.Run(p.rules.audit, nr, args), p.rules.decide(p.rules.audit, nr, args)
					if got != uint32(want) {
						t.Fatalf("Run(%d, %x) = %#x; want %#x", nr, args, got, want)
					}
				}
			}
		})
	}
}

func TestForeignArchitectureIsKilled(t *testing.T) {
	for name, p := range everyProgram(t) {
		for _, arch := range []uint32{
			0, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_RISCV64, ^p.rules.audit,
			p.rules.audit ^ 0x80000000, p.rules.audit ^ 0x40000000,
		} {
			for nr := range int64(600) {
				if got := p.Run(arch, nr, [6]uint64{}); got != unix.SECCOMP_RET_KILL_PROCESS {
					t.Fatalf("%s: Run(arch %#x, %d) = %#x; want kill", name, arch, nr, got)
				}
			}
		}
	}
}

type want struct {
	name string
	args [6]uint64
	ret  verdict
}

func answers() []want {
	const hi = 1 << 32
	return []want{
		{"read", [6]uint64{}, allow},
		{"clone", [6]uint64{uint64(unix.SIGCHLD)}, allow},
		{"clone", [6]uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, perm},
		{"clone", [6]uint64{hi | unix.CLONE_NEWNS}, perm},
		{"clone3", [6]uint64{}, absent},
		{"openat2", [6]uint64{}, absent},
		{"fchmodat2", [6]uint64{}, absent},
		{"socket", [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}, allow},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, unix.IPPROTO_TCP}, allow},
		{"socket", [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM | unix.SOCK_NONBLOCK}, allow},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, perm},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_PACKET}, perm},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM, 262}, perm},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, perm},
		{"socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, allow},
		{"socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, perm},
		{"socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC}, perm},
		{"socket", [6]uint64{unix.AF_ALG, unix.SOCK_SEQPACKET}, perm},
		{"socket", [6]uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, perm},
		{"socket", [6]uint64{unix.AF_PACKET, unix.SOCK_RAW}, perm},
		{"socket", [6]uint64{hi | unix.AF_VSOCK, unix.SOCK_STREAM}, perm},
		{"socketpair", [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}, allow},
		{"socketpair", [6]uint64{unix.AF_TIPC, unix.SOCK_STREAM}, perm},
		{"ioctl", [6]uint64{0, unix.TCGETS}, allow},
		{"ioctl", [6]uint64{0, unix.TIOCSTI}, perm},
		{"ioctl", [6]uint64{0, hi | unix.TIOCSTI}, perm},
		{"ioctl", [6]uint64{0, 1<<63 | unix.TIOCSTI}, perm},
		{"ioctl", [6]uint64{0, 0x541c}, perm},
		{"ioctl", [6]uint64{0, hi | 0x541c}, perm},
		{"fchmod", [6]uint64{3, 0o755}, allow},
		{"fchmod", [6]uint64{3, 0o4755}, perm},
		{"fchmod", [6]uint64{3, hi | 0o2755}, perm},
		{"fchmodat", [6]uint64{0, 0, 0o6755}, perm},
		{"fchmodat", [6]uint64{0, 0, 0o1777}, allow},
		{"openat", [6]uint64{0, 0, unix.O_RDONLY, 0o4755}, allow},
		{"openat", [6]uint64{0, 0, unix.O_CREAT | unix.O_WRONLY, 0o644}, allow},
		{"openat", [6]uint64{0, 0, unix.O_CREAT | unix.O_WRONLY, 0o4755}, perm},
		{"openat", [6]uint64{0, 0, hi | unix.O_CREAT, hi | 0o4755}, perm},
		{"openat", [6]uint64{0, 0, unix.O_TMPFILE | unix.O_RDWR, 0o2755}, perm},
		{"openat", [6]uint64{0, 0, unix.O_DIRECTORY, 0o2755}, allow},
		{"mkdirat", [6]uint64{0, 0, 0o755}, allow},
		{"mkdirat", [6]uint64{0, 0, 0o2755}, perm},
		{"mknodat", [6]uint64{0, 0, unix.S_IFIFO | 0o644}, allow},
		{"mknodat", [6]uint64{0, 0, 0o644}, allow},
		{"mknodat", [6]uint64{0, 0, unix.S_IFCHR | 0o644}, perm},
		{"mknodat", [6]uint64{0, 0, unix.S_IFBLK | 0o644}, perm},
		{"mknodat", [6]uint64{0, 0, unix.S_IFREG | 0o4755}, perm},
		{"prctl", [6]uint64{unix.PR_SET_NAME}, allow},
		{"prctl", [6]uint64{unix.PR_SET_MM}, perm},
		{"personality", [6]uint64{0xffffffff}, allow},
		{"personality", [6]uint64{0x0040000}, perm},
		{"memfd_create", [6]uint64{}, allow},
		{"unshare", [6]uint64{unix.CLONE_FILES}, perm},
	}
}

func TestAnswers(t *testing.T) {
	always := []string{
		"ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "userfaultfd", "io_uring_setup", "io_uring_enter",
		"io_uring_register", "add_key", "request_key", "keyctl", "bpf", "perf_event_open", "mount", "umount2", "pivot_root", "fsopen", "fsmount",
		"fsconfig", "fspick", "open_tree", "move_mount", "mount_setattr", "setns", "open_by_handle_at", "fanotify_init", "fanotify_mark",
		"quotactl", "quotactl_fd", "swapon", "swapoff", "reboot", "acct", "kexec_load", "kexec_file_load", "init_module", "finit_module",
		"delete_module", "chroot", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "syslog",
		"vhangup", "lookup_dcookie", "open_tree_attr",
	}
	list := answers()
	for _, name := range always {
		list = append(list, want{name, [6]uint64{}, perm})
	}
	for _, arch := range []Arch{AMD64, ARM64} {
		for _, base := range []string{Default, Strict} {
			p := compile(t, base, Options{Arch: arch})
			for _, w := range list {
				nr, ok := Number(arch, w.name)
				if !ok {
					continue
				}
				expect := w.ret
				if base == Strict && slices.Contains(strictOff(), w.name) {
					expect = perm
				}
				if got := p.Run(auditArch(arch), int64(nr), w.args); got != uint32(expect) {
					t.Errorf("%s %s: Run(%s, %#x) = %#x; want %#x", arch, base, w.name, w.args, got, expect)
				}
			}
		}
	}
}

// TestLegacyCallsOfAMD64 covers the calls that only amd64 has.
func TestLegacyCallsOfAMD64(t *testing.T) {
	p := compile(t, Default, Options{Arch: AMD64})
	for _, w := range []want{
		{"open", [6]uint64{0, unix.O_CREAT, 0o4755}, perm},
		{"open", [6]uint64{0, unix.O_CREAT, 0o755}, allow},
		{"creat", [6]uint64{0, 0o2644}, perm},
		{"creat", [6]uint64{0, 0o644}, allow},
		{"chmod", [6]uint64{0, 0o4000}, perm},
		{"mkdir", [6]uint64{0, 0o2000}, perm},
		{"mknod", [6]uint64{0, unix.S_IFBLK}, perm},
		{"mknod", [6]uint64{0, unix.S_IFIFO}, allow},
		{"modify_ldt", [6]uint64{}, perm},
		{"iopl", [6]uint64{}, perm},
		{"ioperm", [6]uint64{}, perm},
		{"uselib", [6]uint64{}, perm},
	} {
		nr, ok := Number(AMD64, w.name)
		if got := p.Run(unix.AUDIT_ARCH_X86_64, int64(nr), w.args); !ok || got != uint32(w.ret) {
			t.Errorf("Run(%s, %#x) = %#x; want %#x", w.name, w.args, got, w.ret)
		}
		if got := p.Run(unix.AUDIT_ARCH_X86_64, int64(nr)|0x40000000, w.args); got != uint32(absent) {
			t.Errorf("Run(x32 %s) = %#x; want %#x", w.name, got, absent)
		}
	}
}

func TestPolicy(t *testing.T) {
	p, err := Compile(Default, []string{"ptrace", "unshare"}, []string{"socket", "ptrace"}, Options{Arch: AMD64})
	if err != nil {
		t.Fatalf("Compile = %v; want a program", err)
	}
	for _, w := range []want{
		{"ptrace", [6]uint64{}, perm}, // deny wins
		{"socket", [6]uint64{unix.AF_UNIX}, perm},
		{"unshare", [6]uint64{unix.CLONE_FILES}, allow},
		{"unshare", [6]uint64{unix.CLONE_NEWUSER}, perm},
		{"unshare", [6]uint64{unix.CLONE_NEWTIME}, perm},
	} {
		nr, _ := Number(AMD64, w.name)
		if got := p.Run(unix.AUDIT_ARCH_X86_64, int64(nr), w.args); got != uint32(w.ret) {
			t.Errorf("Run(%s, %#x) = %#x; want %#x", w.name, w.args, got, w.ret)
		}
	}
	if slices.Contains(p.Names, "socket") || !slices.Contains(p.Names, "unshare") || !slices.IsSorted(p.Names) {
		t.Errorf("Names = %q; want them sorted, with unshare and without socket", p.Names)
	}
	m := compile(t, Default, Options{Arch: AMD64, Memfd: MemfdRefused})
	for _, name := range []string{"memfd_create", "memfd_secret"} {
		nr, _ := Number(AMD64, name)
		if got := m.Run(unix.AUDIT_ARCH_X86_64, int64(nr), [6]uint64{}); got != uint32(perm) {
			t.Errorf("Run(%s) = %#x; want %#x", name, got, perm)
		}
	}
	c := compile(t, Default, Options{Arch: AMD64, Core: CoreNever})
	const core, files = unix.RLIMIT_CORE, unix.RLIMIT_NOFILE
	for _, w := range []struct {
		name string
		args [6]uint64
		ret  verdict
	}{
		{"setrlimit", [6]uint64{core, 1}, done},
		{"setrlimit", [6]uint64{1<<32 | core, 1}, done},
		{"setrlimit", [6]uint64{files, 1}, allow},
		{"prlimit64", [6]uint64{0, core, 0, 1}, allow},
		{"prlimit64", [6]uint64{0, core, 1, 0}, done},
		{"prlimit64", [6]uint64{0, core, 1, 1}, perm},
		{"prlimit64", [6]uint64{0, core, 1 << 32, 0}, done},
		{"prlimit64", [6]uint64{0, core, 1 << 32, 1 << 32}, perm},
		{"prlimit64", [6]uint64{0, 1<<32 | core, 1, 0}, done},
		{"prlimit64", [6]uint64{0, files, 1, 1}, allow},
	} {
		nr, _ := Number(AMD64, w.name)
		if got := c.Run(unix.AUDIT_ARCH_X86_64, int64(nr), w.args); got != uint32(w.ret) {
			t.Errorf("Run(%s, %#x) = %#x; want %#x", w.name, w.args, got, w.ret)
		}
	}
	if a, b := compile(t, Default, Options{}), compile(t, Default, Options{}); a.Hash != b.Hash || a.Hash == p.Hash {
		t.Errorf("Hash = %s, %s, other policy %s; want the first two equal and the last different", a.Hash, b.Hash, p.Hash)
	}
}

func TestCompileRefuses(t *testing.T) {
	for _, c := range []struct {
		base        string
		allow, deny []string
		opt         Options
		text        string
	}{
		{"loose", nil, nil, Options{}, `cannot compile filter "loose": the bases are "default" and "strict"`},
		{Default, []string{"opnat"}, nil, Options{}, `unknown system call "opnat"`},
		{Default, nil, []string{""}, Options{}, `unknown system call ""`},
		{Default, []string{"io_uring_setup"}, nil, Options{}, `system call "io_uring_setup" can never be allowed: it makes calls that the filter does not see`},
		{Default, []string{"mount", "add_key"}, nil, Options{}, `system call "add_key" can never be allowed`},
		{Default, nil, nil, Options{Arch: "mips"}, `architecture "mips" has no table of system calls`},
	} {
		_, err := Compile(c.base, c.allow, c.deny, c.opt)
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("Compile(%q, %q, %q, %+v) = %v; want an error with %q", c.base, c.allow, c.deny, c.opt, err, c.text)
		}
	}
}

// TestNeverListNamesRealCalls keeps a misspelt name from guarding nothing.
func TestNeverListNamesRealCalls(t *testing.T) {
	amd64, err := calls(AMD64)
	if err != nil {
		t.Fatalf("calls(amd64) = %v; want a table", err)
	}
	var names []string
	for name := range never() {
		names = append(names, name)
	}
	for name := range narrowed() {
		names = append(names, name)
	}
	for _, name := range slices.Concat(names, off(), strictOff(), lookAbsent()) {
		if _, ok := amd64[name]; !ok {
			t.Errorf("calls(amd64)[%q] is missing; want every listed name to be one", name)
		}
	}
}

// TestNames pins what each base allows.
func TestNames(t *testing.T) {
	for _, arch := range []Arch{AMD64, ARM64} {
		for _, base := range []string{Default, Strict} {
			p := compile(t, base, Options{Arch: arch})
			got := strings.Join(p.Names, "\n") + "\n"
			golden(t, filepath.Join("testdata", fmt.Sprintf("names_%s_%s.golden", base, arch)), got)
		}
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(b), got); d != "" {
		t.Errorf("%s differs (-golden +now); -update writes it anew:\n%s", path, d)
	}
}

// TestCost keeps common calls cheap where the kernel has no bitmap for them.
func TestCost(t *testing.T) {
	for _, arch := range []Arch{AMD64, ARM64} {
		p := compile(t, Default, Options{Arch: arch})
		t.Logf("%s: %d instructions", arch, len(p.Insns))
		for _, c := range []struct {
			name string
			args [6]uint64
			most int
		}{
			{"read", [6]uint64{}, 12},
			{"write", [6]uint64{}, 12},
			{"mmap", [6]uint64{}, 12},
			{"futex", [6]uint64{}, 12},
			{"close", [6]uint64{}, 12},
			{"newfstatat", [6]uint64{}, 12},
			{"openat", [6]uint64{}, 16},
			{"openat", [6]uint64{0, 0, unix.O_CREAT, 0o644}, 18},
			{"ioctl", [6]uint64{0, unix.TCGETS}, 18},
			{"socket", [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM}, 22},
		} {
			nr, ok := Number(arch, c.name)
			n := p.Cost(int64(nr), c.args)
			if !ok || n > c.most {
				t.Errorf("%s: Cost(%s, %v) = %d; want at most %d", arch, c.name, c.args, n, c.most)
			}
			t.Logf("%s: %s runs %d", arch, c.name, n)
		}
	}
}

// TestTables checks the tables against golang.org/x/sys, which generates them
// from the kernel's headers.
func TestTables(t *testing.T) {
	testkit.NeedProgram(t, "go")
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatalf("go list -m golang.org/x/sys: %v; want its directory", err)
	}
	line := regexp.MustCompile(`(?m)^\tSYS_(\S+)\s+= (\d+)$`)
	for _, arch := range []Arch{AMD64, ARM64} {
		src, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+string(arch)+".go"))
		if err != nil {
			t.Fatal(err)
		}
		type call struct{ nr, name string }
		var all []call
		for _, m := range line.FindAllStringSubmatch(string(src), -1) {
			all = append(all, call{m[2], strings.ToLower(m[1])})
		}
		sort.SliceStable(all, func(i, j int) bool {
			return len(all[i].nr) < len(all[j].nr) || len(all[i].nr) == len(all[j].nr) && all[i].nr < all[j].nr
		})
		var b strings.Builder
		for _, c := range all {
			fmt.Fprintf(&b, "%s %s\n", c.nr, c.name)
		}
		golden(t, "calls_"+string(arch)+".txt", b.String())
	}
}

// TestLongJumps makes a tree whose halves are further apart than a conditional
// jump reaches.
func TestLongJumps(t *testing.T) {
	rulesUpTo := func(n uint32) *rules {
		r := &rules{audit: unix.AUDIT_ARCH_X86_64, last: 2 * n, byNr: map[uint32]rule{}}
		for nr := uint32(0); nr < n; nr += 2 {
			r.byNr[nr] = only([]test{among(int(nr%6), whole, nr, nr+1)})
		}
		return r
	}
	if _, err := assemble(rulesUpTo(2000)); err == nil {
		t.Errorf("assemble of 1000 rules = nil; want an error for more than %d instructions", maxInsns)
	}
	r := rulesUpTo(600)
	insns, err := assemble(r)
	if err != nil {
		t.Fatalf("assemble = %v; want a program", err)
	}
	p := &Program{Insns: insns, rules: r}
	jumps := slices.ContainsFunc(insns, func(i unix.SockFilter) bool { return i.Code == unix.BPF_JMP|unix.BPF_JA })
	if !jumps {
		t.Errorf("assemble gave no long jump; want some in %d instructions", len(insns))
	}
	for nr := range int64(1100) {
		for v := range uint64(8) {
			args := [6]uint64{uint64(nr) + v - 2, uint64(nr) + v - 2, uint64(nr) + v - 2, uint64(nr) + v - 2, uint64(nr) + v - 2, uint64(nr) + v - 2}
			if got, want := p.Run(r.audit, nr, args), r.decide(r.audit, nr, args); got != uint32(want) {
				t.Fatalf("Run(%d, %v) = %#x; want %#x", nr, args, got, want)
			}
		}
	}
}

// FuzzModel compares program and model for any number and arguments.
func FuzzModel(f *testing.F) {
	programs := everyProgram(f)
	var names []string
	for name := range programs {
		names = append(names, name)
	}
	slices.Sort(names)
	f.Add(uint8(0), uint32(unix.AUDIT_ARCH_X86_64), int64(41), uint64(1), uint64(1), uint64(0), uint64(0))
	f.Add(uint8(1), uint32(unix.AUDIT_ARCH_AARCH64), int64(29), uint64(0), uint64(1<<32|unix.TIOCSTI), uint64(0), uint64(0))
	f.Add(uint8(2), uint32(unix.AUDIT_ARCH_X86_64), int64(257), uint64(0), uint64(0), uint64(unix.O_CREAT), uint64(0o4755))
	f.Fuzz(func(t *testing.T, which uint8, arch uint32, nr int64, a, b, c, d uint64) {
		p := programs[names[int(which)%len(names)]]
		args := [6]uint64{a, b, c, d, a ^ b, c ^ d}
		for _, x := range []uint32{arch, p.rules.audit} {
			if got, want := p.Run(x, nr, args), p.rules.decide(x, nr, args); got != uint32(want) {
				t.Errorf("Run(%#x, %d, %x) = %#x; want %#x", x, nr, args, got, want)
			}
		}
	})
}

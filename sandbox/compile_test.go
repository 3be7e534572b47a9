package sandbox

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write the golden files anew")

// smallFilter refuses add_key and memfd_create and allows the rest.
func smallFilter() []unix.SockFilter {
	const jeq = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: jeq, K: unix.SYS_ADD_KEY, Jt: 2},
		{Code: jeq, K: unix.SYS_MEMFD_CREATE, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
	}
}

func TestCompileGolden(t *testing.T) {
	full := Build{Groups: On, Announce: On, LandlockABI: 7, Filter: smallFilter(), Join: []Join{JoinTasks, JoinTasks, JoinProcs}}
	tests := []struct {
		name  string
		p     func(*Profile)
		build func(*Build)
	}{
		{"ordinary", func(*Profile) {}, func(*Build) {}},
		{"terminal", func(p *Profile) { p.PTY = true }, func(b *Build) { b.Join, b.IntoCgroup = nil, On }},
		{"listed", func(p *Profile) {
			p.Exec = ExecListed
			for i := range p.Private {
				p.Private[i].NoExec = true
			}
		}, func(b *Build) { b.MemfdNoexec = On }},
		{"listed_by_filter", func(p *Profile) { p.Exec = ExecListed }, func(*Build) {}},
		{"userns", func(p *Profile) { p.UserNS, p.RootMap, p.Proc, p.Net = true, true, ProcPids, NetHost }, func(b *Build) { b.Groups = Off }},
		{"denies", func(p *Profile) {
			p.Attach = append(p.Attach, Attach{Path: "/home/u/work/deep/file"}, Attach{Path: "/home/u/.config/file"})
			p.Private = append(p.Private, Tmpfs{Path: "/home/u/work/tmp", Size: 4096, Inodes: 10, Mode: 0o755})
		}, func(b *Build) {
			b.AttachFiles = []int{2}
			b.DenyMounts = []DenyMount{{From: 0, Path: ".git"}, {From: 3, Path: "hooks"}, {From: FromView, Path: "/etc/secret"}}
		}},
		{"bare", func(p *Profile) { p.Private, p.Attach, p.Rlimits = nil, nil, nil }, func(b *Build) { *b = Build{} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, b := testProfile(), full
			tt.p(&p)
			tt.build(&b)
			prog, err := Compile(p, b)
			if err != nil {
				t.Fatalf("Compile(%s) = %v", tt.name, err)
			}
			golden(t, filepath.Join("testdata", tt.name+".program"), prog.String())
			again, err := Compile(p, b)
			if err != nil {
				t.Fatal(err)
			}
			one, err1 := prog.Image()
			two, err2 := again.Image()
			if !bytes.Equal(one, two) || err1 != nil || err2 != nil {
				t.Errorf("Compile(%s) twice = two different images (%v, %v); want the same", tt.name, err1, err2)
			}
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (write it anew with -update):\n%s", name, d)
	}
}

func TestCompileRefuses(t *testing.T) {
	tests := []struct {
		name string
		p    func(*Profile)
		b    Build
		want string
	}{
		{"too many joins", nil, Build{Join: make([]Join, 5)}, "5 cgroups to join: at most 4"},
		{"rootmap without userns", func(p *Profile) { p.RootMap = true }, Build{}, "rootmap needs userns"},
		{"empty filter", nil, Build{Filter: []unix.SockFilter{}}, "the seccomp filter is empty"},
		{"long hostname", func(p *Profile) { p.Hostname = strings.Repeat("h", 65) }, Build{}, "hostname of 65 bytes: at most 64"},
		{"no limit on a tmpfs", func(p *Profile) { p.Private[0].Size = 0 }, Build{}, "private /tmp: size 0"},
		{"set-id tmpfs", func(p *Profile) { p.Private[0].Mode = 0o4777 }, Build{}, "mode 04777"},
		{"relative path", func(p *Profile) { p.Attach[0].Path = "work" }, Build{}, `attach "work" is not an absolute`},
		{"dots in a path", func(p *Profile) { p.Attach[0].Path = "/a/../b" }, Build{}, `attach "/a/../b" is not an absolute, clean path`},
		{"path twice", func(p *Profile) { p.Attach[0].Path = "/tmp" }, Build{}, "attach /tmp is private already"},
		{"over the root", func(p *Profile) { p.Attach[0].Path = "/" }, Build{}, "attach / is the root already"},
		{"inside proc", func(p *Profile) { p.Private[0].Path = "/proc/x" }, Build{}, "lies inside a file system of the kernel's"},
		{"hidden entry", func(p *Profile) { p.View = []Entry{{Kind: EntryFile, Path: "/tmp/x"}} }, Build{}, "view entry /tmp/x would be hidden by private /tmp"},
		{"unknown rlimit", func(p *Profile) { p.Rlimits = []Rlimit{{Name: "files"}} }, Build{}, `rlimit "files" is not known`},
		{"file that is no attach", nil, Build{AttachFiles: []int{1}}, "attach 1 is a file, and there are 1"},
		{"deny below a later mount", nil, Build{DenyMounts: []DenyMount{{From: 1, Path: "a"}}}, `denied path "a" begins at mount 1 of 1`},
		{"deny with a slash", nil, Build{DenyMounts: []DenyMount{{From: 0, Path: "a/b"}}}, `denied path "a/b" below a mount is not one name`},
		{"deny upwards", nil, Build{DenyMounts: []DenyMount{{From: 0, Path: ".."}}}, `denied path ".." below a mount is not one name`},
		{"deny of the root", nil, Build{DenyMounts: []DenyMount{{From: FromView, Path: "/"}}}, `denied path "/" is not`},
		{"a filter without the canary's refusal", nil, Build{Filter: smallFilter()[3:4]}, "the filter answers 0x7fff0000 to add_key"},
		{"a filter against a later step", nil, Build{Filter: smallFilter()[4:]}, "the filter answers 0x50001 to rt_sigprocmask"},
		{"a rule inside an empty tmpfs", func(p *Profile) {
			p.Landlock.Rules = []Rule{{Path: "/tmp/x", Access: "r"}}
		}, Build{LandlockABI: 1}, "rule on /tmp/x lies inside private /tmp, which begins empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := testProfile()
			if tt.p != nil {
				tt.p(&p)
			}
			_, err := Compile(p, tt.b)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Compile(%s) = %v; want an error with %q", tt.name, err, tt.want)
			}
		})
	}
}

func TestStageRules(t *testing.T) {
	p := testProfile()
	var got []string
	for _, r := range StageRules(p) {
		got = append(got, r.Path)
	}
	want := []string{"/usr", "/probe", "/dev", "/etc", "/home/u/work"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("StageRules(test) differs:\n%s", d)
	}
}

func TestCloneFlags(t *testing.T) {
	const always = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS
	tests := []struct {
		p    Profile
		want uintptr
	}{
		{Profile{Net: NetNone}, always | unix.CLONE_NEWIPC | unix.CLONE_NEWNET},
		{Profile{Net: NetHost, UserNS: true}, always | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER},
		{Profile{Net: NetHost, Controls: []Need{{ControlIPCNS, LevelOff}}}, always},
	}
	for _, tt := range tests {
		if got := CloneFlags(tt.p); got != tt.want {
			t.Errorf("CloneFlags(%+v) = %#x; want %#x", tt.p, got, tt.want)
		}
	}
}

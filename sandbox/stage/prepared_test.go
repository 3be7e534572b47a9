package stage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/test/testkit"
)

func (b *bench) prepare(t *testing.T, s sandbox.Spec, attach ...*os.File) *sandbox.Prepared {
	t.Helper()
	return b.prepareSeen(t, s, nil, attach...)
}

func (b *bench) prepareSeen(t *testing.T, s sandbox.Spec, seen *sandbox.Seen, attach ...*os.File) *sandbox.Prepared {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	p, err := b.Prepare(ctx, b.conn, s, attach, seen)
	if errors.Is(err, sandbox.ErrUnsupported) {
		testkit.NeedDetached(t)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// obey gives a prepared pen its command, which rests on a look of its own, and waits for it
// at its last gate.
func (b *bench) obey(ctx context.Context, p *sandbox.Prepared, c sandbox.Command) (*sandbox.Pen, error) {
	if err := p.Send(ctx, b.conn, c, sandbox.OnLook, 0); err != nil {
		return nil, err
	}
	return p.Launch(ctx)
}

// TestPrepared: a pen that waits for its command is confined as it will be when it
// runs, runs nothing, and shows the record of one that is launched at once.
func TestPrepared(t *testing.T) {
	b, w := newBench(t), workspace(t)
	s, d := b.inWork(testProfile(), w, "cat; echo $0 $1; cat f; cat /proc/self/cgroup | tail -1")
	s.Command.Argv = append(s.Command.Argv, "zero", "one")
	p := b.prepare(t, s, d)
	job := jobOf(b, s)
	var pid int
	until(t, "the target to be in its cgroup", func() bool { pid = onlyPid(t, job); return pid > 0 })
	until(t, "the target to wait for its command", func() bool { return confined(t, pid) })
	init := onlyPid(t, b.base+"/"+s.Site.Cgroup+"/init")
	until(t, "PID 1 to have given up its rights", func() bool {
		return shows(t, init, fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", dynFirst), "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "NoNewPrivs:\t1\n")
	})
	write(t, w+"/f", "made later\n")
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	pen, err := b.obey(ctx, p, s.Command)
	if err != nil {
		t.Fatal(err)
	}
	if pen.Pid != pid {
		t.Errorf("the target is %d; want %d, which was prepared", pen.Pid, pid)
	}
	got := pen.Enforcement
	st, out, errs, err := b.follow(ctx, pen, "in\n")
	if err != nil || st.Code != 0 || !strings.HasPrefix(out, "in\nzero one\nmade later\n") || errs != "" {
		t.Fatalf("run = %+v, %q, %q, %v", st, out, errs, err)
	}
	again, d2 := b.inWork(testProfile(), w, "true")
	pen, err = b.Launch(ctx, b.conn, again, []*os.File{d2})
	if err != nil {
		t.Fatal(err)
	}
	want := pen.Enforcement
	want.Namespaces, got.Namespaces = nil, nil // each pen's own
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("record of a prepared pen differs (-launched +prepared):\n%s", d)
	}
	if err := pen.Abort(ctx); err != nil {
		t.Error(err)
	}
}

func jobOf(b *bench, s sandbox.Spec) string { return b.base + "/" + s.Site.Cgroup + "/job" }

// onlyPid is the one process of a cgroup, 0 while there is none.
func onlyPid(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(dir + "/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(b))) // more than one is no number
	return n
}

// confined reports whether a process sleeps with all that confines it in force.
func confined(t *testing.T, pid int) bool {
	t.Helper()
	return shows(t, pid, "State:\tS", "Uid:\t4242\t4242\t4242\t4242\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n")
}

// shows reports whether a process's status has all of these.
func shows(t *testing.T, pid int, all ...string) bool {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range all {
		if !strings.Contains(string(b), want) {
			return false
		}
	}
	return true
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(waitLimit); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// TestWhatATargetHasOpen: a target that waits has program and directory open, and keeps them
// for a command that needs the same; for another one it opens what that needs.
func TestWhatATargetHasOpen(t *testing.T) {
	b := newBench(t)
	for _, tt := range []openRow{
		{"the same", func(string, *sandbox.Command) error { return nil }, nil, false, ""},
		{"another program", func(_ string, c *sandbox.Command) error {
			c.Program, c.ProgramID = "/usr/bin/true", idOf(t, "/usr/bin/true")
			return nil
		}, nil, true, ""},
		{"another directory", func(_ string, c *sandbox.Command) error {
			c.Dir, c.DirID = "/", sandbox.Identity{}
			return nil
		}, nil, true, ""},
		{"nothing", func(_ string, c *sandbox.Command) error { *c = sandbox.Command{}; return nil }, nil, true, ""},
		{"another file at the path", nil, func(w string, c *sandbox.Command) error {
			err := errors.Join(os.Remove(w+"/tool"), shellAt(w+"/tool"))
			c.ProgramID = idOf(t, w+"/tool")
			return err
		}, true, ""},
		{"another directory at the path", nil, func(w string, c *sandbox.Command) error {
			err := errors.Join(os.Rename(w+"/sub", w+"/old"), os.Mkdir(w+"/sub", 0o755), os.Chmod(w+"/sub", 0o755))
			c.DirID = idOf(t, w+"/sub")
			return err
		}, true, ""},
		{"another file than was looked at", nil, func(w string, _ *sandbox.Command) error {
			return errors.Join(os.Rename(w+"/tool", w+"/old"), shellAt(w+"/tool"))
		}, false, ""}, // what is open is what was looked at
		{"a look of another file", nil, func(_ string, c *sandbox.Command) error { c.ProgramID.Ino++; return nil }, true, "the program is another file"},
		{"a look of another directory", nil, func(_ string, c *sandbox.Command) error { c.DirID.Ino++; return nil }, true, "the directory is another file"},
		{"a script", nil, func(_ string, c *sandbox.Command) error { c.Script = true; return nil }, true, ""},
		{"a script that is another one now", nil, func(w string, c *sandbox.Command) error {
			c.Script = true
			return errors.Join(os.Rename(w+"/tool", w+"/old"), shellAt(w+"/tool"))
		}, true, "the program is another file"},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, b) })
	}
}

type openRow struct {
	name   string
	before func(w string, c *sandbox.Command) error // what is opened beforehand; nil: what the command is to need
	after  func(w string, c *sandbox.Command) error // what happens then, and what is known of it
	opens  bool                                     // once the command is there
	fails  string                                   // in why it does not start; empty: it does
}

func (tt openRow) run(t *testing.T, b *bench) {
	t.Helper()
	w := workspace(t)
	mkdir(t, w+"/sub")
	if err := shellAt(w + "/tool"); err != nil {
		t.Fatal(err)
	}
	s, d := b.inWork(testProfile(), w, `echo "$0 $1"; pwd; ls /proc/self/fd | wc -l`)
	c := &s.Command
	c.Program, c.ProgramID, c.Dir, c.DirID = "/proj/tool", idOf(t, w+"/tool"), "/proj/sub", idOf(t, w+"/sub")
	c.Argv, c.Timed = append(c.Argv, "zero", "one"), true
	before := s
	if tt.before != nil {
		if err := tt.before(w, &before.Command); err != nil {
			t.Fatal(err)
		}
	}
	p := b.prepare(t, before, d)
	var open unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", onlyPid(t, jobOf(b, s)), 3), &open)
	if want := before.Command.ProgramID; (err == nil) != (want != sandbox.Identity{}) || err == nil && open.Ino != want.Ino {
		t.Errorf("a target that waits has open inode %d, %v; want %+v", open.Ino, err, want)
	}
	if tt.after != nil {
		if err := tt.after(w, c); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	pen, err := b.obey(ctx, p, *c)
	if tt.fails != "" {
		if err == nil || !strings.Contains(err.Error(), tt.fails) {
			t.Errorf("Launch() = %v; want %q", err, tt.fails)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if opens := slices.ContainsFunc(pen.Laps, func(l sandbox.Lap) bool { return l.Step == "launch.opened" }); opens != tt.opens {
		t.Errorf("it opened program and directory for its command: %v; want %v", opens, tt.opens)
	}
	st, out, errs, err := b.follow(ctx, pen, "")
	if err != nil || st.Code != 0 || out != "zero one\n/proj/sub\n4\n" || errs != "" {
		t.Errorf("run = %+v, %q, %q, %v; want the command in its directory, with three descriptors and that of ls", st, out, errs, err)
	}
}

// shellAt makes a program that is sh.
func shellAt(path string) error {
	b, err := os.ReadFile("/bin/sh")
	return errors.Join(err, os.WriteFile(path, b, 0o755), os.Chmod(path, 0o755))
}

// TestPreparedOpensWhatItMay: what a target cannot open beforehand, or is not what was looked
// at, makes no pen.
func TestPreparedOpensWhatItMay(t *testing.T) {
	b := newBench(t)
	for name, edit := range map[string]func(c *sandbox.Command){
		"no such program":   func(c *sandbox.Command) { c.Program = "/usr/bin/no-such" },
		"another program":   func(c *sandbox.Command) { c.Program = "/usr/bin/true" },
		"another directory": func(c *sandbox.Command) { c.DirID.Ino++ },
		"not looked at":     func(c *sandbox.Command) { c.ProgramID = sandbox.Identity{} },
		"no clean path":     func(c *sandbox.Command) { c.Program = "/usr/bin/../bin/true" },
	} {
		t.Run(name, func(t *testing.T) {
			s, d := b.inWork(testProfile(), workspace(t), "true")
			edit(&s.Command)
			ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
			defer cancel()
			if _, err := b.Prepare(ctx, b.conn, s, []*os.File{d}, nil); err == nil {
				t.Error("Prepare() = nil; want an error")
			}
		})
	}
}

// TestPreparedStale: what changes on the host while a pen waits, and would make a new
// pen another, keeps the old from its command.
func TestPreparedStale(t *testing.T) {
	b := newBench(t)
	secret := t.TempDir()
	if err := os.Chmod(secret, 0o755); err != nil {
		t.Fatal(err)
	}
	bound := func(p *sandbox.Profile, path string, absent sandbox.Absent) {
		p.View = append(p.View, sandbox.Entry{Kind: sandbox.EntryBind, Path: "/opt/host", Source: secret})
		p.Landlock.Rules = append(p.Landlock.Rules, sandbox.Rule{Path: "/opt/host", Access: "r"})
		p.Deny = append(p.Deny, sandbox.Deny{Path: path, Absent: absent})
	}
	tests := []struct {
		name   string
		edit   func(p *sandbox.Profile)
		change func(w string)
		stale  bool
	}{
		{"nothing", func(p *sandbox.Profile) { bound(p, "/opt/host/nothing", sandbox.AbsentSkip) }, func(string) {}, false},
		{"another file of the workspace", func(*sandbox.Profile) {}, func(w string) { write(t, w+"/other", "x") }, false},
		{"a secret appears in the view", func(p *sandbox.Profile) { bound(p, "/opt/host/key", sandbox.AbsentSkip) }, func(string) { write(t, secret+"/key", "x") }, true},
		{"a directory of a secret appears", func(p *sandbox.Profile) { bound(p, "/opt/host/dir/key", sandbox.AbsentSkip) }, func(string) { write(t, secret+"/dir/key", "x") }, true},
		{"a denied path appears", func(p *sandbox.Profile) {
			p.Deny = append(p.Deny, sandbox.Deny{Path: "/proj/later", Absent: sandbox.AbsentCheck})
		}, func(w string) { write(t, w+"/later", "x") }, true},
		{"a placeholder is taken away", func(p *sandbox.Profile) {
			p.Deny = append(p.Deny, sandbox.Deny{Path: "/proj/held", Absent: sandbox.AbsentPlaceholder})
		}, func(w string) { remove(t, w+"/held") }, true},
		{"a file with a rule of its own appears", func(p *sandbox.Profile) {
			p.Landlock.Rules = append(p.Landlock.Rules, sandbox.Rule{Path: "/proj/out", Access: "rw"})
		}, func(w string) { write(t, w+"/out/x", "x") }, true},
		{"a file on the way becomes a directory", func(p *sandbox.Profile) {
			p.Deny = append(p.Deny, sandbox.Deny{Path: "/proj/git/hooks", Absent: sandbox.AbsentPlaceholder})
		}, func(w string) { remove(t, w+"/git"); write(t, w+"/git/hooks", "secret") }, true},
		{"a directory on the way is another", func(p *sandbox.Profile) { bound(p, "/opt/host/way/key", sandbox.AbsentSkip) }, func(string) {
			move(t, secret+"/way", secret+"/old")
			write(t, secret+"/way/key", "secret")
		}, true},
		{"a directory on the way to what is looked for is another", func(p *sandbox.Profile) { bound(p, "/opt/host/seen/key", sandbox.AbsentCheck) }, func(string) {
			move(t, secret+"/seen", secret+"/past")
			write(t, secret+"/seen/key", "secret")
		}, true},
		{"a file of the view is another", func(p *sandbox.Profile) {
			p.View = append(p.View, sandbox.Entry{Kind: sandbox.EntryBind, Path: "/opt/f", Source: secret + "/f"})
		}, func(string) {
			remove(t, secret+"/f")
			write(t, secret+"/f2", "y")
			move(t, secret+"/f2", secret+"/f")
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := workspace(t)
			write(t, secret+"/f", "x")
			write(t, w+"/git", "gitdir: elsewhere")
			write(t, secret+"/way/other", "x")
			write(t, secret+"/seen/other", "x")
			p := testProfile()
			tt.edit(&p)
			s, d := b.inWork(p, w, "true")
			r := b.prepare(t, s, d)
			until(t, "the target to be in its cgroup", func() bool { return onlyPid(t, jobOf(b, s)) > 0 })
			tt.change(w)
			ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
			defer cancel()
			pen, err := b.obey(ctx, r, s.Command)
			if tt.stale {
				if !errors.Is(err, sandbox.ErrStale) {
					t.Errorf("Launch() = %v; want ErrStale", err)
				}
				if got := onlyPid(t, jobOf(b, s)); got != 0 {
					t.Errorf("process %d is left", got)
				}
				if err == nil {
					_ = pen.Abort(ctx)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if st, _, errs, err := b.follow(ctx, pen, ""); err != nil || st.Code != 0 {
				t.Errorf("run = %+v, %q, %v; want exit 0", st, errs, err)
			}
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// TestPreparedMaskFalls: a file that is moved over a denied one from outside takes the
// mask with it.
func TestPreparedMaskFalls(t *testing.T) {
	b, w := newBench(t), workspace(t)
	write(t, w+"/.env", "secret")
	p := testProfile()
	p.Deny = []sandbox.Deny{{Path: "/proj/.env", Absent: sandbox.AbsentPlaceholder}}
	s, d := b.inWork(p, w, "true")
	r := b.prepare(t, s, d)
	until(t, "the target to be in its cgroup", func() bool { return onlyPid(t, jobOf(b, s)) > 0 })
	write(t, w+"/new", "another secret")
	move(t, w+"/new", w+"/.env")
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	_, err := b.obey(ctx, r, s.Command)
	if !errors.Is(err, sandbox.ErrStale) {
		t.Errorf("Launch() = %v; want ErrStale", err)
	}
}

// TestPreparedEnds: a pen that waits for its command ends with Abort, with its stage,
// and with PID 1, and leaves nothing.
func TestPreparedEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, b *bench, p *sandbox.Prepared, place string){
		"abort": func(t *testing.T, _ *bench, p *sandbox.Prepared, _ string) {
			t.Helper()
			if err := p.Abort(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"stage closed": func(t *testing.T, b *bench, _ *sandbox.Prepared, _ string) {
			t.Helper()
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		},
		"stage killed": func(t *testing.T, b *bench, _ *sandbox.Prepared, _ string) {
			t.Helper()
			b.killed = true
			kill(t, stagePid(t, b.state))
		},
		"PID 1 killed": func(t *testing.T, b *bench, p *sandbox.Prepared, place string) {
			t.Helper()
			kill(t, onlyPid(t, place+"/init"))
			until(t, "the target to end with it", func() bool { return onlyPid(t, place+"/job") == 0 })
			if _, err := b.obey(t.Context(), p, b.spec(testProfile(), "/bin/true").Command); err == nil {
				t.Error("Launch() of a dead pen = nil; want an error")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := b.spec(testProfile(), "/bin/true")
			p := b.prepare(t, s)
			place := b.base + "/" + s.Site.Cgroup
			until(t, "the target to be in its cgroup", func() bool { return onlyPid(t, place+"/job") > 0 })
			end(t, b, p, place)
			until(t, "both processes to end", func() bool { return onlyPid(t, place+"/job") == 0 && onlyPid(t, place+"/init") == 0 })
		})
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}

package stage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
)

// look is what a look with the bench's connection finds now.
func (b *bench) look(r sandbox.LookRequest) *sandbox.Seen {
	b.t.Helper()
	l, dir, err := b.Look(b.t.Context(), b.conn, r)
	if err != nil {
		b.t.Fatal(err)
	}
	s := &sandbox.Seen{Request: r, Looked: l}
	if dir == nil {
		return s
	}
	b.t.Cleanup(func() { _ = dir.Close() })
	if s.Mount, err = sandbox.MountOf(dir); err != nil {
		b.t.Fatal(err)
	}
	return s
}

// TestSeenOnceMore: a command that rests on an earlier look goes to a prepared pen only
// if a look finds the same when it comes, or was made ahead of it.
func TestSeenOnceMore(t *testing.T) {
	b := newBench(t)
	for name, tt := range map[string]struct {
		edit   func(*sandbox.Seen)
		change func(w string) error
		stale  bool
	}{
		"nothing": {nil, nil, false},
		"another file": {nil, func(w string) error {
			return os.WriteFile(w+"/sub/other", nil, 0o600) // changes the directory's own times, on which nothing rests
		}, false},
		"no rights to the directory": {nil, func(w string) error { return os.Chmod(w+"/sub", 0o700) }, true},
		"a program with other times": {nil, func(w string) error {
			return os.Chtimes(w+"/bin/tool", time.Unix(1, 0), time.Unix(1, 0))
		}, true},
		"a file elsewhere": {nil, func(w string) error { return os.WriteFile(w+"/other", nil, 0o600) }, false},
		"another directory": {nil, func(w string) error {
			return errors.Join(os.Rename(w+"/sub", w+"/old"), os.Mkdir(w+"/sub", 0o755))
		}, true},
		"no directory": {nil, func(w string) error { return os.Rename(w+"/sub", w+"/old") }, true},
		"a symlink to it": {nil, func(w string) error {
			return errors.Join(os.Rename(w+"/sub", w+"/old"), os.Symlink("old", w+"/sub"))
		}, true},
		"another program":          {nil, func(w string) error { return program(w+"/bin/tool", "exit 1") }, true},
		"no rights to it":          {nil, func(w string) error { return os.Chmod(w+"/bin/tool", 0o600) }, true},
		"one found before it":      {nil, func(w string) error { return program(w+"/first/tool", "exit 1") }, true},
		"a look of something else": {func(s *sandbox.Seen) { s.Request.Programs = []string{"other"} }, nil, true},
		"another mount":            {func(s *sandbox.Seen) { s.Mount.ID++ }, nil, true},
		"a remounted one":          {func(s *sandbox.Seen) { s.Mount.Flags ^= unix.ST_RDONLY }, nil, true},
	} {
		for _, ahead := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ahead %v", name, ahead), func(t *testing.T) {
				p, s, w := b.seenOnce(t, tt.edit)
				if tt.change != nil {
					if err := tt.change(w); err != nil {
						t.Fatal(err)
					}
				}
				var look sandbox.Look
				if ahead {
					look = lookAhead(t, p, b.conn)
				}
				b.obeysUnless(t, p, s.Command, look, tt.stale)
			})
		}
	}
}

// seenOnce is a prepared pen whose command may rest on what was seen in a workspace.
func (b *bench) seenOnce(t *testing.T, edit func(*sandbox.Seen)) (p *sandbox.Prepared, s sandbox.Spec, w string) {
	t.Helper()
	w = workspace(t)
	for _, d := range []string{"/sub", "/bin", "/first"} {
		mkdir(t, w+d)
	}
	if err := program(w+"/bin/tool", "true"); err != nil {
		t.Fatal(err)
	}
	s, d := b.inWork(testProfile(), w, "true")
	seen := b.look(sandbox.LookRequest{Programs: []string{"tool"}, Path: []string{w + "/first", w + "/bin"}, Dir: w + "/sub"})
	if edit != nil {
		edit(seen)
	}
	return b.prepareSeen(t, s, seen, d), s, w
}

// obeysUnless gives a prepared pen a command that rests on what was seen, which is stale or
// comes to the last gate.
func (b *bench) obeysUnless(t *testing.T, p *sandbox.Prepared, c sandbox.Command, look sandbox.Look, stale bool) {
	t.Helper()
	err := b.toItsGate(t, p, c, look)
	if stale != errors.Is(err, sandbox.ErrStale) || !stale && err != nil {
		t.Errorf("Launch() = %v; want stale: %v", err, stale)
	}
}

// toItsGate brings a prepared pen to its last gate, and ends it there.
func (b *bench) toItsGate(t *testing.T, p *sandbox.Prepared, c sandbox.Command, look sandbox.Look) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := p.Send(ctx, b.conn, c, sandbox.OnSeen, look); err != nil {
		return err
	}
	pen, err := p.Launch(ctx)
	if err != nil {
		return err
	}
	return pen.Abort(ctx)
}

// lookAhead has the stage look ahead of a command, and returns the number for that.
func lookAhead(t *testing.T, p *sandbox.Prepared, conn *os.File) sandbox.Look {
	t.Helper()
	look, err := p.Ahead(conn)
	if err != nil {
		t.Fatal(err)
	}
	return look
}

// TestALookAheadIsForItsCommand: what it found is good for the command that names it, at
// once and of the same peer; any other is looked at for itself.
func TestALookAheadIsForItsCommand(t *testing.T) {
	b := newBench(t)
	changed := func(w string) {
		if err := program(w+"/bin/tool", "exit 1"); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("at once", func(t *testing.T) {
		for range 20 { // on a busy host the command may come too late
			p, s, w := b.seenOnce(t, nil)
			look := lookAhead(t, p, b.conn)
			time.Sleep(5 * time.Millisecond)
			changed(w)
			if err := b.toItsGate(t, p, s.Command, look); err == nil {
				return
			} else if !errors.Is(err, sandbox.ErrStale) {
				t.Fatal(err)
			}
		}
		t.Error("no command of 20 rested on what the look ahead of it had found; want one")
	})
	t.Run("later", func(t *testing.T) {
		p, s, w := b.seenOnce(t, nil)
		look := lookAhead(t, p, b.conn)
		time.Sleep(60 * time.Millisecond) // longer than the look is good for
		changed(w)
		b.obeysUnless(t, p, s.Command, look, true)
	})
	t.Run("of another command", func(t *testing.T) {
		p, s, w := b.seenOnce(t, nil)
		lookAhead(t, p, b.conn)
		time.Sleep(10 * time.Millisecond) // the look is over by then, or the command does not wait for it
		changed(w)
		b.obeysUnless(t, p, s.Command, 0, true)
	})
	t.Run("of one that was never made", func(t *testing.T) {
		p, s, w := b.seenOnce(t, nil)
		changed(w)
		b.obeysUnless(t, p, s.Command, lookAhead(t, p, b.conn)+1, true)
	})
	t.Run("of another user", func(t *testing.T) {
		p, s, _ := b.seenOnce(t, nil)
		b.obeysUnless(t, p, s.Command, lookAhead(t, p, connOf(t, testUID+1)), false)
	})
	t.Run("of what is gone", func(t *testing.T) {
		p, _, _ := b.seenOnce(t, nil)
		lookAhead(t, p, b.conn)
		if err := p.Abort(t.Context()); err != nil {
			t.Errorf("Abort() = %v; want none", err)
		}
		lookAhead(t, p, b.conn) // there is no command that could tell
	})
}

func mkdir(t *testing.T, name string) {
	t.Helper()
	if err := os.Mkdir(name, 0o755); err != nil {
		t.Fatal(err)
	}
}

func program(name, script string) error {
	return errors.Join(os.WriteFile(name, []byte("#!/bin/sh\n"+script+"\n"), 0o755), os.Chmod(name, 0o755))
}

// TestPreparedForOne: the pen of one user takes no command of another.
func TestPreparedForOne(t *testing.T) {
	b := newBench(t)
	s := b.spec(testProfile(), "/bin/true")
	p := b.prepare(t, s)
	if err := p.Send(t.Context(), connOf(t, testUID+1), s.Command, sandbox.OnLook, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Launch(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot give a pen of uid") {
		t.Errorf("Launch() for another user = %v; want a refusal", err)
	}
}

// TestPreparedStillHolds: what was changed from outside of what confines a pen that waits
// keeps it from its command.
func TestPreparedStillHolds(t *testing.T) {
	b := newBench(t)
	for name, change := range map[string]func(t *testing.T, s sandbox.Spec, pid int){
		"a limit": func(t *testing.T, _ sandbox.Spec, pid int) {
			t.Helper()
			c := exec.CommandContext(t.Context(), "prlimit", "--pid", itoa(pid), "--nofile=10:10")
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUID, Gid: testUID}} // the target's own user may
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("prlimit = %v: %s", err, out)
			}
		},
		"its cgroup": func(t *testing.T, s sandbox.Spec, pid int) {
			t.Helper()
			move := b.base + "/" + s.Site.Cgroup + "/init/cgroup.procs"
			if err := os.WriteFile(move, []byte(itoa(pid)), 0); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := testProfile()
			f.Rlimits = []sandbox.Rlimit{{Name: "nofile", Value: 100}}
			s := b.spec(f, "/bin/true")
			p := b.prepare(t, s)
			change(t, s, onlyPid(t, jobOf(b, s)))
			if _, err := b.obey(t.Context(), p, s.Command); err == nil {
				t.Error("Launch() = nil; want an error")
			}
		})
	}
}

package stage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
	"pinfold/test/testkit"
)

// rootDir is a directory of root's below directories that only root can write to.
func rootDir(t *testing.T) string {
	t.Helper()
	testkit.NeedRoot(t)
	dir, err := os.MkdirTemp("", "pinfold-heir-") //nolint:usetesting // below a sticky directory, and no other
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func program(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

// TestUnspoiled: a program that somebody else could have put there is none.
func TestUnspoiled(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(dir string) error
		want string // in the error; empty: none
	}{
		{"as it is", func(string) error { return nil }, ""},
		{"others may write", func(d string) error { return os.Chmod(d+"/a/prog", 0o702) }, "others may write to"},
		{"its group may write", func(d string) error { return os.Chmod(d+"/a/prog", 0o720) }, "others may write to"},
		{"another's", func(d string) error { return os.Chown(d+"/a/prog", 1000, 0) }, "belongs to uid 1000"},
		{"in another's directory", func(d string) error { return os.Chown(d+"/a", 1000, 0) }, "belongs to uid 1000"},
		{"in an open directory", func(d string) error { return os.Chmod(d+"/a", 0o777) }, "others may write to"},
		{"in a sticky directory", func(d string) error { return os.Chmod(d+"/a", 0o777|os.ModeSticky) }, "others may write to"},
		{"below an open directory", func(d string) error { return os.Chmod(d, 0o777) }, "others may write to"},
		{"below a sticky directory", func(d string) error { return os.Chmod(d, 0o777|os.ModeSticky) }, ""},
		{"not to be executed", func(d string) error { return os.Chmod(d+"/a/prog", 0o600) }, "may not be executed"},
		{"gone", func(d string) error { return os.Remove(d + "/a/prog") }, "no such file"},
		{"a directory", func(d string) error {
			return errors.Join(os.Remove(d+"/a/prog"), os.Rename(d+"/b", d+"/a/prog"))
		}, "not a regular file"},
		{"through a link", func(d string) error {
			return errors.Join(os.Rename(d+"/a/prog", d+"/b/prog"), os.Symlink("../b/prog", d+"/a/prog"))
		}, ""},
		{"through another's link", func(d string) error {
			return errors.Join(os.Rename(d+"/a/prog", d+"/b/prog"), os.Symlink("../b/prog", d+"/a/prog"), os.Lchown(d+"/a/prog", 1000, 0))
		}, "belongs to uid 1000"},
		{"through a link to an open directory", func(d string) error {
			return errors.Join(os.Rename(d+"/a/prog", d+"/b/prog"), os.Symlink(d+"/b/prog", d+"/a/prog"), os.Chmod(d+"/b", 0o777))
		}, "others may write to"},
		{"a link to itself", func(d string) error {
			return errors.Join(os.Remove(d+"/a/prog"), os.Symlink("prog", d+"/a/prog"))
		}, "too many levels"},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := rootDir(t)
			if err := errors.Join(os.Mkdir(dir+"/a", 0o700), os.Mkdir(dir+"/b", 0o700)); err != nil {
				t.Fatal(err)
			}
			program(t, dir+"/a/prog", "#!/bin/sh\n")
			if err := row.do(dir); err != nil {
				t.Fatal(err)
			}
			got, err := unspoiled(dir + "/a/prog")
			if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("unspoiled() = %q, %v; want an error with %q", got, err, row.want)
			}
		})
	}
}

// TestASuccessorIsAsThisStageWasTold: its program, arguments, environment, directory,
// umask, session and descriptors; one at a time.
func TestASuccessorIsAsThisStageWasTold(t *testing.T) {
	dir := rootDir(t)
	program(t, dir+"/prog", `#!/bin/sh
exec >&4
echo "args $0 $*"; echo "env $(env | sort | tr '\n' ' ')"; echo "dir $(pwd)"; echo "umask $(umask)"
echo "fds $(ls /proc/self/fd | tr '\n' ' ')"; echo "sid $(cut -d' ' -f6 /proc/$$/stat) $$"
exec 4>&-
read -r _ <&3
`)
	h := heirs{}
	c := &sandbox.Successor{Path: dir + "/prog", Args: []string{"p", "--one", "two words"}, Env: []string{"A=1", "PATH=" + os.Getenv("PATH")}, Dir: dir, Umask: 0o27}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	hold, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	passed := []int{linux.FD(hold), linux.FD(w)}
	before := unix.Umask(0o22)
	unix.Umask(before)
	a, files, err := h.start(c, passed)
	if err != nil {
		t.Fatalf("start() = %v; want a successor", err)
	}
	defer linux.CloseAll(files...)
	heir, ok := a.(stagewire.Succeeded)
	if !ok {
		t.Fatalf("start() = %T; want a successor", a)
	}
	pid := heir.Pid
	if parent := parentOf(t, pid); parent == os.Getpid() || parentOf(t, parent) == os.Getpid() {
		t.Error("the successor is a child of its stage; want it to be nobody's, as a service manager wants its main process")
	}
	if _, _, err := h.start(c, passed); err == nil || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("a second start() = %v; want it refused", err)
	}
	linux.CloseAll(w)
	said, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"args " + dir + "/prog --one two words\n", "env A=1 ", "dir " + dir + "\n", "umask 0027\n", fmt.Sprintf("sid %d %d\n", pid, pid),
	} {
		if !strings.Contains(string(said), want) {
			t.Errorf("the successor says\n%s; want %q", said, want)
		}
	}
	known := append(inheritable(t), "0", "1", "2", "3", "4", "5") // 5: the directory that ls reads
	_, fds, _ := strings.Cut(string(said), "fds ")
	fds, _, _ = strings.Cut(fds, "\n")
	for n := range strings.FieldsSeq(fds) {
		if !slices.Contains(known, n) {
			t.Errorf("the successor has descriptor %s; want none but %q", n, known)
		}
	}
	if now := unix.Umask(before); now != before {
		t.Errorf("the umask of this process = %#o; want %#o as before", now, before)
	}
	linux.CloseAll(held, hold)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		h.mu.Lock()
		runs := h.runs
		h.mu.Unlock()
		if !runs {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the successor has not ended; want its stage to see that")
		}
	}
}

func parentOf(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	n, err := strconv.Atoi(f[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// inheritable are descriptors that this process was started with and that every child gets.
func inheritable(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			out = append(out, e.Name())
		}
	}
	return out
}

// TestNoMessageSaysWhatSucceeds: whoever has the daemon names no program, no arguments
// and no environment, and gets nothing from a stage that was told of none.
func TestNoMessageSaysWhatSucceeds(t *testing.T) {
	dir := rootDir(t)
	mine, theirs := filepath.Join(dir, "mine"), filepath.Join(dir, "theirs")
	program(t, mine, "#!/bin/sh\necho ran >>"+dir+"/ran-mine\n")
	program(t, theirs, "#!/bin/sh\necho ran >>"+dir+"/ran-theirs\n")
	h := newHostileWith(t, "/sys/fs/cgroup/none", func(c *Config) {
		c.Successor = &sandbox.Successor{Path: mine, Args: []string{mine}, Dir: "/"}
	})
	path, err := json.Marshal(theirs)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{
		`{"path":%s}`, `{"Path":%s}`, `{"args":[%s]}`, `{"env":[%s]}`, `{"successor":{"path":%s}}`, `[%s]`, `%s`, `{"dir":%s}`,
	} {
		m := h.send(t, []byte(`{"id":1,"op":"succeed","body":`+strings.ReplaceAll(body, "%s", string(path))+`}`))
		if m.Error == nil || !strings.Contains(m.Error.Say, "was said when") || h.files != 0 {
			t.Errorf("answer to %s = %+v with %d files; want a no to what it says", body, m, h.files)
		}
	}
	// As it must be asked, but with one descriptor in place of two.
	if m := h.send(t, []byte(`{"id":2,"op":"succeed","body":{}}`)); m.Error == nil || !strings.Contains(m.Error.Say, "1 descriptors") {
		t.Errorf("answer with one descriptor = %+v; want a no", m)
	}
	if left, err := filepath.Glob(dir + "/ran-*"); err != nil || !slices.Equal(left, []string(nil)) {
		t.Errorf("what ran: %q, %v; want nothing", left, err)
	}
	if m := newHostile(t).send(t, []byte(`{"id":1,"op":"succeed","body":{}}`)); m.Error == nil || !strings.Contains(m.Error.Say, "not told how") {
		t.Errorf("answer of a stage that knows none = %+v; want a no", m)
	}
}

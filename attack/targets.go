package attack

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Targets are things of the host at which attacks aim, made for them: none of the
// host's own is touched.
type Targets struct {
	Scene  Scene
	undo   []func() error
	victim *exec.Cmd
}

// NewTargets makes them below dir, a directory of the caller's alone or of root's. The
// victim runs with the ids of who, nil for the caller's own. self is the path of this
// program. The caller closes them, also after an error.
func NewTargets(dir, self string, who *syscall.Credential) (*Targets, error) {
	t := &Targets{}
	pid := os.Getpid()
	word := "pinfold-attack-" + strconv.Itoa(pid) + "-" + rand.Text()
	t.Scene = Scene{
		Self: self, File: self, Word: word, View: "/usr", One: 1,
		Sock: filepath.Join(dir, "target"), Tmp: "/tmp/" + word, Key: 0x70660000 | pid&0xffff,
	}
	for _, make := range []func() error{t.loopback, t.sockets, t.segments, t.files, t.terminal, func() error { return t.victimAs(who) }} {
		if err := make(); err != nil {
			return t, fmt.Errorf("cannot make what attacks aim at: %w", err)
		}
	}
	return t, nil
}

// Close removes them, the newest first.
func (t *Targets) Close() error {
	var errs []error
	for i := range t.undo {
		errs = append(errs, t.undo[len(t.undo)-1-i]())
	}
	return errors.Join(errs...)
}

func (t *Targets) later(f func() error) { t.undo = append(t.undo, f) }

func (t *Targets) loopback() error {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	t.later(l.Close)
	t.Scene.Port = l.Addr().(*net.TCPAddr).Port //nolint:errcheck,forcetypeassert // a TCP listener has such an address
	l6, err := net.ListenTCP("tcp6", &net.TCPAddr{IP: net.IPv6loopback})
	if err != nil {
		return nil //nolint:nilerr // the host has no IPv6: attack network/loopback6 says so
	}
	t.later(l6.Close)
	t.Scene.Port6 = l6.Addr().(*net.TCPAddr).Port //nolint:errcheck,forcetypeassert // likewise
	return nil
}

// sockets listen by a path and by an abstract name, one of each kind.
func (t *Targets) sockets() error {
	for _, k := range kinds() {
		for _, name := range []string{t.Scene.Sock + "-" + k.name, "@" + t.Scene.Word + "-" + k.name} {
			if err := t.listen(k.kind, name); err != nil {
				return fmt.Errorf("socket %s: %w", name, err)
			}
		}
	}
	return nil
}

func (t *Targets) listen(kind int, name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	t.later(func() error { return unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		return err
	}
	if !strings.HasPrefix(name, "@") {
		t.later(func() error { return os.Remove(name) })
		if err := os.Chmod(name, 0o666); err != nil {
			return err
		}
	}
	if kind == unix.SOCK_DGRAM {
		return nil
	}
	return unix.Listen(fd, 16)
}

// segments are shared memory, a semaphore and queues, open to everybody.
func (t *Targets) segments() error {
	key := uintptr(t.Scene.Key)
	const mode = unix.IPC_CREAT | unix.IPC_EXCL | 0o666
	for _, c := range []struct {
		get, drop uintptr
		args      []uintptr
		remove    []uintptr
	}{
		{unix.SYS_SHMGET, unix.SYS_SHMCTL, []uintptr{key, 4096, mode}, []uintptr{unix.IPC_RMID, 0}},
		{unix.SYS_SEMGET, unix.SYS_SEMCTL, []uintptr{key, 1, mode}, []uintptr{0, unix.IPC_RMID}},
		{unix.SYS_MSGGET, unix.SYS_MSGCTL, []uintptr{key, mode, 0}, []uintptr{unix.IPC_RMID, 0}},
	} {
		id, _, e := unix.Syscall(c.get, c.args[0], c.args[1], c.args[2])
		if e != 0 {
			return fmt.Errorf("a SysV object: %w", e)
		}
		t.later(func() error { return call(c.drop, id, c.remove[0], c.remove[1]) })
	}
	name := text(t.Scene.Word)
	fd, _, e := unix.Syscall6(unix.SYS_MQ_OPEN, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o666, 0, 0, 0)
	if e != 0 {
		return fmt.Errorf("a POSIX queue: %w", e)
	}
	t.later(func() error { return errors.Join(unix.Close(int(fd)), call(unix.SYS_MQ_UNLINK, text(t.Scene.Word))) })
	return unix.Fchmod(int(fd), 0o666)
}

// files lie in the two directories that everybody shares.
func (t *Targets) files() error {
	for _, name := range []string{t.Scene.Tmp, "/dev/shm/" + t.Scene.Word} {
		if err := newFile(name); err != nil {
			return err
		}
		t.later(func() error { return os.Remove(name) })
	}
	return nil
}

// newFile makes a file for everybody in a directory where everybody may make others:
// a new one, through no link that somebody has put there, by a name that nobody knows.
func newFile(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString("x")
	return errors.Join(err, f.Chmod(0o666), f.Close())
}

func (t *Targets) terminal() error {
	master, slave, err := OpenPty()
	if err != nil {
		return err
	}
	t.later(func() error { return errors.Join(master.Close(), slave.Close()) })
	t.Scene.Pts = slave.Name()
	return nil
}

// victimAs starts a process that does nothing until its input ends.
func (t *Targets) victimAs(who *syscall.Credential) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	t.victim = exec.Command(t.Scene.Self, VictimArg) //nolint:noctx // it ends with its input
	t.victim.Stdin = r
	t.victim.SysProcAttr = &syscall.SysProcAttr{Credential: who, Pdeathsig: syscall.SIGKILL}
	err = errors.Join(t.victim.Start(), r.Close())
	t.later(func() error {
		err := w.Close()
		if t.victim.Process != nil {
			_ = t.victim.Wait() // a control run may have killed it
		}
		return err
	})
	if err == nil {
		t.Scene.Victim = t.victim.Process.Pid
	}
	return err
}

// Arguments with which this program is a target.
const (
	VictimArg    = "attack-victim"    // on the host
	NeighbourArg = "attack-neighbour" // in another pen
)

// Victim waits for the end of its input.
func Victim(in io.Reader) error {
	_, err := io.Copy(io.Discard, in)
	return err
}

// Neighbour makes things in its own pen, says so, and waits for the end of its input.
func Neighbour(in io.Reader, out io.Writer) error {
	t := &Targets{}
	err := t.listen(unix.SOCK_STREAM, "@"+PenName)
	for _, dir := range []string{"/tmp/", "/dev/shm/"} {
		err = errors.Join(err, os.WriteFile(dir+PenName, nil, 0o600))
	}
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, Ready+"\n"); err != nil {
		return err
	}
	return errors.Join(Victim(in), t.Close())
}

// Ready is what a neighbour says when there is something to find.
const Ready = "ready"

// Survivors lists the kinds of children that attacks of a scene left behind and that
// still live, by their command lines.
func Survivors(word string) (map[string]int, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	found := map[string]int{}
	for _, dir := range all {
		line, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(string(bytes.TrimSuffix(line, []byte{0})), "\x00")
		if len(args) < 4 || args[1] != LingerArg || args[3] != word {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return nil, err
		}
		found[args[2]] = pid
	}
	return found, nil
}

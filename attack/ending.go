package attack

import (
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// LingerArg is the first argument with which this program is a child that an attack
// leaves behind; a kind and the scene's word follow.
const LingerArg = "attack-linger"

// ending: what a process leaves behind ends with it.
func ending() []Attack {
	var all []Attack
	add := func(kind, tries string) {
		all = append(all, Attack{ID: kind, Layer: Cgroup, Tries: tries, Want: []string{"gone"}, Ends: true, Control: user(), try: func(s *Scene) error { return leave(s, kind) }})
	}
	add("child", "leave a child")
	add("session", "leave a child in a session of its own")
	add("double-fork", "leave a grandchild whose parent has ended")
	add("ignores-signals", "leave a child that ignores every signal that it can")
	add("stopped", "leave a child that is stopped")
	add("closed", "leave a child without any descriptor")
	return class(Ending, all...)
}

// Linger is that child: it says that it is there and waits to be killed. Of a double
// fork the second one does.
func Linger(kind, word string, again bool) error {
	tell := os.NewFile(3, "told")
	if kind == "double-fork" && !again {
		return errors.Join(starting(kind, word, tell, "again"), tell.Close())
	}
	if kind == "ignores-signals" {
		signal.Ignore() // every one that a process can
	}
	if _, err := tell.WriteString("x"); err != nil {
		return err
	}
	if err := tell.Close(); err != nil {
		return err
	}
	switch kind {
	case "stopped":
		if err := unix.Kill(os.Getpid(), unix.SIGSTOP); err != nil { // another thread may take it: this one goes on for a moment
			return err
		}
	case "closed":
		for fd := range 3 {
			if err := unix.Close(fd); err != nil {
				return err
			}
		}
	}
	for {
		if err := unix.Pause(); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func leave(s *Scene, kind string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	if err := errors.Join(starting(kind, s.Word, w), w.Close()); err != nil {
		return lacking("a child: " + told(err))
	}
	if _, err := r.Read(make([]byte, 1)); err != nil {
		return lacking("a child that runs: " + told(err))
	}
	return nil // whether it lives on is seen from outside
}

// starting starts a child that lingers; tell is its descriptor 3.
func starting(kind, word string, tell *os.File, more ...string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n := null.Fd()
	_, err = syscall.ForkExec(self, append([]string{self, LingerArg, kind, word}, more...), &syscall.ProcAttr{
		Files: []uintptr{n, n, n, tell.Fd()}, Sys: &syscall.SysProcAttr{Setsid: kind != "child"},
	})
	return err
}

// Settle completes the answers of attacks that leave something behind, once the pen has
// ended: "gone", or empty where the child lives on.
func Settle(told map[string]string, word string) error {
	alive, err := Survivors(word)
	if err != nil {
		return err
	}
	for _, a := range ending() {
		if answer, made := told[a.ID]; made && answer == "" && alive[strings.TrimPrefix(a.ID, string(Ending)+"/")] == 0 {
			told[a.ID] = "gone"
		}
	}
	return nil
}

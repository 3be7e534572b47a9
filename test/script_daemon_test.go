package test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// daemonKey is where a script keeps its running daemons.
const daemonKey = "daemons"

const (
	readyLimit = 20 * time.Second
	stopGrace  = 7 * time.Second // the default stop timeout and two seconds
)

// daemons are those that one script has started.
type daemons struct {
	running []*runningDaemon
}

// runningDaemon is one pinfoldd and its log.
type runningDaemon struct {
	cmd *exec.Cmd
	log *lockedBuffer
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// cmdDaemon starts pinfoldd at $SOCK with $STATE and waits until it is ready:
// daemon [flags…]. With `! daemon` it must end with an error; its log is stderr.
func cmdDaemon(ts *testscript.TestScript, neg bool, args []string) {
	args = append([]string{"--socket", ts.Getenv("SOCK"), "--state", ts.Getenv("STATE")}, args...)
	d, err := launchDaemon(ts, exec.Command(filepath.Join(ts.Getenv("BIN"), "pinfoldd"), append(args, "--ready-fd", "3")...))
	switch {
	case neg && err == nil:
		ts.Fatalf("pinfoldd %v got ready; want an error", args)
	case neg:
		fmt.Fprint(ts.Stderr(), d.log.String())
	case err != nil:
		ts.Fatalf("pinfoldd %v: %v\n%s", args, err, d.log.String())
	}
}

// launchDaemon starts cmd with a readiness pipe at descriptor 3, and whatever is in
// ExtraFiles after it.
func launchDaemon(ts *testscript.TestScript, cmd *exec.Cmd) (*runningDaemon, error) {
	ready, told, err := os.Pipe()
	ts.Check(err)
	defer func() { _ = ready.Close() }()
	d := &runningDaemon{cmd: cmd, log: &lockedBuffer{}}
	d.cmd.Env = append(os.Environ(), "PATH="+ts.Getenv("PATH"), "TMPDIR="+ts.Getenv("TMPDIR"))
	d.cmd.Dir = ts.Getenv("WORK")
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.ExtraFiles = append(d.cmd.ExtraFiles, told)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	ts.Check(d.cmd.Start())
	ts.Check(told.Close())
	ts.Check(ready.SetReadDeadline(time.Now().Add(readyLimit)))
	line, err := bufio.NewReader(ready).ReadString('\n')
	if err != nil || line != "READY\n" {
		_ = d.cmd.Process.Kill()
		return d, fmt.Errorf("not ready: read %q: %w", line, errors.Join(err, d.cmd.Wait()))
	}
	all, ok := ts.Value(daemonKey).(*daemons)
	if !ok {
		ts.Fatalf("the script has no list of daemons")
	}
	all.running = append(all.running, d)
	ts.Defer(func() { d.end(ts) })
	return d, nil
}

// cmdHalt ends the last daemon with SIGTERM: it must exit 0 within its grace. Its
// log is then standard error.
func cmdHalt(ts *testscript.TestScript, neg bool, args []string) {
	all, ok := ts.Value(daemonKey).(*daemons)
	if neg || len(args) > 0 || !ok || len(all.running) == 0 {
		ts.Fatalf("usage: halt, after daemon")
	}
	d := all.running[len(all.running)-1]
	all.running = all.running[:len(all.running)-1]
	ts.Check(d.cmd.Process.Signal(syscall.SIGTERM))
	if err := d.wait(stopGrace); err != nil {
		ts.Fatalf("pinfoldd after SIGTERM: %v; want exit 0 within %s\n%s", err, stopGrace, d.log.String())
	}
	fmt.Fprint(ts.Stderr(), d.log.String())
}

// wait waits for the daemon's end. After the limit its goroutines are printed to its
// log, and it is killed.
func (d *runningDaemon) wait(limit time.Duration) error {
	dumper := time.AfterFunc(limit, func() { _ = d.cmd.Process.Signal(syscall.SIGQUIT) })
	killer := time.AfterFunc(limit+time.Second, func() { _ = d.cmd.Process.Kill() })
	err := d.cmd.Wait()
	killer.Stop()
	if !dumper.Stop() {
		return fmt.Errorf("it did not end within %s", limit)
	}
	return err
}

// end ends a daemon that the script has left running.
func (d *runningDaemon) end(ts *testscript.TestScript) {
	if d.cmd.ProcessState != nil {
		return
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	if err := d.wait(stopGrace); err != nil {
		ts.Logf("pinfoldd at the end of the script: %v", err)
	}
	ts.Logf("log of pinfoldd:\n%s", d.log.String())
}

// cmdPassed starts pinfoldd with a listening socket at descriptor 3, as the service
// manager does: passed [flags…].
func cmdPassed(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("usage: passed [flags…]")
	}
	socket := listenFile(ts, ts.Getenv("SOCK"))
	defer func() { _ = socket.Close() }()
	words := append([]string{
		"-c", `LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=pinfold exec "$0" "$@"`,
		filepath.Join(ts.Getenv("BIN"), "pinfoldd"), "--state", ts.Getenv("STATE"), "--ready-fd", "4",
	}, args...)
	cmd := exec.Command("sh", words...)
	cmd.ExtraFiles = []*os.File{socket}
	if d, err := launchDaemon(ts, cmd); err != nil {
		ts.Fatalf("pinfoldd with a passed socket: %v\n%s", err, d.log.String())
	}
}

// cmdAs runs a program under another uid: as UID PROGRAM ARGS… Its output is the
// script's.
func cmdAs(ts *testscript.TestScript, neg bool, args []string) {
	var uid uint32
	if len(args) < 2 {
		ts.Fatalf("usage: as UID PROGRAM ARGS…")
	}
	if _, err := fmt.Sscan(args[0], &uid); err != nil {
		ts.Fatalf("as: %v", err)
	}
	program := args[1]
	if path := filepath.Join(ts.Getenv("BIN"), program); !strings.Contains(program, "/") && exists(path) {
		program = path
	}
	cmd := exec.Command(program, args[2:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=/nonexistent", "TMPDIR=/tmp"}
	cmd.Stdout, cmd.Stderr = ts.Stdout(), ts.Stderr()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	err := cmd.Run()
	if (err != nil) != neg {
		ts.Fatalf("as %v: %v; want failure %v", args, err, neg)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// cmdBackground starts a program that goes on while the script does, with its
// output in a file: bgproc FILE PROGRAM ARGS… It is ended with the script.
func cmdBackground(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: bgproc FILE PROGRAM ARGS…")
	}
	out, err := os.Create(ts.MkAbs(args[0]))
	ts.Check(err)
	defer func() { _ = out.Close() }()
	cmd := exec.Command(filepath.Join(ts.Getenv("BIN"), args[1]), args[2:]...)
	cmd.Env = append(os.Environ(), "TMPDIR="+ts.Getenv("TMPDIR"))
	cmd.Stdout, cmd.Stderr = out, out
	ts.Check(cmd.Start())
	ts.Defer(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		killer := time.AfterFunc(stopGrace, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		killer.Stop()
	})
}

// cmdWaitFile waits until a file holds a text: waitfile FILE TEXT.
func cmdWaitFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waitfile FILE TEXT")
	}
	deadline := time.Now().Add(readyLimit)
	for {
		data, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && strings.Contains(string(data), args[1]) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("waitfile %s: no %q after %s; it holds %q, %v", args[0], args[1], readyLimit, data, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

var _ io.Writer = (*lockedBuffer)(nil)

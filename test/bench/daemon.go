package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// benchPolicy has one profile with every layer.
const benchPolicy = `version: 1
callers:
  - name: bench
    match: { users: ["*"] }
    profiles: [all]
    run_as: dynamic
    quota: { processes: 4096, sessions: 64 }
profiles:
  all:
    commands: ["true", echo, cat, sleep, sh, "yes", head]
    workspace: { else: scratch }
    fs: { read: [/usr, /bin, /sbin, /lib, /lib64], write: ["${workspace}"], tmp: { size: 64MiB, exec: true } }
    cgroup: { memory: 1GiB, pids: 256 }
    output: { limit: 16GiB }
    timeout: { wall: off }
`

// daemon is a pinfoldd with the policy above.
type daemon struct {
	cmd    *exec.Cmd
	dir    string
	socket string
	log    logged
	env    []string
}

// logged is what the daemon says, written while it is read.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write takes a piece.
func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is all so far.
func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// startDaemon starts a daemon with env beside our own environment.
func startDaemon(ctx context.Context, bin string, env ...string) (*daemon, error) {
	dir, err := os.MkdirTemp("", "pinfold-bench-")
	if err != nil {
		return nil, err
	}
	d := &daemon{dir: dir, socket: filepath.Join(dir, "s"), env: env}
	if err := d.start(ctx, bin); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return d, nil
}

func (d *daemon) start(ctx context.Context, bin string) error {
	file := filepath.Join(d.dir, "policy.yaml")
	if err := os.WriteFile(file, []byte(benchPolicy), 0o600); err != nil {
		return err
	}
	ready, told, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = ready.Close() }()
	d.cmd = exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(bin, "pinfoldd"),
		"--socket", d.socket, "--state", filepath.Join(d.dir, "state"), "--policy", file, "--ready-fd", "3")
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	d.cmd.Env = append(os.Environ(), d.env...)
	d.cmd.ExtraFiles = []*os.File{told}
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = errors.Join(d.cmd.Start(), told.Close())
	if err != nil {
		return err
	}
	buf := make([]byte, len("READY\n"))
	if n, err := ready.Read(buf); string(buf[:n]) != "READY\n" {
		return errors.Join(fmt.Errorf("cannot start pinfoldd: %w\n%s", err, d.log.String()), d.cmd.Process.Kill(), d.cmd.Wait())
	}
	return nil
}

func (d *daemon) stop() error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return errors.Join(d.cmd.Wait(), os.RemoveAll(d.dir))
}

// session opens a session.
func (d *daemon) session(ctx context.Context) (*client.Client, error) {
	c, err := client.Dial(ctx, d.socket)
	if err != nil {
		return nil, err
	}
	if _, err := c.Handshake(ctx, &proto.Handshake{AgentID: "bench"}); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// spawned runs one command to its end and returns when it began and ended, and when
// its first output came.
func spawned(ctx context.Context, c *client.Client, argv ...string) (total, answered, first time.Duration, err error) {
	return spawnedWith(ctx, c, proto.StdinNull, argv...)
}

// alternating spawns with another kind of standard input each time: a session makes
// no pen ready for what it does not do twice in a row.
func alternating(c *client.Client, argv ...string) func(ctx context.Context) (total, answered, first time.Duration, err error) {
	n := 0
	return func(ctx context.Context) (total, answered, first time.Duration, err error) {
		n++
		return spawnedWith(ctx, c, []proto.StdinMode{proto.StdinNull, proto.StdinPipe}[n%2], argv...)
	}
}

func spawnedWith(ctx context.Context, c *client.Client, stdin proto.StdinMode, argv ...string) (total, answered, first time.Duration, err error) {
	start := time.Now()
	p, err := c.Spawn(ctx, proto.Spawn{Cmd: argv, Profile: "all", StdinMode: stdin})
	if err != nil {
		return 0, 0, 0, err
	}
	answered = time.Since(start)
	for {
		e, err := p.Next(ctx)
		if err != nil {
			return 0, 0, 0, err
		}
		if first == 0 {
			first = time.Since(start)
		}
		if !e.Final() {
			continue
		}
		if v := e.Verdict; v == nil || v.Cause != proto.CauseExited || v.Code != 0 {
			return 0, 0, 0, fmt.Errorf("%s ended with %+v", strings.Join(argv, " "), v)
		}
		return time.Since(start), answered, first, nil
	}
}

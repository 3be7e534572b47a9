package attack

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	ordinary   = 61357           // uid and gid of the ordinary caller
	patience   = 3 * time.Minute // of an emulated host, too
	stopLimit  = 20 * time.Second
	readyLimit = 30 * time.Second
)

// policyText is what the pens of these tests are made of. The last profiles have one
// layer less than those before them.
func policyText(bin, work string) string {
	return strings.NewReplacer("BIN", bin, "WORK", work).Replace(`version: 1
callers:
  - name: root
    match: { uid: 0 }
    profiles: [default, strict]
    run_as: dynamic
  - name: ordinary
    match: { uid: 61357 }
    profiles: [default, default-root, denied, mapped, strict, strict-root, small, shared, shared-at-best, bare, bare-denied, bare-own, net, net-scoped, files, anything, limits]
profiles:
  default:
    commands: [BIN/pinfold]
    workspace: { under: [WORK], else: scratch }
    fs:
      read: [ /usr, /bin, /sbin, /lib, /lib32, /lib64, /etc/ssl, /etc/alternatives, BIN/pinfold ]
      write: [ "${workspace}" ]
      tmp: { size: 64MiB, exec: true }
    timeout: { start: 60s }
  default-root: { extends: default, userns: on, allow_root: true }
  denied:
    extends: default
    fs: { deny: [ "${workspace}/keep/secret", "${workspace}/tree/.git/config", "${workspace}/tree/.git/hooks", "${workspace}/link/.git/config" ] }
  mapped: { extends: denied, run_as: dynamic }
  small: { extends: default, cgroup: { memory: 64MiB } }
  strict:
    commands: [BIN/pinfold, /usr/bin/cat]
    workspace: { under: [WORK], else: scratch }
    fs: { read: [ /usr/share ], write: [ "${workspace}" ] }
    exec: listed
    seccomp: strict
    cgroup: { memory: 256MiB, pids: 64 }
    timeout: { start: 60s }
  strict-root: { extends: strict, userns: on, allow_root: true }
  shared: { extends: default, net: host }
  shared-at-best: { extends: shared, controls: { landlock: best_effort } }
  bare: { extends: default, controls: { landlock: off } }
  bare-denied: { extends: denied, controls: { landlock: off } }
  bare-own: { extends: bare, fs: { read: [ BIN/own ] } }
  net-scoped: { extends: default, net: host }
  net: { extends: default, net: host, controls: { landlock: off } }
  files:
    extends: default
    fs: { read: [ /etc/pam.d, /var/log, /sys/class ], write: [ BIN/view ] }
  anything: { extends: strict, exec: anything, fs: { read: [ BIN/pinfold ] } }
  limits: { extends: default, controls: { cgroup.pids: off } }
`)
}

// daemon is one pinfoldd.
type daemon struct {
	t     *testing.T
	bin   string
	sock  string
	state string
	cmd   *exec.Cmd
	log   bytes.Buffer
}

// start runs pinfoldd with its socket at sock until the test ends.
func start(t *testing.T, bin, work, sock string) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{t: t, bin: bin, sock: sock, state: filepath.Join(dir, "state")}
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(policyText(bin, work)), 0o600); err != nil {
		t.Fatal(err)
	}
	ready, told, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ready.Close() }()
	d.cmd = exec.Command(filepath.Join(bin, "pinfoldd"), "--socket", sock, "--state", d.state, "--policy", policy,
		"--cgroup", "pinfold-test-attack-"+filepath.Base(dir)+"-"+fmt.Sprint(os.Getpid()), "--ready-fd", "3")
	d.cmd.Stderr = &d.log
	d.cmd.ExtraFiles = []*os.File{told}
	if err := errors.Join(d.cmd.Start(), told.Close(), ready.SetReadDeadline(time.Now().Add(readyLimit))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.stop)
	if line, err := bufio.NewReader(ready).ReadString('\n'); err != nil {
		t.Fatalf("pinfoldd = %q, %v; want it ready; its log:\n%s", line, err, d.log.String())
	}
	if err := os.Chmod(sock, 0o666); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *daemon) stop() {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Errorf("SIGTERM to pinfoldd = %v; want none", err)
	}
	killer := time.AfterFunc(stopLimit, func() { _ = d.cmd.Process.Kill() })
	defer killer.Stop()
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("pinfoldd = %v; want exit 0", err)
	}
	if d.t.Failed() {
		d.t.Logf("log of pinfoldd:\n%s", d.log.String())
	}
}

package host

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold/audit"
	"pinfold/proto"
	"pinfold/proto/client"
)

// auditLine is what tests look at of one line of the audit log.
type auditLine struct {
	Kind    string   `json:"kind"`
	UID     *int     `json:"uid"`
	Session string   `json:"session"`
	Process string   `json:"process"`
	Action  string   `json:"action"`
	Allowed bool     `json:"allowed"`
	Code    string   `json:"code"`
	Argv    []string `json:"argv"`
	Env     []string `json:"env"`
	Rule    string   `json:"rule"`
	Step    string   `json:"step"`
	File    string   `json:"file"`
	Program struct{ Path, SHA256 string }
	Verdict json.RawMessage `json:"verdict"`
	raw     string
}

// auditLines are the lines of the daemon's audit log up to now.
func (d *daemon) auditLines() []auditLine {
	d.t.Helper()
	return d.auditLinesOf(filepath.Join(d.state, "audit.log"))
}

// allAuditLines are also those of the files that were closed at a rotation.
func (d *daemon) allAuditLines() (out []auditLine) {
	d.t.Helper()
	closed, err := filepath.Glob(filepath.Join(d.state, "audit.log.d", "*"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, name := range closed {
		out = append(out, d.auditLinesOf(name)...)
	}
	return append(out, d.auditLines()...)
}

func (d *daemon) auditLinesOf(name string) (out []auditLine) {
	d.t.Helper()
	for line := range strings.Lines(readFile(d.t, name)) {
		e := auditLine{raw: strings.TrimSpace(line)}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			d.t.Fatalf("audit line %q = %v; want JSON", line, err)
		}
		out = append(out, e)
	}
	return out
}

// audited says whether a line fits, now or soon.
func (d *daemon) audited(fits func(auditLine) bool) bool {
	d.t.Helper()
	found := false
	eventuallyOrNot(func() bool {
		for _, e := range d.auditLines() {
			found = found || fits(e)
		}
		return found
	})
	return found
}

// TestTheAuditTellsEverySpawn: decision, start and end, with the program's hash and
// without a secret.
func TestTheAuditTellsEverySpawn(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	c := d.agent()
	const secret = "hunter2-hunter2-hunter2"
	s := proto.Spawn{Cmd: []string{"echo", "--password=" + secret, "visible"}, Env: map[string]string{"API_TOKEN": secret, "LANG": "C"}}
	p := spawn(t, c, s)
	output(t, p)
	_, err := c.Spawn(soon(t), proto.Spawn{Cmd: []string{"/usr/bin/mkfifo", "x"}})
	refused(t, "Spawn(mkfifo)", err, proto.CodeDenied)
	runOK(t, c, s) // once more: the hash is computed off the start's path
	for name, fits := range map[string]func(auditLine) bool{
		"session_opened": func(e auditLine) bool {
			return e.Kind == "session_opened" && e.Session != "" && e.UID != nil && *e.UID == 0
		},
		"allowed decision": func(e auditLine) bool {
			return e.Kind == "decision" && e.Allowed && e.Process == p.ID && e.Rule != "" && strings.HasSuffix(e.Program.Path, "/echo") && len(e.Argv) == 3 && e.Argv[2] == "visible"
		},
		"refused decision": func(e auditLine) bool {
			return e.Kind == "decision" && !e.Allowed && e.Code == "denied" && e.Argv[0] == "/usr/bin/mkfifo"
		},
		"start": func(e auditLine) bool { return e.Kind == "started" && e.Process == p.ID },
		"end": func(e auditLine) bool {
			return e.Kind == "ended" && e.Process == p.ID && strings.Contains(string(e.Verdict), `"cause":"exited"`)
		},
		"hash": func(e auditLine) bool { return len(e.Program.SHA256) == 64 || strings.Contains(e.raw, `"sha256":"`) },
	} {
		if !d.audited(fits) {
			t.Errorf("the audit has no line for: %s", name)
		}
	}
	info, err := os.Stat(filepath.Join(d.state, "audit.log"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the audit log = %v, %v; want 0600", info, err)
	}
	d.stop()
	for _, e := range d.auditLines() {
		if strings.Contains(e.raw, secret) {
			t.Errorf("audit line has a secret: %s", e.raw)
		}
	}
	if strings.Contains(d.log.String(), secret) {
		t.Errorf("the daemon's log has a secret")
	}
	if !d.audited(func(e auditLine) bool { return e.Kind == "session_closed" }) {
		t.Errorf("the audit has no session_closed")
	}
}

// TestAFullDiskRefusesNewSpawnsAndRunningOnesGoOn, on a small file system of its own.
func TestAFullDiskRefusesNewSpawnsAndRunningOnesGoOn(t *testing.T) {
	t.Parallel()
	for policyOf, code := range map[string]proto.Code{"refuse": proto.CodeAuditUnavailable, "continue": ""} {
		t.Run(policyOf, func(t *testing.T) {
			d := prepare(t, basic("", "")+"audit: { on_failure: "+policyOf+" }\n")
			disk := filepath.Join(d.dir, "disk")
			if err := os.Mkdir(disk, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mount("pinfold-test", disk, "tmpfs", 0, "size=256k,mode=0755"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(disk, 0); err != nil {
					t.Errorf("umount = %v; want none: nothing holds it", err)
				}
			})
			d.state = filepath.Join(disk, "state")
			if err := d.launch(); err != nil {
				t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
			}
			t.Cleanup(func() { _ = d.cmd.Process.Kill() })
			c := d.agent()
			p := spawn(t, c, proto.Spawn{Cmd: []string{"cat"}})
			fill(t, filepath.Join(disk, "filler"))
			eventually(t, "a spawn tells of the full disk", func() bool {
				q, err := c.Spawn(soon(t), proto.Spawn{Cmd: []string{"echo", "x"}})
				if e, ok := errors.AsType[*client.Error](err); ok {
					if e.Code != proto.CodeAuditUnavailable || !e.Retryable || e.Hint == "" {
						t.Fatalf("Spawn() on a full disk = %v; want audit_unavailable, retryable, with a hint", err)
					}
					return code != ""
				}
				output(t, q)
				return code == "" && strings.Contains(d.log.String(), "audit record")
			})
			if err := p.Write(soon(t), []byte("still here\n")); err != nil {
				t.Errorf("Write() on a full disk = %v; want none", err)
			}
			await(t, p, "still here\n")
			if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
				t.Fatal(err)
			}
			eventually(t, "spawns go again", func() bool {
				q, err := c.Spawn(soon(t), proto.Spawn{Cmd: []string{"echo", "x"}})
				if err == nil {
					output(t, q)
				}
				return err == nil
			})
			if err := p.CloseStdin(soon(t)); err != nil {
				t.Errorf("CloseStdin() = %v; want none", err)
			}
			if _, _, v := output(t, p); v.Code != 0 {
				t.Errorf("verdict of what ran all along = %+v; want exit 0", v)
			}
			if err := c.Close(); err != nil {
				t.Errorf("Close() = %v; want none", err)
			}
			if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := d.cmd.Wait(); err != nil {
				t.Errorf("pinfoldd = %v; want exit 0\n%s", err, d.log)
			}
			r := d.verifyAudit(audit.Head{})
			if r.Gaps == 0 || r.Lost == 0 || r.Head.String() != d.loggedHead("audit ends") {
				t.Errorf("Verify() = %+v; want gaps that tell of lost records, and the head that the log names", r)
			}
			if left, err := d.leftoversBut(disk); err != nil || len(left) > 0 {
				t.Errorf("left %q, %v; want nothing", left, err)
			}
		})
	}
}

// leftoversBut is leftovers without a mount of the test's own.
func (d *daemon) leftoversBut(mount string) ([]string, error) {
	left, err := d.leftovers()
	return slices.DeleteFunc(left, func(l string) bool {
		f := strings.Fields(l)
		return len(f) > 5 && f[0] == "mount" && f[5] == mount
	}), err
}

// fill writes until there is no room.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for size := 4096; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill(%s) = %v; want ENOSPC", path, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// verifyAudit checks that the chain of the daemon's audit log holds, and has a head that was kept.
func (d *daemon) verifyAudit(kept audit.Head) audit.Report {
	d.t.Helper()
	r, err := audit.Verify(filepath.Join(d.state, "audit.log"), kept)
	if err != nil || len(r.Problems) > 0 || len(r.Absent) > 0 || !r.Held {
		d.t.Fatalf("Verify() = %+v, %v; want a chain that holds, with %v in it", r, err, kept)
	}
	return r
}

// loggedHead is the head of the audit record that the daemon's log names last with a message.
func (d *daemon) loggedHead(message string) string {
	d.t.Helper()
	head := ""
	for line := range strings.Lines(d.log.String()) {
		if _, text, ok := strings.Cut(line, message+`" head=`); ok {
			head = strings.TrimSpace(text)
		}
	}
	return head
}

// TestAKilledDaemonKeepsItsAuditChain: a daemon is killed at random moments under load; its chain holds, with a gap for each torn end and no other.
func TestAKilledDaemonKeepsItsAuditChain(t *testing.T) {
	t.Parallel()
	const kills = 20
	d := prepare(t, basic("", ""))
	path := filepath.Join(d.state, "audit.log")
	torn, kept := 0, audit.Head{}
	for i := range kills {
		if err := d.launch(); err != nil {
			t.Fatalf("pinfoldd after %d kills = %v; want it ready\n%s", i, err, d.log)
		}
		var load sync.WaitGroup
		for range 4 {
			load.Go(func() { d.spawnUntilItEnds() })
		}
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		if err := d.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := d.cmd.Wait(); err == nil {
			t.Fatal("a killed daemon exits 0")
		}
		load.Wait()
		if i%5 == 4 { // a record that is longer than a page is written in parts: play that
			appendTo(t, path, `{"v":1,"seq":99,"prev":"half of a rec`)
		}
		if text := readFile(t, path); !strings.HasSuffix(text, "\n") {
			torn++
		}
		if r := d.verifiedBut(i%5 == 4); i > 0 && r.Head.Seq <= kept.Seq {
			t.Errorf("head after %d kills = %v; want it beyond %v", i, r.Head, kept)
		} else if i%5 != 4 {
			kept = r.Head
		}
	}
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	runOK(t, d.agent(), shell("true"))
	d.stop()
	r := d.verifyAudit(kept)
	if r.Gaps != torn || r.Lost != 0 || r.Head.String() != d.loggedHead("audit ends") || torn < kills/5 {
		t.Errorf("Verify() = %+v; want %d gaps, and the head %s", r, torn, d.loggedHead("audit ends"))
	}
}

// verifiedBut is verifyAudit of a log whose end may be torn.
func (d *daemon) verifiedBut(torn bool) audit.Report {
	d.t.Helper()
	r, err := audit.Verify(filepath.Join(d.state, "audit.log"), audit.Head{})
	if len(r.Problems) == 1 && strings.Contains(r.Problems[0].Text, "torn") {
		r.Problems = nil
	} else if torn {
		d.t.Errorf("Verify() = %+v; want the torn end told", r)
	}
	if err != nil || len(r.Problems) > 0 {
		d.t.Fatalf("Verify() = %+v, %v; want a chain that holds up to its end", r, err)
	}
	return r
}

// spawnUntilItEnds spawns until the daemon is gone.
func (d *daemon) spawnUntilItEnds() {
	c, err := client.Dial(soon(d.t), d.sock)
	if err != nil {
		return // it is gone already
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Handshake(soon(d.t), &proto.Handshake{}); err != nil {
		return
	}
	for {
		if _, err := c.Spawn(soon(d.t), proto.Spawn{Cmd: []string{"echo", strings.Repeat("word ", 500)}}); err != nil {
			return
		}
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTheDaemonClosesALargeAuditFile, although it gave up its rights: the chain goes on in the next file.
func TestTheDaemonClosesALargeAuditFile(t *testing.T) {
	t.Parallel()
	d := prepare(t, basic("", ""))
	if err := os.Mkdir(d.state, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(d.state, "audit.log")
	l, err := audit.Open(path, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < audit.DefaultRotate; n += 1_000_000 {
		if err := l.Append(audit.Subject{}, audit.SessionClosed{Reason: strings.Repeat("r", 1_000_000)}); err != nil {
			t.Fatal(err)
		}
	}
	kept := l.Head()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	if got := d.loggedHead("audit begins"); got != kept.String() {
		t.Errorf("head at the start = %q; want %s", got, kept)
	}
	closed := filepath.Join(audit.Dir(path), "audit.log.1")
	eventually(t, "the file is closed", func() bool {
		info, err := os.Stat(path)
		return err == nil && info.Size() < 1<<20
	})
	runOK(t, d.agent(), shell("true"))
	d.stop()
	info, err := os.Stat(closed)
	if err != nil || info.Mode() != 0o600 || info.Size() < audit.DefaultRotate {
		t.Errorf("Stat(%s) = %v, %v; want all of the file, private", closed, info, err)
	}
	if first := d.auditLines()[0]; first.Kind != "continued" || !strings.Contains(first.raw, `"file":"audit.log.1"`) {
		t.Errorf("first record of the next file = %s; want it to name the one before", first.raw)
	}
	if r := d.verifyAudit(kept); r.Files != 2 || r.Gaps != 0 {
		t.Errorf("Verify() = %+v; want two files and no gap", r)
	}
	if strings.Contains(d.log.String(), "cannot close") {
		t.Errorf("the log says that the file could not be closed:\n%s", d.log)
	}
}

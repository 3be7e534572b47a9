package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

const (
	loadVar      = "PINFOLD_TEST_LOAD" // how many spawns TestLoad makes
	loadDefault  = 2000
	loadAtOnce   = 16
	loadPatience = 10 * time.Minute
)

// broken makes programs that pass every check before their exec and fail there.
func broken(t *testing.T) (dir, elf, script string) {
	t.Helper()
	dir, err := os.MkdirTemp("/srv", "pinfold-test-broken-") //nolint:usetesting // where no pen can write
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	elf, script = filepath.Join(dir, "elf"), filepath.Join(dir, "script")
	// A file of another machine: ELF of 64 bits, its machine is none.
	header := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 120)...)
	header[16] = 2
	if err := errors.Join(
		os.Chmod(dir, 0o755),
		os.WriteFile(elf, header, 0o755),
		os.WriteFile(script, []byte("#!/nonexistent/interpreter\n"), 0o755),
	); err != nil {
		t.Fatal(err)
	}
	return dir, elf, script
}

func withBroken(t *testing.T) (policy, elf, script string) {
	t.Helper()
	dir, elf, script := broken(t)
	policy = strings.Replace(basic("", ""), "[python3,", fmt.Sprintf("[%s, %s, python3,", elf, script), 1)
	return strings.Replace(policy, "/etc/ssl,", "/etc/ssl, "+dir+",", 1), elf, script
}

// TestAFailedExecIsToldWithItsStep: what is wrong with a program is said apart.
func TestAFailedExecIsToldWithItsStep(t *testing.T) {
	t.Parallel()
	policy, elf, script := withBroken(t)
	d := start(t, policy)
	c := d.agent()
	_, err := c.Spawn(soon(t), proto.Spawn{Cmd: []string{elf}})
	e := refused(t, "Spawn(a broken ELF file)", err, proto.CodeStartFailed)
	if r, ok := e.Response.(*proto.SpawnResp); !ok || !strings.Contains(r.Stage, "exec") || !strings.Contains(e.Message, "exec") {
		t.Errorf("Spawn(a broken ELF file) = %+v; want the step named", e.Response)
	}
	if !d.audited(func(l auditLine) bool {
		return l.Kind == "start_failed" && strings.Contains(l.Step, "exec") && l.Code == "start_failed"
	}) {
		t.Errorf("the audit has no start_failed with its step")
	}
	_, err = c.Spawn(soon(t), proto.Spawn{Cmd: []string{script}})
	var ce *client.Error
	if !errors.As(err, &ce) || !strings.Contains(ce.Message, "/nonexistent/interpreter") {
		t.Errorf("Spawn(a script without its interpreter) = %v; want the interpreter named", err)
	}
}

// TestLoad makes many spawns, 16 at once, of which one in fifty fails at its exec:
// none gives a wrong answer, and nothing is left. PINFOLD_TEST_LOAD says how many.
func TestLoad(t *testing.T) {
	t.Parallel()
	total := loadDefault
	if v, ok := os.LookupEnv(loadVar); ok {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("%s: %v", loadVar, err)
		}
		total = n
	}
	if testing.Short() {
		total = 200
	}
	policy, elf, _ := withBroken(t)
	d := start(t, policy)
	ctx, cancel := context.WithTimeout(t.Context(), loadPatience)
	defer cancel()
	files := openFiles(t, d.cmd.Process.Pid)
	var next, failed atomic.Int64
	var wg sync.WaitGroup
	for range loadAtOnce {
		c := d.agent()
		wg.Go(func() {
			for {
				i := int(next.Add(1))
				if i > total || ctx.Err() != nil {
					return
				}
				if err := loadOne(ctx, c, i, elf); err != nil {
					t.Errorf("spawn %d: %v", i, err)
					cancel()
					return
				}
				if i%50 == 0 {
					failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		t.Fatalf("after %d spawns: %v", next.Load(), err)
	}
	if want := int64(total / 50); failed.Load() != want {
		t.Errorf("%d spawns failed; want %d", failed.Load(), want)
	}
	eventually(t, "no process's cgroup is left", func() bool {
		left := 0
		for _, caller := range d.below() {
			found, err := filepath.Glob(filepath.Join(caller, "*", "*-*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				if info, err := os.Stat(f); err == nil && info.IsDir() {
					left++
				}
			}
		}
		return left == 0
	})
	procs, err := d.processes()
	if err != nil || len(procs) > 2 { // the daemon and its stage
		t.Errorf("processes = %q, %v; want the daemon and its stage alone", procs, err)
	}
	// A session keeps two files for each process that it can still be asked about.
	const kept = 2 * loadAtOnce * 1024
	if after := openFiles(t, d.cmd.Process.Pid); after > files+kept+100 || after > files+2*total+100 {
		t.Errorf("open files of the daemon = %d, then %d; want only those of kept output", files, after)
	}
}

// loadOne makes one spawn and checks every word of its answer.
func loadOne(ctx context.Context, c *client.Client, i int, elf string) error {
	if i%50 == 0 {
		_, err := c.Spawn(ctx, proto.Spawn{Cmd: []string{elf}, StdinMode: proto.StdinNull})
		var e *client.Error
		if !errors.As(err, &e) || e.Code != proto.CodeStartFailed {
			return fmt.Errorf("broken program: %w; want start_failed", err)
		}
		if r, ok := e.Response.(*proto.SpawnResp); !ok || !strings.Contains(r.Stage, "exec") {
			return fmt.Errorf("broken program: %w; want the step named", err)
		}
		return nil
	}
	code := i % 7
	p, err := c.Spawn(ctx, proto.Spawn{Cmd: []string{"sh", "-c", fmt.Sprintf("echo out %d; echo err %d >&2; exit %d", i, i, code)}, StdinMode: proto.StdinNull})
	if err != nil {
		return err
	}
	var stdout, stderr bytes.Buffer
	v, err := p.Copy(ctx, &stdout, &stderr)
	if err != nil {
		return err
	}
	if stdout.String() != fmt.Sprintf("out %d\n", i) || stderr.String() != fmt.Sprintf("err %d\n", i) || v.Code != code || v.Cause != proto.CauseExited || !v.Output.Drained {
		return fmt.Errorf("got %q, %q, %+v; want its own lines and exit %d", stdout.String(), stderr.String(), v, code)
	}
	return nil
}

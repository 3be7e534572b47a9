package audit

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
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"pinfold/test/testkit"
)

func open(t *testing.T, path string, o Options) *Log {
	t.Helper()
	l, err := Open(path, o)
	if err != nil {
		t.Fatalf("Open(%s) = %v; want nil", path, err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	})
	return l
}

func appendOne(t *testing.T, l *Log, e Event) {
	t.Helper()
	if err := l.Append(Subject{Session: "s", Caller: "c", UID: 7}, e); err != nil {
		t.Fatalf("Append(%+v) = %v; want nil", e, err)
	}
}

// readAll returns the records of a file and the errors, both as text.
func readAll(t *testing.T, path string) (records []Record, bad []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range Read(bytes.NewReader(data)) {
		if err != nil {
			bad = append(bad, err.Error())
			continue
		}
		records = append(records, r)
	}
	return records, bad
}

func events() []Event {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	file := File{Path: "/bin/x", ID: FileID{1, 2, 3, 4, 5}, SHA256: "ab"}
	return []Event{
		&DaemonStarted{Version: "1", PID: 2, BootID: "b", Backend: "hybrid", Sessions: 3, Processes: 4},
		&DaemonStopped{Reason: "SIGTERM"},
		&PolicyLoaded{Files: []string{"/p"}, SHA256: "cd"},
		&Refused{PID: 1, Unit: "u", Code: "unauthorized", Reason: "r"},
		&SessionOpened{Role: "owner", PID: 3, Unit: "u", Rule: "r"},
		&SessionResumed{PID: 9, Unit: "u"},
		&SessionClosed{Reason: "eof"},
		&Decision{Process: "p", Request: "q", Allowed: true, Rule: "r", RuleFile: "f", RuleLine: 3, Profile: "d", Argv: []string{"x"}, Env: []string{"A=1"}, Cwd: "/", Program: file, TimeoutMs: 4, GIDs: []uint32{5}},
		&Started{Process: "p", PID: 9, Profile: "d", Program: file, RunUID: 8, Workspace: "/w", Cgroup: "c", Enforcement: jsontext.Value(`{"a":1}`)},
		&StartFailed{Process: "p", Code: "start_failed", Step: "7", Errno: "EACCES", Reason: "r"},
		&Ended{Process: "p", Verdict: Verdict{Cause: "oom", Signal: "SIGKILL", Usage: Usage{Wall: 1.5, MemoryPeak: 9}, Output: Output{Stdout: 1, Drained: true}, Survivors: []int{4}, StartedAt: at, EndedAt: at}},
		&OperatorUse{Action: "proc/kill/req", Target: "s2", Process: "p", Signal: "SIGTERM"},
		&Program{File: file, Err: "e"},
		&Flood{Of: FloodRefused, Count: 3, Since: at},
		&Gap{Reason: "torn", Offset: 1, Bytes: 2, SHA256: "ef", File: "f", Lost: 3, Since: at, Cause: "c"},
		&SessionAdopted{OpenedAt: at, Processes: 2},
		&Adopted{Process: "p", PID: 3, Cgroup: "c", State: "lost", Reason: "r"},
		&SetAside{File: "f", Now: "g", Reason: "r"},
		&NotUpgraded{Reason: "r"},
		&Sealed{Records: 3, First: 1, Last: 3},
		&Continued{File: "f"},
	}
}

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{Sync: SyncEach})
	for _, e := range events() {
		appendOne(t, l, e)
	}
	records, bad := readAll(t, path)
	if len(bad) > 0 || len(records) != len(events()) {
		t.Fatalf("Read() = %d records, errors %v; want %d and none", len(records), bad, len(events()))
	}
	for i, r := range records {
		want := events()[i]
		got, err := r.Event()
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("Event() of %s = %v, differs (-want +got):\n%s", r.Kind, err, d)
		}
		if r.Seq != uint64(i+1) || r.Line != i+1 || r.Kind != want.kind() || r.Subject != (Subject{Session: "s", Caller: "c", UID: 7}) {
			t.Errorf("record %d = %+v; want seq, line, kind and subject in order", i, r)
		}
		if age := time.Since(r.Time); age < 0 || age > time.Hour {
			t.Errorf("record %d has time %v; want now", i, r.Time)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("Stat(%s) = %v, %v; want mode 0600", path, info.Mode(), err)
	}
}

func TestLineOnDisk(t *testing.T) {
	line, err := encode(Head{Seq: 4, SHA256: "ab"}, time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC), KindSessionClosed, Subject{Session: "s", UID: 0}, []byte(`{"reason":"eof"}`))
	want := `{"v":1,"seq":5,"prev":"ab","time":"2026-01-02T03:04:05.000000678Z","kind":"session_closed","session":"s","uid":0,"reason":"eof"}` + "\n"
	if err != nil || string(line) != want {
		t.Errorf("encode() = %s, %v; want %s", line, err, want)
	}
	if line, err = encode(Head{}, time.Unix(1, 0), KindSessionClosed, Subject{}, []byte(`{}`)); err != nil || !strings.HasSuffix(string(line), `"uid":0}`+"\n") {
		t.Errorf("encode({}) = %s, %v; want one object", line, err)
	}
}

func TestDecisionIsRedacted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{})
	argv := []string{"curl", "--token", "hunter2", "\xff"}
	appendOne(t, l, Decision{Argv: argv, Env: []string{"API_KEY=hunter2"}, Cwd: "/"})
	appendOne(t, l, StartFailed{Reason: "cannot exec --password=hunter2"})
	appendOne(t, l, Refused{Reason: "Bearer hunter2"})
	data, err := os.ReadFile(path)
	if err != nil || bytes.Contains(data, []byte("hunter2")) || bytes.Count(data, []byte(Hidden)) != 4 {
		t.Errorf("file = %s, %v; want no hunter2", data, err)
	}
	if argv[2] != "hunter2" {
		t.Errorf("argv after Append = %q; want it untouched", argv)
	}
}

func TestOpenGoesOn(t *testing.T) {
	whole := `{"v":1,"seq":7,"time":"2026-01-02T03:04:05Z","kind":"session_closed","uid":0}` + "\n"
	tests := []struct {
		name, before string
		kinds        []Kind
		seqs         []uint64
		bad          int
	}{
		{"empty", "", []Kind{KindDaemonStopped}, []uint64{1}, 0},
		{"whole", whole, []Kind{KindSessionClosed, KindDaemonStopped}, []uint64{7, 8}, 0},
		{"torn", whole + `{"v":1,"se`, []Kind{KindSessionClosed, KindGap, KindDaemonStopped}, []uint64{7, 8, 9}, 0},
		{"torn by its newline", whole + strings.TrimSpace(strings.ReplaceAll(whole, ":7", ":8")), []Kind{KindSessionClosed, KindGap, KindDaemonStopped}, []uint64{7, 8, 9}, 0},
		{"torn alone", `{"v":1,"se`, []Kind{KindGap, KindDaemonStopped}, []uint64{1, 2}, 0},
		{"zeros after a power cut", whole + "\x00\x00\x00", []Kind{KindSessionClosed, KindGap, KindDaemonStopped}, []uint64{7, 8, 9}, 0},
		{"foreign last line", whole + "hello\n", []Kind{KindSessionClosed, KindDaemonStopped}, []uint64{7, 8}, 1},
		{"long foreign tail", whole + strings.Repeat("x", 3*tailStep) + "\n", []Kind{KindSessionClosed, KindDaemonStopped}, []uint64{7, 8}, 1},
		{"long torn tail", whole + strings.Repeat("x", 3*tailStep), []Kind{KindSessionClosed, KindGap, KindDaemonStopped}, []uint64{7, 8, 9}, 0},
		{"torn beyond all bounds", whole + strings.Repeat("x", maxTail+5), []Kind{KindSessionClosed, KindGap, KindDaemonStopped}, []uint64{7, 8, 9}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.log")
			if err := os.WriteFile(path, []byte(tt.before), 0o600); err != nil {
				t.Fatal(err)
			}
			l := open(t, path, Options{})
			appendOne(t, l, DaemonStopped{Reason: "r"})
			records, bad := readAll(t, path)
			var kinds []Kind
			var seqs []uint64
			for _, r := range records {
				kinds, seqs = append(kinds, r.Kind), append(seqs, r.Seq)
			}
			if d := cmp.Diff(tt.kinds, kinds) + cmp.Diff(tt.seqs, seqs); d != "" || len(bad) != tt.bad {
				t.Errorf("records = %v %v, bad lines %v; want %v %v and %d bad lines", kinds, seqs, bad, tt.kinds, tt.seqs, tt.bad)
			}
			kept, torn := tt.before[:strings.LastIndex(tt.before, "\n")+1], tt.before[strings.LastIndex(tt.before, "\n")+1:]
			data, err := os.ReadFile(path)
			if err != nil || !bytes.HasPrefix(data, []byte(kept)) {
				t.Errorf("file = %d bytes, %v; want all whole lines that were there before", len(data), err)
			}
			for _, r := range records {
				e, err := r.Event()
				g, ok := e.(*Gap)
				if err != nil || !ok {
					continue
				}
				if g.Bytes != int64(len(torn)) || g.Offset != int64(len(kept)) || g.Reason != "torn" || g.SHA256 != sumOf([]byte(torn)) {
					t.Errorf("gap = %+v; want offset, length and hash of the fragment", g)
				}
				wantFile(t, filepath.Join(Dir(path), g.File), torn)
			}
		})
	}
}

// wantFile checks a private file of the log's.
func wantFile(t *testing.T, path, want string) {
	t.Helper()
	data, err := os.ReadFile(path)
	info, serr := os.Stat(path)
	if err != nil || serr != nil || string(data) != want || info.Mode() != 0o600 {
		t.Errorf("%s = %d bytes, %v, %v; want %d bytes with mode 0600", path, len(data), err, info, len(want))
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	fifo, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Symlink("audit.log", link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, fifo, link, filepath.Join(dir, "absent", "x")} {
		if l, err := Open(path, Options{}); err == nil {
			t.Errorf("Open(%s) = %v, nil; want an error", path, l)
		}
	}
	if _, err := Open(filepath.Join(dir, "a"), Options{Sync: "often"}); err == nil {
		t.Error("Open(sync often) = nil; want an error")
	}
}

func TestAppendFromMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{Sync: SyncInterval, Interval: time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	var wg, serve sync.WaitGroup
	serve.Go(func() {
		if err := l.Serve(ctx); err != nil {
			t.Errorf("Serve() = %v; want nil", err)
		}
	})
	for i := range 8 {
		wg.Go(func() {
			for range 100 {
				if err := l.Append(Subject{UID: uint32(i)}, SessionClosed{Reason: strings.Repeat("x", 100*i)}); err != nil {
					t.Errorf("Append() = %v; want nil", err)
				}
			}
		})
	}
	wg.Wait()
	cancel()
	serve.Wait()
	records, bad := readAll(t, path)
	if len(records) != 800 || len(bad) != 0 {
		t.Errorf("Read() = %d records, errors %v; want 800 and none", len(records), bad)
	}
}

func TestTooLongEventIsRefusedAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{})
	if err := l.Append(Subject{}, SessionClosed{Reason: strings.Repeat("x", maxRecord)}); err == nil || errors.Is(err, ErrUnavailable) {
		t.Errorf("Append(2^20 bytes) = %v; want an error that is not ErrUnavailable", err)
	}
	if err := l.Healthy(); err != nil {
		t.Errorf("Healthy() = %v; want nil", err)
	}
}

func TestClosedLogIsUnavailable(t *testing.T) {
	l, err := Open(filepath.Join(t.TempDir(), "audit.log"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Errorf("Close() twice = %v; want nil", err)
	}
	if err := l.Append(Subject{}, DaemonStopped{}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Append() after Close = %v; want %v", err, ErrUnavailable)
	}
	if err := l.Healthy(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Healthy() after Close = %v; want %v", err, ErrUnavailable)
	}
}

// TestDiskFull runs itself again in a mount namespace of its own, where it mounts a file system of 64 KiB.
func TestDiskFull(t *testing.T) {
	const env = "PINFOLD_TEST_DISK_FULL"
	if dir := os.Getenv(env); dir != "" {
		diskFull(t, dir)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestDiskFull$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), env+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		testkit.LeaveOut(t, fmt.Sprintf("this host lets us make no mount namespace: %v", err))
	}
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestDiskFull")) {
		t.Errorf("in a mount namespace: %v\n%s", err, out)
	}
}

func diskFull(t *testing.T, dir string) {
	t.Helper()
	err := errors.Join(
		syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""),
		syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	if err != nil {
		t.Fatalf("mount: %v", err)
	}
	path := filepath.Join(dir, "audit.log")
	l := open(t, path, Options{Sync: SyncEach})
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 16<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	n, failed := 0, 0
	for ; n+failed < 10_000 && (failed < 3 || l.Healthy() == nil); n++ {
		// An odd length, so that the last one that fits is taken in part.
		if err := l.Append(Subject{}, SessionClosed{Reason: strings.Repeat("x", 333)}); err != nil {
			n--
			if failed++; !errors.Is(err, ErrUnavailable) || !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("Append() on a full disk = %v; want %v with ENOSPC", err, ErrUnavailable)
			}
		}
	}
	if err := l.Healthy(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Healthy() on a full disk = %v; want %v", err, ErrUnavailable)
	}
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
	if err := l.Healthy(); err != nil {
		t.Errorf("Healthy() with room again = %v; want nil", err)
	}
	appendOne(t, l, DaemonStopped{Reason: "after"})
	r := wantChain(t, path, -1)
	if r.Lost != int64(failed) || r.Records != n+r.Gaps+1 || r.TornBytes != 0 {
		t.Fatalf("Verify() = %+v; want %d events, gaps of %d lost ones, the last, and what was written in part cut off again", r, n, failed)
	}
	records, _ := readAll(t, path)
	e, err := records[len(records)-2].Event()
	g, ok := e.(*Gap)
	if err != nil || !ok || g.Reason != "unavailable" || g.Since.IsZero() || !strings.Contains(g.Cause, "no space") {
		t.Errorf("last gap = %+v, %v; want it unavailable for no space", e, err)
	}
}

func TestRead(t *testing.T) {
	rec := func(seq int) string {
		return fmt.Sprintf(`{"v":1,"seq":%d,"time":"2026-01-02T03:04:05Z","kind":"session_closed","uid":0}`, seq)
	}
	in := strings.Join([]string{
		rec(1), "", "x", rec(2), rec(5), strings.Repeat("y", maxRecord+1), rec(6), `{"v":2,"seq":7,"time":"2026-01-02T03:04:05Z","kind":"k"}`,
		`{"v":1,"v":1}`, rec(7) + "{}", `{"v":1,"seq":7,"time":"2026-01-02T03:04:05Z","kind":"novel","uid":0}`, "torn",
	}, "\n")
	var got []string
	for r, err := range Read(strings.NewReader(in)) {
		switch e := err.(type) { //nolint:errorlint // Read gives these types unwrapped
		case nil:
			got = append(got, fmt.Sprintf("%d: seq %d", r.Line, r.Seq))
		case *LineError:
			got = append(got, fmt.Sprintf("%d: bad", e.Line))
		case *MissingError:
			got = append(got, fmt.Sprintf("%d: %d for %d", e.Line, e.Got, e.Want))
		default:
			t.Errorf("Read() = %v; want only LineError and MissingError", err)
		}
		if r.Kind == "novel" {
			if e, err := r.Event(); e != nil || err != nil {
				t.Errorf("Event() of an unknown kind = %v, %v; want nil, nil", e, err)
			}
		}
	}
	want := []string{"1: seq 1", "2: bad", "3: bad", "4: seq 2", "5: 5 for 3", "5: seq 5", "6: bad", "7: seq 6", "8: bad", "9: bad", "10: bad", "11: seq 7", "12: bad"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Read() differs (-want +got):\n%s", d)
	}
	for _, err := range Read(strings.NewReader(in)) { // stopping early must not panic
		if err != nil {
			break
		}
	}
	broken := errors.New("broken")
	var last error
	for _, err := range Read(errReader{broken}) {
		last = err
	}
	if !errors.Is(last, broken) {
		t.Errorf("Read(broken reader) ended with %v; want %v", last, broken)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"v":1,"seq":1,"time":"2026-01-02T03:04:05Z","kind":"gap","uid":0,"reason":"torn"}` + "\nx\n"))
	f.Add([]byte("\n\n{\x00"))
	f.Add([]byte(`{"v":1,"seq":18446744073709551615,"time":"2026-01-02T03:04:05Z","kind":"ended","uid":0,"verdict":[]}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := bytes.Count(data, []byte{'\n'})
		if len(data) > 0 && data[len(data)-1] != '\n' {
			lines++
		}
		seen := 0
		for r, err := range Read(bytes.NewReader(data)) {
			if _, ok := errors.AsType[*MissingError](err); ok {
				continue
			}
			if seen++; r.Line != seen {
				t.Errorf("Read(%q) line %d comes as %d; want each line once, in order", data, seen, r.Line)
			}
			if err == nil {
				if e, err := r.Event(); err == nil && e != nil && e.kind() != r.Kind {
					t.Errorf("Event() of %q = %T; want its kind", r.Raw, e)
				}
			}
		}
		if seen != lines {
			t.Errorf("Read(%q) = %d lines; want %d", data, seen, lines)
		}
		if _, err := findEnd(bytes.NewReader(data), int64(len(data))); err != nil {
			t.Errorf("findEnd(%q) = %v; want nil", data, err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, sync := range []Sync{SyncNone, SyncEach} {
		b.Run(string(sync), func(b *testing.B) {
			l, err := Open(filepath.Join(b.TempDir(), "audit.log"), Options{Sync: sync})
			if err != nil {
				b.Fatal(err)
			}
			e := Decision{Argv: []string{"python3", "-c", "print(1)", "--token", "x"}, Env: []string{"A=1", "B=2"}, Cwd: "/home/x", Allowed: true, Rule: "r"}
			for b.Loop() {
				if err := l.Append(Subject{Session: "s", Caller: "c", UID: 7}, e); err != nil {
					b.Fatal(err)
				}
			}
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

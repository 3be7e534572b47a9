package audit

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// verify is Verify of a log that nobody writes: it waits for nothing.
func verify(t *testing.T, path string, want Head) Report {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil && !errors.Is(err, os.ErrPermission) { // an append-only file
		t.Fatal(err)
	}
	r, err := Verify(path, want)
	if err != nil {
		t.Fatalf("Verify(%s) = %v; want a report", path, err)
	}
	return r
}

// wantChain checks that the chain holds, with so many gaps unless that is negative.
func wantChain(t *testing.T, path string, gaps int) Report {
	t.Helper()
	r := verify(t, path, Head{})
	if len(r.Problems) > 0 || len(r.Absent) > 0 || gaps >= 0 && r.Gaps != gaps {
		t.Fatalf("Verify(%s) = %+v; want a whole chain with %d gaps", path, r, gaps)
	}
	return r
}

// writeLog makes a log of several files with n records beside the log's own, and returns its head.
func writeLog(t *testing.T, path string, rnd *rand.Rand, n int) Head {
	t.Helper()
	l := open(t, path, Options{Rotate: 2000, Warn: func(err error) { t.Errorf("warning: %v", err) }})
	for range n {
		appendOne(t, l, SessionClosed{Reason: strings.Repeat("r", rnd.IntN(200))})
		l.rotateFull()
	}
	return l.Head()
}

// Each file of a rotated log ends in a sealed record, the next names it, and the daemon that is started again goes on with the chain.
func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := 1; i <= 3; i++ {
		head := writeLog(t, path, rnd, 40)
		r := wantChain(t, path, 0)
		if r.Head != head || r.From != Genesis || r.FromSeq != 1 || r.Files < 3*i || r.Records < 40*i {
			t.Fatalf("Verify() = %+v; want head %v, and some files", r, head)
		}
	}
	names, err := Files(path)
	if err != nil {
		t.Fatal(err)
	}
	before := ""
	for i, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		if i > 0 && (!strings.Contains(lines[0], `"kind":"continued"`) || !strings.Contains(lines[0], `"file":"`+before+`"`)) {
			t.Errorf("%s begins with %s; want a continued record that names %s", name, lines[0], before)
		}
		if i < len(names)-1 && !strings.Contains(lines[len(lines)-1], fmt.Sprintf(`"kind":"sealed","uid":0,"records":%d,`, len(lines)-1)) {
			t.Errorf("%s ends with %s; want a sealed record of %d", name, lines[len(lines)-1], len(lines)-1)
		}
		before = filepath.Base(name)
	}
	seq := uint64(0)
	for e, err := range ReadLog(path) {
		if seq++; err != nil || e.Seq != seq {
			t.Fatalf("ReadLog() = %d, %v; want %d", e.Seq, err, seq)
		}
	}
	last, errs := Last(path, 50)
	if len(errs) > 0 || len(last) != 50 || last[0].Seq != seq-49 || last[49].Seq != seq {
		t.Errorf("Last(50) = %d records, %v; want the last 50 of %d", len(last), errs, seq)
	}
	if _, err := os.Stat(filepath.Join(Dir(path), "part")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat(part) = %v; want the copy gone", err)
	}
}

// A file that cannot be closed goes on, whatever fails, and its chain holds.
func TestRotationThatFails(t *testing.T) {
	for name, breakIt := range map[string]func(dir string) error{
		"no directory": os.RemoveAll,
		"name taken":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "audit.log.1"), []byte("x"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.log")
			var warned []error
			l := open(t, path, Options{Rotate: 1, Warn: func(err error) { warned = append(warned, err) }})
			if err := breakIt(Dir(path)); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				appendOne(t, l, SessionClosed{Reason: "r"})
				l.rotateFull()
			}
			if len(warned) != 1 {
				t.Errorf("warnings = %v; want one a minute", warned)
			}
			if name == "name taken" {
				if err := os.Remove(filepath.Join(Dir(path), "audit.log.1")); err != nil {
					t.Fatal(err)
				}
			}
			if r := wantChain(t, path, 0); r.Head != l.Head() || r.Files != 1 || r.Records < 3 {
				t.Errorf("Verify() = %+v; want all records in one file", r)
			}
		})
	}
}

// A run may end between any two steps of closing a file; the next one finishes it.
func TestRotationCutShort(t *testing.T) {
	for name, step := range map[string]func(l *Log, sealed func() error, copied func() error) error{
		"sealed":            func(_ *Log, sealed, _ func() error) error { return sealed() },
		"sealed and copied": func(_ *Log, sealed, copied func() error) error { return errors.Join(sealed(), copied()) },
		"emptied": func(l *Log, sealed, copied func() error) error {
			return errors.Join(sealed(), copied(), os.Truncate(l.path, 0))
		},
		"emptied, then torn": func(l *Log, sealed, copied func() error) error {
			return errors.Join(sealed(), copied(), os.WriteFile(l.path, []byte(`{"v":1,`), 0o600))
		},
		"part of a copy": func(l *Log, sealed, _ func() error) error {
			return errors.Join(sealed(), os.WriteFile(l.partPath(), []byte("x"), 0o600))
		},
		"part, and not sealed": func(l *Log, _, _ func() error) error { return os.WriteFile(l.partPath(), []byte("x"), 0o600) },
		"torn in the same file": func(l *Log, sealed, _ func() error) error {
			_, err := l.file.WriteString("{")
			return errors.Join(sealed(), err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.log")
			l := open(t, path, Options{})
			for range 5 {
				appendOne(t, l, SessionClosed{Reason: "r"})
			}
			sealed := func() error {
				_, err := l.tell(Sealed{Records: 5, First: 1, Last: 5})
				return err
			}
			copied := func() error {
				data, err := os.ReadFile(path)
				return errors.Join(err, os.WriteFile(closedPath(path, 1), data, 0o600))
			}
			if name == "torn in the same file" {
				if err := sealed(); err != nil {
					t.Fatal(err)
				}
				sealed = func() error { return nil }
			}
			if err := step(l, sealed, copied); err != nil {
				t.Fatal(err)
			}
			next := open(t, path, Options{Warn: func(err error) { t.Errorf("warning: %v", err) }})
			appendOne(t, next, DaemonStopped{Reason: "after"})
			gaps := strings.Count(name, "torn")
			r := wantChain(t, path, gaps)
			files := 2
			if strings.HasSuffix(name, "not sealed") || strings.HasSuffix(name, "same file") {
				files = 1
			}
			if r.FromSeq != 1 || r.Head != next.Head() || r.Records < 6 || r.Files != files {
				t.Errorf("Verify() = %+v; want all records in %d files", r, files)
			}
		})
	}
}

// Bytes that were set aside by a run which ended before it told of them are told by the next.
func TestTornIsToldLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{})
	appendOne(t, l, SessionClosed{Reason: "r"})
	torn := filepath.Join(Dir(path), "audit.log.torn-2")
	if err := os.WriteFile(torn, []byte("half a rec"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, path, Options{})
	if r := wantChain(t, path, 1); r.TornBytes != 10 {
		t.Errorf("Verify() = %+v; want a gap of 10 bytes", r)
	}
	// The same with a cut that did not come: what is there already is not kept twice, what differs is added.
	for i, tt := range []struct{ kept, tail, want string }{{`{"v":1`, `{"v":1`, `{"v":1`}, {"half", "other", "halfother"}} {
		if err := os.WriteFile(tornPath(path, uint64(i+3)), []byte(tt.kept), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(tt.tail); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		open(t, path, Options{})
		wantChain(t, path, i+2)
		wantFile(t, tornPath(path, uint64(i+3)), tt.want)
	}
	if err := os.WriteFile(torn, []byte("half a red"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, path, Head{}); len(r.Problems) != 1 || r.Problems[0].Line != 2 {
		t.Errorf("Verify() with torn bytes changed = %+v; want a problem at line 2", r)
	}
	if err := os.Remove(torn); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, path, Head{}); len(r.Problems) != 0 || !slices.Equal(r.Absent, []string{"audit.log.torn-2"}) {
		t.Errorf("Verify() without the torn bytes = %+v; want them absent", r)
	}
}

// attack is a change of a log's lines, all files in one list; false: it changes nothing.
type attack func(rnd *rand.Rand, lines [][]byte) ([][]byte, bool)

func attacks() map[string]attack {
	return map[string]attack{
		"bit": func(rnd *rand.Rand, lines [][]byte) ([][]byte, bool) {
			i := rnd.IntN(len(lines))
			lines[i] = slices.Clone(lines[i])
			lines[i][rnd.IntN(len(lines[i]))] ^= 1 << rnd.IntN(8)
			return lines, true
		},
		"removal": func(rnd *rand.Rand, lines [][]byte) ([][]byte, bool) {
			i := rnd.IntN(len(lines))
			return slices.Delete(lines, i, min(len(lines), i+1+rnd.IntN(3))), true
		},
		"swap": func(rnd *rand.Rand, lines [][]byte) ([][]byte, bool) {
			i, j := rnd.IntN(len(lines)), rnd.IntN(len(lines))
			lines[i], lines[j] = lines[j], lines[i]
			return lines, i != j
		},
		"insertion": func(rnd *rand.Rand, lines [][]byte) ([][]byte, bool) {
			line := lines[rnd.IntN(len(lines))]
			return slices.Insert(lines, rnd.IntN(len(lines)), line), true
		},
		"forgery": func(rnd *rand.Rand, lines [][]byte) ([][]byte, bool) {
			i := rnd.IntN(len(lines))
			lines[i] = bytes.Replace(lines[i], []byte(`"uid":7`), []byte(`"uid":8`), 1)
			return lines, bytes.Contains(lines[i], []byte(`"uid":8`))
		},
	}
}

// Whatever is done to any line is found, but what happens to the end alone; that is found against a head that was kept.
func TestEveryChangeIsFound(t *testing.T) {
	const rounds = 400
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	path := filepath.Join(t.TempDir(), "audit.log")
	head := writeLog(t, path, rnd, 30)
	names, err := Files(path)
	if err != nil || len(names) < 3 {
		t.Fatalf("Files() = %q, %v; want several", names, err)
	}
	whole := map[string][]byte{}
	for _, name := range names {
		if whole[name], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	end := verify(t, path, head)
	if !end.Held || len(end.Problems) > 0 {
		t.Fatalf("Verify() before any change = %+v; want none", end)
	}
	found := 0
	for name, change := range attacks() {
		for range rounds {
			file := names[rnd.IntN(len(names))]
			lines := bytes.SplitAfter(whole[file], []byte("\n"))
			changed, ok := change(rnd, slices.Clone(lines[:len(lines)-1]))
			now := bytes.Join(changed, nil)
			if !ok || bytes.Equal(now, whole[file]) {
				continue
			}
			if err := os.WriteFile(file, now, 0o600); err != nil {
				t.Fatal(err)
			}
			r := verify(t, path, head)
			onlyEnd := file == path && bytes.HasPrefix(now, bytes.Join(lines[:len(lines)-2], nil)) && len(changed) < len(lines) || file == path && bytes.HasPrefix(whole[file], now)
			switch {
			case len(r.Problems) == 0 && !onlyEnd:
				t.Fatalf("seed %d: %s in %s is not found:\n%s", seed, name, file, now)
			case len(r.Problems) == 0 && r.Held:
				t.Fatalf("seed %d: %s at the end of %s is not found against the head that was kept:\n%s", seed, name, file, now)
			}
			if len(r.Problems) > 0 {
				found++
			}
			if err := os.WriteFile(file, whole[file], 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if found < rounds {
		t.Errorf("%d changes were found; want the test to make more", found)
	}
}

// Each problem names its line.
func TestProblemsNameTheirPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{})
	for range 9 {
		appendOne(t, l, SessionClosed{Reason: "r"})
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := func(n int) string { return strings.SplitAfter(string(data), "\n")[n-1] }
	for _, tt := range []struct {
		name, text string
		lines      []int
	}{
		{"changed", strings.Replace(string(data), at(4), strings.Replace(at(4), `"r"`, `"s"`, 1), 1), []int{5}},
		{"not a record", strings.Replace(string(data), at(4), "x\n", 1), []int{4}},
		{"taken out", strings.Replace(string(data), at(4), "", 1), []int{4}},
		{"first taken out", strings.Replace(string(data), at(1), "", 1), []int{1}},
		{"swapped", strings.Replace(string(data), at(4)+at(5), at(5)+at(4), 1), []int{4, 5, 6}},
		{"put in", strings.Replace(string(data), at(4), at(4)+"x\n", 1), []int{5}},
		{"without prev", strings.Replace(string(data), at(4), `{"v":1,"seq":4,"time":"2026-01-02T03:04:05Z","kind":"novel","uid":0}`+"\n", 1), []int{4, 5}},
		{"torn", string(data[:len(data)-2]), []int{9}},
		{"a gap that tells of nothing", strings.Replace(string(data), at(4), strings.Replace(at(4), `"session_closed"`, `"gap","offset":1,"bytes":2`, 1), 1), []int{4, 5}},
		{"a name that leads elsewhere", strings.Replace(string(data), at(4), strings.Replace(at(4), `"session_closed"`, `"gap","file":"../x"`, 1), 1), []int{4, 5}},
	} {
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, p := range verify(t, path, Head{}).Problems {
			got = append(got, p.Line)
		}
		if !slices.Equal(got, tt.lines) {
			t.Errorf("%s: problems at lines %v; want %v", tt.name, got, tt.lines)
		}
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte("x\n"+at(1)), 2*maxProblems), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, path, Head{}); len(r.Problems) != maxProblems || r.More < maxProblems {
		t.Errorf("Verify() = %d problems and %d more; want %d and the rest counted", len(r.Problems), r.More, maxProblems)
	}
	if _, err := Verify(filepath.Join(t.TempDir(), "audit.log"), Head{}); err == nil {
		t.Error("Verify() of no file = nil; want an error")
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

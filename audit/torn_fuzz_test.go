package audit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// FuzzTorn writes records, cuts the file anywhere and puts any bytes behind the cut, as a power cut does. The reader finds every record
// that is whole; the log opens again, sets the torn part aside and tells of it, and goes on with a chain in which only what was cut is missing.
func FuzzTorn(f *testing.F) {
	f.Add(uint8(3), uint16(10), []byte("garbage"), "argument")
	f.Add(uint8(1), uint16(0), []byte{}, "")
	f.Add(uint8(5), uint16(1), []byte{}, "the newline alone is cut off")
	f.Add(uint8(4), uint16(2), []byte("\n\n{\n"), "\xff\x00\n")
	f.Add(uint8(0), uint16(0), []byte(`{"v":1,"seq":9,"time":"2026-01-02T03:04:05Z","kind":"gap","uid":0}`), "x")
	f.Fuzz(func(t *testing.T, n uint8, cut uint16, tail []byte, word string) {
		if n > 20 || len(tail) > 1<<16 || len(word) > 1<<12 {
			return
		}
		path := filepath.Join(t.TempDir(), "audit.log")
		written := records(t, path, int(n), word)
		all := bytes.Join(written, nil)
		kept := all[:len(all)-min(int(cut), len(all))]
		if err := os.WriteFile(path, append(slices.Clone(kept), tail...), 0o600); err != nil {
			t.Fatal(err)
		}
		whole := 0
		for rest := len(kept); whole < len(written) && rest >= len(written[whole]); whole++ {
			rest -= len(written[whole])
		}
		found, _ := readLines(t, path)
		wantPrefix(t, found, written[:whole])

		records(t, path, 3, word)
		after, missing := readLines(t, path)
		wantPrefix(t, after, written[:whole])
		if last := after[len(after)-1]; last.Kind != KindDecision || len(after) < whole+3 {
			t.Fatalf("after the log was opened again: %d records, the last is %s; want at least %d and a decision", len(after), last.Kind, whole+3)
		}
		all = append(slices.Clone(kept), tail...)
		checkTold(t, path, after, all[bytes.LastIndexByte(all, '\n')+1:])
		if len(tail) == 0 {
			wantChain(t, path, -1)
		}
		if len(tail) == 0 && missing != 0 {
			t.Fatalf("%d jumps in the sequence after a cut of %d bytes; want none: what is torn is told as a gap", missing, cut)
		}
	})
}

// records appends n records and returns their lines.
func records(t *testing.T, path string, n int, word string) [][]byte {
	t.Helper()
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	l, err := Open(path, Options{Sync: SyncNone})
	if err != nil {
		t.Fatalf("Open() = %v; want a log whatever is in the file", err)
	}
	for i := range n {
		e := Decision{Argv: []string{"cat", word, fmt.Sprint(i)}, Env: []string{"WORD=" + word}, Cwd: word, Rule: "fuzz"}
		if err := l.Append(Subject{Session: word, Caller: "fuzz", UID: uint32(i)}, e); err != nil {
			t.Fatalf("Append() = %v; want none", err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole := before[:bytes.LastIndexByte(before, '\n')+1]
	if !bytes.HasPrefix(data, whole) {
		t.Fatalf("the log changed what was in the file")
	}
	lines := bytes.SplitAfter(data[len(whole):], []byte{'\n'})
	return lines[:len(lines)-1]
}

// readLines gives the good records and how many jumps there are.
func readLines(t *testing.T, path string) (found []Record, missing int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range Read(bytes.NewReader(data)) {
		if _, ok := errors.AsType[*MissingError](err); ok {
			missing++
			continue
		}
		if _, ok := errors.AsType[*LineError](err); err != nil && !ok {
			t.Fatalf("Read() = %v; want only bad lines and jumps", err)
		}
		if err == nil {
			found = append(found, r)
		}
	}
	return found, missing
}

// wantPrefix: the records that were whole come first, as they were written.
func wantPrefix(t *testing.T, found []Record, want [][]byte) {
	t.Helper()
	if len(found) < len(want) {
		t.Fatalf("Read() = %d records; want the %d that are whole", len(found), len(want))
	}
	for i, line := range want {
		if !bytes.Equal(append(slices.Clone(found[i].Raw), '\n'), line) || found[i].Seq != uint64(i+1) {
			t.Fatalf("record %d = %d, %q; want %q", i, found[i].Seq, found[i].Raw, line)
		}
		e, err := found[i].Event()
		if d, ok := e.(*Decision); err != nil || !ok || d.Rule != "fuzz" {
			t.Fatalf("Event() of record %d = %T, %v; want the decision", i, e, err)
		}
	}
}

// checkTold: the last gap names the torn bytes, their hash and where they are now, if there were any.
func checkTold(t *testing.T, path string, found []Record, torn []byte) {
	t.Helper()
	if len(torn) == 0 {
		return
	}
	for _, r := range slices.Backward(found) {
		e, err := r.Event()
		g, ok := e.(*Gap)
		if err != nil || !ok {
			continue
		}
		if g.Reason != "torn" || g.Bytes != int64(len(torn)) || g.SHA256 != sumOf(torn) {
			t.Fatalf("gap = %+v; want the %d torn bytes", g, len(torn))
		}
		wantFile(t, filepath.Join(Dir(path), g.File), string(torn))
		return
	}
	t.Fatalf("no gap tells of the torn bytes %q", torn)
}

package ops

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"pinfold/proto"
)

// open opens the file of a test as a next daemon would.
func open(t *testing.T, path string, now time.Time) (*Record, *File) {
	t.Helper()
	r, f, err := Open(path, now, nil)
	if err != nil {
		t.Fatalf("Open() = %v; want a record", err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return r, f
}

// TestAFileHoldsTheRecord whenever its daemon is killed: what is read is what stood.
func TestAFileHoldsTheRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ops")
	r, _ := open(t, path, epoch)
	if _, err := os.Stat(path); err == nil {
		t.Error("there is a file before the first entry")
	}
	big := strings.Repeat("x", 3000)
	for i := range 2 * MaxKept { // several times written anew
		id, now := fmt.Sprint("n", i), epoch.Add(time.Duration(i)*time.Millisecond)
		must(t, r, id, Fresh, now)
		outcome := proto.OutcomeApplied
		if i%5 == 1 {
			outcome = proto.OutcomeNotSent
		}
		if i%50 != 49 { // the others stay open
			if err := r.Settle(id, outcome, jsontext.Value(`{"of":"`+id+big+`"}`), now); err != nil {
				t.Fatal(err)
			}
		}
		if i%100 != 99 && i < 2*MaxKept-3 {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(text)
		if err != nil {
			t.Fatalf("after %d operations: read() = %v", i, err)
		}
		if want, have := encoded(t, r.Snapshot()), encoded(t, got); !bytes.Equal(want, have) {
			t.Fatalf("after %d operations the file has %d bytes of a record, other than the %d it was", i, len(have), len(want))
		}
		if len(text) > 6<<20 {
			t.Fatalf("the file has %d bytes; want it written anew before", len(text))
		}
	}
	again, _ := open(t, path, epoch.Add(time.Minute))
	must(t, again, "n49", Concluded, epoch.Add(time.Minute)) // was open
	outcome(t, again, "n49", proto.OutcomeUnknown, epoch.Add(time.Minute))
	must(t, again, "new", Fresh, epoch.Add(time.Minute))
}

func encoded(t *testing.T, s Snapshot) []byte {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestATornLineNeverWas: cut anywhere, a file is what stood before the line that was cut.
func TestATornLineNeverWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ops")
	r, _ := open(t, path, epoch)
	done(t, r, "a", epoch)
	must(t, r, "b", Fresh, epoch)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(whole, []byte{'\n'})
	for cut := len(lines[0]); cut <= len(whole); cut++ {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		next, f, err := Open(path, epoch, nil)
		if err != nil {
			t.Fatalf("Open(cut at %d) = %v; want a record", cut, err)
		}
		wantA, wantB := proto.OutcomeNotSent, proto.OutcomeNotSent
		whole1, whole2 := len(lines[0])+len(lines[1]), len(lines[0])+len(lines[1])+len(lines[2])
		if cut >= whole1 {
			wantA = proto.OutcomeUnknown
		}
		if cut >= whole2 {
			wantA = proto.OutcomeApplied
		}
		if cut == len(whole) {
			wantB = proto.OutcomeUnknown
		}
		outcome(t, next, "a", wantA, epoch)
		outcome(t, next, "b", wantB, epoch)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatWasUnderWayMayBeKnownBetter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ops")
	r, _ := open(t, path, epoch)
	must(t, r, "spawn", Fresh, epoch)
	must(t, r, "write", Fresh, epoch)
	next, f, err := Open(path, epoch, func(e *Entry) {
		if e.ID == "spawn" { // its process is there
			e.Outcome, e.Answer = proto.OutcomeApplied, jsontext.Value(`{"proc_id":"p"}`)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if e := outcome(t, next, "spawn", proto.OutcomeApplied, epoch); e == nil || string(e.Answer) != `{"proc_id":"p"}` {
		t.Errorf("Get(spawn) = %+v; want the answer", e)
	}
	outcome(t, next, "write", proto.OutcomeUnknown, epoch)
}

func TestOpenRefusesWhatItDoesNotKnow(t *testing.T) {
	for name, text := range map[string]string{
		"empty":       "",
		"no JSON":     "x\n",
		"newer":       `{"version":2}` + "\n",
		"line within": `{"version":1}` + "\nx\n" + `{"op_id":"a"}` + "\n",
		"names":       `{"version":1,"forgotten":"AAAA"}` + "\n",
	} {
		path := filepath.Join(t.TempDir(), "ops")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Open(path, epoch, nil); err == nil {
			t.Errorf("Open(%s) = nil; want an error", name)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("Open(%s) changed the file to %q, %v; want it as it was", name, got, err)
		}
	}
}

// TestAFullFileSystemLosesNothing: what cannot be noted is not done, and the next entry
// finds the file as it was.
func TestAFullFileSystemLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ops")
	r, f := open(t, path, epoch)
	done(t, r, "a", epoch)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.file, full = full, f.file
	defer func() { _ = full.Close() }()
	if _, _, err := r.Begin("b", proto.TypeSpawnReq, proto.Digest{1}, epoch); err == nil {
		t.Fatal("Begin() with a full file system = nil; want an error")
	}
	outcome(t, r, "b", proto.OutcomeNotSent, epoch)
	done(t, r, "c", epoch)
	next, _ := open(t, path, epoch)
	outcome(t, next, "a", proto.OutcomeApplied, epoch)
	outcome(t, next, "b", proto.OutcomeNotSent, epoch)
	outcome(t, next, "c", proto.OutcomeApplied, epoch)
}

// TestNoFileIsWrittenThroughALink: who has written the directory before has no other file
// of the host written.
func TestNoFileIsWrittenThroughALink(t *testing.T) {
	dir := t.TempDir()
	other, path := filepath.Join(dir, "other"), filepath.Join(dir, "record.json")
	if err := errors.Join(os.WriteFile(other, []byte("untouched"), 0o600), os.Symlink(other, path+".new")); err != nil {
		t.Fatal(err)
	}
	r, f, err := Open(path, time.Now(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if how, _, err := r.Begin("op", proto.TypeSpawnReq, proto.Digest{}, time.Now()); err == nil {
		t.Errorf("Begin() beside a planted link = %v, nil; want an error", how)
	}
	if b, err := os.ReadFile(other); err != nil || string(b) != "untouched" {
		t.Errorf("the file behind the link = %q, %v; want it untouched", b, err)
	}
}

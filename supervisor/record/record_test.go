package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// fill gives every field of a record a value that is not its zero.
func fill(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch k := v.Kind(); k { //nolint:exhaustive // the others are told below
	case reflect.Struct:
		for _, f := range v.Fields() {
			fill(t, f, n)
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[jsontext.Value]() {
			v.SetBytes(fmt.Appendf(nil, `{"raw":%d}`, *n))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), n)
		}
	case reflect.String:
		v.SetString(fmt.Sprintf("id-%d", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint32:
		v.SetUint(uint64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	default:
		t.Fatalf("a record has a field of kind %s; want one of those that fill knows", k)
	}
}

func full(t *testing.T) (d Daemon, s Session, p Process) {
	t.Helper()
	n := 0
	defer func() {
		n = 1000 // what came first keeps its numbers
		fill(t, reflect.ValueOf(&d).Elem(), &n)
	}()
	fill(t, reflect.ValueOf(&s).Elem(), &n)
	fill(t, reflect.ValueOf(&p).Elem(), &n)
	s.ID, p.ID = "session-1", "process-1"
	return d, s, p
}

// TestGolden pins the format: every version that was ever written is read, and this
// build writes what the file of its own version has. Every field is in it.
func TestGolden(t *testing.T) {
	d, s, p := full(t)
	for version := 1; version <= Version; version++ {
		dir := filepath.Join("testdata", fmt.Sprintf("v%d", version))
		if *update && version == Version {
			st := openStore(t, t.TempDir())
			put(t, st, d, s, p)
			for _, f := range names(s, p) {
				to := filepath.Join(dir, f)
				f = filepath.Join(st.dir, f)
				if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, []byte(contents(t, f)), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
		}
		got, err := Read(dir)
		if err := errors.Join(err, got.Err()); err != nil {
			t.Fatal(err)
		}
		want := Found{Daemon: d, Sessions: []Session{s}, Processes: []Process{p}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("Read(%s) = %+v; want %+v: a record of an earlier version must be read for ever, and a change of the types makes a new version (see Version)", dir, got, want)
		}
	}
	st := openStore(t, t.TempDir())
	put(t, st, d, s, p)
	for _, f := range names(s, p) {
		golden := filepath.Join("testdata", fmt.Sprintf("v%d", Version), f)
		if got, want := contents(t, filepath.Join(st.dir, f)), contents(t, golden); got != want {
			t.Errorf("a record is written as %s; want %s, as in %s", got, want, golden)
		}
	}
}

// names are the files of a store with these.
func names(s Session, p Process) []string {
	return []string{"daemon.json", "session/" + s.ID + ".json", "process/" + p.ID + ".json"}
}

func openStore(t *testing.T, dir string) *Store {
	t.Helper()
	st, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func put(t *testing.T, st *Store, d Daemon, s Session, p Process) {
	t.Helper()
	if err := errors.Join(st.PutDaemon(d), st.PutSession(s), st.PutProcess(p)); err != nil {
		t.Fatal(err)
	}
}

func contents(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestStoreAndRead: what was stored last is read, what was dropped is not, and a writer
// that was killed in the middle has changed nothing.
func TestStoreAndRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "record")
	if f, err := Read(dir); err != nil || !reflect.DeepEqual(f, Found{}) {
		t.Errorf("Read(no directory) = %+v, %v; want nothing", f, err)
	}
	st := openStore(t, dir)
	first := Process{ID: "a", Session: "s", Mark: jsontext.Value("{}"), Argv: []string{"x\xffy"}, Asked: Instant{Mono: 2}}
	second := Process{ID: "b", Session: "s", Mark: jsontext.Value("{}"), Argv: []string{}, Asked: Instant{Mono: 1}}
	gone := Process{ID: "c", Mark: jsontext.Value("{}")}
	if err := errors.Join(st.PutProcess(Process{ID: "a", Mark: jsontext.Value(`"old"`)}), st.PutProcess(first), st.PutProcess(second),
		st.PutProcess(gone), st.DropProcess("c"), st.DropProcess("never"), st.PutSession(Session{ID: "s"})); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, processDir, "a.new"), []byte(`{"version":1,`), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Read(dir)
	if err != nil || len(f.Broken) > 0 || f.Err() != nil {
		t.Fatalf("Read = %+v, %v; want no broken record", f, err)
	}
	first.Argv = []string{"x�y"} // JSON has no other bytes
	if want := []Process{second, first}; !reflect.DeepEqual(f.Processes, want) {
		t.Errorf("processes = %+v; want %+v, in the order of their start", f.Processes, want)
	}
	if len(f.Sessions) != 1 || f.Sessions[0].ID != "s" {
		t.Errorf("sessions = %+v; want s", f.Sessions)
	}
	if err := st.Clear(func(kind, id string) bool { return kind == processDir && id == "a" }); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "a.json" {
		t.Errorf("after Clear there is %q, %v; want a.json alone", left, err)
	}
}

// TestAFailedWriteLeavesTheOldRecord and nothing beside it.
func TestAFailedWriteLeavesTheOldRecord(t *testing.T) {
	st := openStore(t, t.TempDir())
	if err := st.PutProcess(Process{ID: "a", Mark: jsontext.Value("{}"), Profile: "old"}); err != nil {
		t.Fatal(err)
	}
	big := Process{ID: "a", Mark: jsontext.Value("{}"), Argv: []string{strings.Repeat("x", maxRecord)}}
	if err := st.PutProcess(big); err == nil || !strings.Contains(err.Error(), "cannot store the record of process a: ") {
		t.Errorf("PutProcess(too large) = %v; want an error that names the process", err)
	}
	if err := os.Mkdir(filepath.Join(st.dir, processDir, "a.new"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := st.PutProcess(Process{ID: "a", Mark: jsontext.Value("{}"), Profile: "new"}); err == nil {
		t.Error("PutProcess where it cannot write = nil; want an error")
	}
	if f, err := Read(st.dir); err != nil || len(f.Processes) != 1 || f.Processes[0].Profile != "old" {
		t.Errorf("Read = %+v, %v; want the old record", f, err)
	}
	for _, id := range []string{"", "..", "a/b", "a.b", strings.Repeat("x", maxName+1)} {
		if err := errors.Join(st.PutProcess(Process{ID: id, Mark: jsontext.Value("{}")})); err == nil {
			t.Errorf("PutProcess(%q) = nil; want an error", id)
		}
	}
}

// TestBrokenAndNewer: each record that is not one of this build's is told of, by its
// kind, and none of them hides another.
func TestBrokenAndNewer(t *testing.T) {
	for _, row := range []struct {
		name, text string
		newer      bool
	}{
		{name: "empty"},
		{name: "half", text: `{"version":1,"id":"half","session`},
		{name: "no version", text: `{"id":"no-version"}`},
		{name: "version 0", text: `{"version":0,"id":"x"}`},
		{name: "another's id", text: `{"version":1,"id":"other","mark":{}}`},
		{name: "an unknown name", text: `{"version":1,"id":"x","hue":3}`},
		{name: "a name twice", text: `{"version":1,"version":1,"id":"x"}`},
		{name: "another case", text: `{"version":1,"ID":"x"}`},
		{name: "something behind", text: `{"version":1,"id":"x"} {}`},
		{name: "large", text: `{"version":1,"id":"x"}` + strings.Repeat(" ", maxRecord)},
		{name: "newer", text: fmt.Sprintf(`{"version":%d,"hue":3}`, Version+1), newer: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			st := openStore(t, t.TempDir())
			if err := st.PutProcess(Process{ID: "well", Mark: jsontext.Value("{}")}); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{st.file("", "daemon"), st.file(sessionDir, "x"), st.file(processDir, "x")} {
				if err := os.WriteFile(path, []byte(row.text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f, err := Read(st.dir)
			if err != nil || len(f.Processes) != 1 || f.Processes[0].ID != "well" || len(f.Sessions) != 0 {
				t.Fatalf("Read = %+v, %v; want the record that is well", f, err)
			}
			if row.newer {
				if len(f.Broken) > 0 || len(f.Newer) != 3 || f.Err() == nil || !strings.Contains(f.Err().Error(), st.file("", "daemon")) {
					t.Errorf("Read = %+v, %v; want three newer ones, and the first named", f, f.Err())
				}
				return
			}
			if len(f.Broken) != 3 || f.Err() != nil || !reflect.DeepEqual(f.Daemon, Daemon{}) {
				t.Fatalf("Read = %+v; want three broken ones", f)
			}
			aside, err := st.SetAside(f.Broken[0])
			if err != nil || contents(t, aside) != row.text {
				t.Errorf("SetAside = %q, %v; want it to lie there as it was", aside, err)
			}
			if f, err := Read(st.dir); err != nil || len(f.Broken) != 2 {
				t.Errorf("Read after SetAside = %+v, %v; want two broken records", f, err)
			}
		})
	}
}

// TestOddFiles: what is no file is broken, and opening it does not hang.
func TestOddFiles(t *testing.T) {
	st, other := openStore(t, t.TempDir()), openStore(t, t.TempDir())
	put(t, other, Daemon{}, Session{ID: "link"}, Process{ID: "p", Mark: jsontext.Value("{}")})
	if err := errors.Join(os.Mkdir(st.file(sessionDir, "dir"), 0o700), os.Symlink(other.file(sessionDir, "link"), st.file(sessionDir, "link")), mkfifo(st.file(sessionDir, "pipe"))); err != nil {
		t.Fatal(err)
	}
	f, err := Read(st.dir)
	if err != nil || len(f.Broken) != 3 {
		t.Errorf("Read = %+v, %v; want three broken ones", f, err)
	}
}

// TestBrokenRecordsAreBounded: the oldest goes.
func TestBrokenRecordsAreBounded(t *testing.T) {
	st := openStore(t, t.TempDir())
	for i := range maxAside + 3 {
		id := fmt.Sprintf("b%02d", i)
		path := st.file(processDir, id)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(int64(i), 0)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		if _, err := st.SetAside(Broken{File: path, Kind: processDir, ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(st.dir, brokenDir, "*"))
	if err != nil || len(left) != maxAside || filepath.Base(left[0]) != "process-b03.json" {
		t.Errorf("kept = %q, %v; want the last %d", left, err, maxAside)
	}
}

// TestInstant: a moment that was stored is the same one for the next daemon.
func TestInstant(t *testing.T) {
	at := time.Now()
	i := At(at)
	back := i.Add(time.Minute).Time()
	if off := back.Sub(at) - time.Minute; off.Abs() > time.Millisecond {
		t.Errorf("a minute after a moment is off by %s; want less than 1ms", off)
	}
	if got := i.Shown(); !got.Equal(at) {
		t.Errorf("Shown = %s; want %s", got, at)
	}
	if !(Instant{}).IsZero() || i.IsZero() {
		t.Error("IsZero is wrong")
	}
	moved := Instant{Wall: i.Wall - int64(time.Hour), Mono: i.Mono} // the clock on the wall was set an hour ahead since
	if off := moved.Time().Sub(at); off.Abs() > time.Millisecond {
		t.Errorf("Time after the clock was set is off by %s; want less than 1ms", off)
	}
}

package record

import (
	"flag"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files of this version anew")

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }

// FuzzRead: whatever bytes lie there, reading ends with a record or a word about it, and
// what was read is written and read again as the same.
func FuzzRead(f *testing.F) {
	for _, kind := range []string{"", sessionDir, processDir} {
		files, err := filepath.Glob(filepath.Join("testdata", "v*", kind, "*.json"))
		if err != nil || len(files) == 0 {
			f.Fatal(files, err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
			f.Add(b[:len(b)/2])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		version, err := versionOf(b)
		if err != nil {
			return
		}
		if s, err := decodeSession(version, b); err == nil {
			again(t, sessionFile{header{Version}, s}, decodeSession)
		}
		if d, err := decodeDaemon(version, b); err == nil {
			again(t, daemonFile{header{Version}, d}, decodeDaemon)
		}
		if p, err := decodeProcess(version, b); err == nil {
			again(t, processFile{header{Version}, p}, decodeProcess)
		}
	})
}

func again[T any](t *testing.T, file any, decode func(int, []byte) (T, error)) {
	t.Helper()
	b, err := encode(file)
	if err != nil {
		return // larger than a record may be, once its white space was read
	}
	r, err := decode(Version, b)
	if err != nil {
		t.Fatalf("a record that was read and written cannot be read: %v\n%s", err, b)
	}
	c, err := encode(wrap(r))
	if err != nil || string(b) != string(c) {
		t.Fatalf("a record changes when it is read and written again, %v:\n%s\n%s", err, b, c)
	}
}

func wrap(r any) any {
	switch r := r.(type) {
	case Daemon:
		return daemonFile{header{Version}, r}
	case Session:
		return sessionFile{header{Version}, r}
	case Process:
		return processFile{header{Version}, r}
	}
	return nil
}

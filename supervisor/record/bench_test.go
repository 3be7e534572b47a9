package record

import (
	"os"
	"testing"
)

// BenchmarkPutProcess is what the record of a process costs its start.
func BenchmarkPutProcess(b *testing.B) {
	dir, err := os.MkdirTemp("/dev/shm", "pinfold-record-") //nolint:usetesting // in memory, as STATE/run
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	st, err := Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	f, err := Read("testdata/v1")
	if err != nil || len(f.Processes) == 0 {
		b.Fatal(f, err)
	}
	for b.Loop() {
		if err := st.PutProcess(f.Processes[0]); err != nil {
			b.Fatal(err)
		}
	}
}

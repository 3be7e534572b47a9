package launch

import (
	"encoding/binary"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold/sandbox/internal/image"
)

// words encodes 32-bit numbers and fills up to a size.
func words(size int, w ...uint32) []byte {
	var b []byte
	for _, v := range w {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return append(b, make([]byte, size-len(b))...)
}

func TestDecodeRecord(t *testing.T) {
	usage := words(image.EndedSize, image.RecordEnded, 7<<8, 3, 0, 500000) // ru_utime
	binary.LittleEndian.PutUint64(usage[8+32:], 4096)                      // ru_maxrss
	tests := []struct {
		in   []byte
		want Record
	}{
		{words(8, image.RecordStarted, 2), Started{Pid: 2}},
		{words(image.WaitingSize, image.RecordWaiting), Waiting{}},
		{words(image.ConfinedSize, image.RecordConfined), Confined{}},
		{words(image.ConfinedSize, image.RecordConfined, 0, 1, 0, 0, 0, 1), Confined{Landlock: true, Memfd: true}},
		{words(16, image.RecordFailed, 41, uint32(syscall.ENOENT)), Failed{Step: 41, Errno: syscall.ENOENT}},
		{usage, Ended{Status: 7 << 8, Usage: syscall.Rusage{Utime: syscall.Timeval{Sec: 3, Usec: 500000}, Maxrss: 4096}}},
	}
	for _, tt := range tests {
		got, err := DecodeRecord(tt.in)
		if d := cmp.Diff(tt.want, got); d != "" || err != nil {
			t.Errorf("DecodeRecord(%x) = %+v, %v; want %+v", tt.in, got, err, tt.want)
		}
	}
	for _, in := range [][]byte{nil, words(7), words(8), words(9, image.RecordStarted), words(8, image.RecordFailed), words(16, image.RecordEnded), words(16, 4)} {
		if got, err := DecodeRecord(in); err == nil {
			t.Errorf("DecodeRecord(%x) = %+v; want an error", in, got)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(words(8, image.RecordStarted, 2))
	f.Add(words(16, image.RecordFailed, 1, 2))
	f.Add(words(image.EndedSize, image.RecordEnded, 9))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRecord(b)
		if (r == nil) == (err == nil) {
			t.Errorf("DecodeRecord(%x) = %v, %v; want a record or an error", b, r, err)
		}
		if len(b) > MaxRecord && err == nil {
			t.Errorf("DecodeRecord of %d bytes = %+v; want an error", len(b), r)
		}
	})
}

func TestCommands(t *testing.T) {
	tests := []struct {
		got  []byte
		want []uint64
	}{
		{CloseFD(15), []uint64{image.CommandClose, 15}},
		{Release(), []uint64{image.CommandRelease, 0}},
		{
			Registers{UID: 1, GID: 2, InitUID: 3, InitGID: 4, Rows: 24, Cols: 80}.Encode(),
			[]uint64{1, 2, 3, 4, 80<<16 | 24},
		},
		{Registers{}.Encode(), make([]uint64, image.Received)},
	}
	for _, tt := range tests {
		var want []byte
		for _, v := range tt.want {
			want = binary.LittleEndian.AppendUint64(want, v)
		}
		if d := cmp.Diff(want, tt.got); d != "" {
			t.Errorf("message = %x; want %x", tt.got, want)
		}
	}
}

func TestTable(t *testing.T) {
	no := ^uintptr(0)
	got := table(map[int]int{0: 7, 2: 7, 5: 3})
	if d := cmp.Diff([]uintptr{7, no, 7, no, no, 3}, got); d != "" {
		t.Errorf("table differs:\n%s", d)
	}
}

func TestRunRefuses(t *testing.T) {
	want := "cannot start PID 1 of the pen: argv is empty"
	if _, _, err := Run(Start{}); err == nil || err.Error() != want {
		t.Errorf("Run(no argv) = %v; want %s", err, want)
	}
	want = "cannot start PID 1 of the pen: descriptor number 512 is not below 512"
	if _, _, err := Run(Start{Argv: []string{"x"}, Files: map[int]int{512: 0}}); err == nil || err.Error() != want {
		t.Errorf("Run(descriptor 512) = %v; want %s", err, want)
	}
}

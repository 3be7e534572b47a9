package stagewire_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// openNow counts the descriptors of this process.
func openNow(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func several(t *testing.T, n int) []*os.File {
	t.Helper()
	var out []*os.File
	for range n {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// FuzzSendReceive: what is sent arrives as it was, inline or in a memfd, with its descriptors; what cannot be sent says so and leaves the
// connection as it was.
func FuzzSendReceive(f *testing.F) {
	f.Add(uint64(1), "launch", "text", uint32(0), uint8(0))
	f.Add(uint64(0), "", "\"\\\u2028<>&", uint32(stagewire.MaxInline), uint8(2))
	f.Add(^uint64(0), "look", "\x7f\x00", uint32(stagewire.MaxLarge), uint8(1))
	f.Fuzz(func(t *testing.T, id uint64, op, text string, pad uint32, n uint8) {
		if !utf8.ValidString(op) || !utf8.ValidString(text) || pad > stagewire.MaxLarge || n > 8 || len(op) > 1000 {
			return
		}
		a, b := pair(t)
		files := several(t, int(n))
		defer linux.CloseAll(files...)
		before := openNow(t)
		body, err := stagewire.Marshal(text + strings.Repeat("p", int(pad)))
		if err != nil {
			t.Fatal(err)
		}
		want := stagewire.Message{ID: id, Op: stagewire.Op(op), Body: body}
		done := make(chan error, 1)
		go func() {
			err := stagewire.Send(a, want, files...)
			if err != nil {
				err = errors.Join(err, stagewire.Send(a, stagewire.Message{ID: 42}))
			}
			done <- err
		}()
		got, came, err := stagewire.Receive(b, make([]byte, stagewire.MaxInline))
		sent := <-done
		linux.CloseNumbers(came...)
		switch {
		case err != nil:
			t.Fatalf("Receive() = %v; want a message", err)
		case sent != nil && (got.ID != 42 || len(came) != 0 || len(body) < stagewire.MaxLarge-2000):
			t.Fatalf("Send() = %v of %d bytes, then %+v with %d files; want only what is too large refused", sent, len(body), got.ID, len(came))
		case sent == nil && (len(came) != int(n) || cmp.Diff(want, got) != ""):
			t.Fatalf("Receive() = %d files for %d (-want +got):\n%s", len(came), n, cmp.Diff(want, got))
		}
		if after := openNow(t); after != before {
			t.Fatalf("open files = %d, then %d; want none kept", before, after)
		}
	})
}

// FuzzLarge: any bytes in a memfd, of any size that the datagram tells, sealed or not. What is no message is refused with its id, and keeps no
// descriptor.
func FuzzLarge(f *testing.F) {
	f.Add([]byte(`{"id":7,"op":"look","body":{}}`), int64(30), true, uint8(1))
	f.Add([]byte(`{"id":8}`), int64(8), true, uint8(0))
	f.Add([]byte(`{"id":7}`), int64(9), true, uint8(0))
	f.Add([]byte(`{"id":7}`), int64(8), false, uint8(0))
	f.Add([]byte(`{"id":7,"large":8}`), int64(18), true, uint8(0))
	f.Add([]byte{}, int64(-1), true, uint8(3))
	f.Add([]byte("{"), int64(1)<<40, true, uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, size int64, sealed bool, extra uint8) {
		if extra > 8 {
			return
		}
		a, b := pair(t)
		file, err := holding(t, data, sealed)
		if err != nil {
			t.Fatal(err)
		}
		files := append([]*os.File{file}, several(t, int(extra))...)
		defer linux.CloseAll(files...)
		before := openNow(t)
		if err := linux.Send(a, fmt.Appendf(nil, `{"id":7,"large":%d}`, size), files...); err != nil {
			t.Fatal(err)
		}
		m, came, err := stagewire.Receive(b, make([]byte, stagewire.MaxInline))
		linux.CloseNumbers(came...)
		var inner stagewire.Message
		good := sealed && size > 0 && size <= int64(len(data)) && size <= stagewire.MaxLarge
		good = good && stagewire.Unmarshal(data[:max(0, min(size, int64(len(data))))], &inner) == nil && inner.ID == 7 && inner.Large == 0
		var bad *stagewire.BadMessageError
		switch {
		case size == 0 && err == nil: // an empty message with descriptors
		case good && (err != nil || len(came) != int(extra) || cmp.Diff(inner, m) != ""):
			t.Fatalf("Receive(%q) = %+v, %d files, %v; want the message", data, m, len(came), err)
		case !good && (!errors.As(err, &bad) || len(came) != 0 || bad.ID != 7):
			t.Fatalf("Receive(%q of %d bytes, sealed %v) = %+v, %d files, %v; want it refused by its id", data, size, sealed, m, len(came), err)
		}
		if after := openNow(t); after != before {
			t.Fatalf("open files = %d, then %d; want none kept", before, after)
		}
	})
}

func holding(t *testing.T, data []byte, sealed bool) (*os.File, error) {
	t.Helper()
	if sealed {
		return linux.SealedFile("fuzz", data)
	}
	f, err := os.CreateTemp(t.TempDir(), "large")
	if err == nil {
		_, err = f.Write(data)
	}
	return f, err
}

package socket

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"pinfold/proto"
)

// chunks reads a text in pieces of at most n bytes.
func chunks(text []byte, n int) func([]byte) (int, error) {
	return func(p []byte) (int, error) {
		if len(text) == 0 {
			return 0, io.EOF
		}
		m := copy(p[:min(len(p), n)], text)
		text = text[m:]
		return m, nil
	}
}

// readAll returns what a frame reader gives: frames, and "!" for each that is too long.
func readAll(t *testing.T, f *frames) (got []string, end error) {
	t.Helper()
	for {
		line, err := f.next()
		switch {
		case errors.Is(err, ErrTooLong):
			got = append(got, "!")
		case err != nil:
			return got, err
		default:
			got = append(got, string(line))
		}
		if len(f.buf) > frameBuffer {
			t.Fatalf("buffer = %d bytes; want at most %d", len(f.buf), frameBuffer)
		}
	}
}

func TestFrames(t *testing.T) {
	longest := strings.Repeat("x", proto.MaxFrame)
	for _, c := range []struct {
		name string
		in   string
		want []string
		end  error
	}{
		{"nothing", "", nil, io.EOF},
		{"frames", "{}\n[]\n", []string{"{}", "[]"}, io.EOF},
		{"line ends of both kinds", "a\r\nb\n", []string{"a", "b"}, io.EOF},
		{"only the last return is a line end", "a\r\r\n", []string{"a\r"}, io.EOF},
		{"empty lines", "\n\r\n\na\n\n", []string{"a"}, io.EOF},
		{"cut off", "a\nb", []string{"a"}, io.ErrUnexpectedEOF},
		{"NUL is the decoder's affair", "a\x00b\n", []string{"a\x00b"}, io.EOF},
		{"the longest", longest + "\n" + longest + "\r\na\n", []string{longest, longest, "a"}, io.EOF},
		{"one too long", longest + "x\na\n", []string{"!", "a"}, io.EOF},
		{"return that is no line end", longest + "\rx\na\n", []string{"!", "a"}, io.EOF},
		{"far too long", strings.Repeat(longest, 5) + "\na\n", []string{"!", "a"}, io.EOF},
		{"two too long", longest + longest + "\n" + longest + longest + "\n", []string{"!", "!"}, io.EOF},
		{"too long without an end", longest + longest, []string{"!"}, io.ErrUnexpectedEOF},
	} {
		for _, n := range []int{1, 4095, 1 << 22} {
			if n == 1 && len(c.in) > 1<<16 {
				continue
			}
			got, err := readAll(t, newFrames(chunks([]byte(c.in), n)))
			if !errors.Is(err, c.end) || strings.Join(got, "|") != strings.Join(c.want, "|") {
				t.Errorf("%s, %d bytes a read: frames = %.80q, %v; want %.80q, %v", c.name, n, got, err, c.want, c.end)
			}
		}
	}
}

func TestFramesGiveMemoryBack(t *testing.T) {
	f := newFrames(chunks([]byte(strings.Repeat("x", proto.MaxFrame)+"\nsmall\n"), 1<<20))
	for _, want := range []int{proto.MaxFrame, len("small")} {
		if line, err := f.next(); err != nil || len(line) != want {
			t.Fatalf("next() = %d bytes, %v; want %d", len(line), err, want)
		}
	}
	if _, err := f.next(); !errors.Is(err, io.EOF) {
		t.Fatalf("next() = %v; want %v", err, io.EOF)
	}
	if len(f.buf) != smallBuffer {
		t.Errorf("buffer after a small frame = %d; want %d", len(f.buf), smallBuffer)
	}
}

// FuzzFrames holds for any bytes in any pieces: the frames are the lines.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("a\n\r\nb\r\n\n{"), 2, 0)
	f.Add([]byte("a\nb\n"), 1, proto.MaxFrame)
	f.Fuzz(func(t *testing.T, in []byte, n, pad int) {
		if n <= 0 {
			n = 1
		}
		if pad > 0 && pad < 3*proto.MaxFrame {
			in = append(bytes.Repeat([]byte("p"), pad), in...)
			n = max(n, 1<<10)
		}
		got, err := readAll(t, newFrames(chunks(in, n)))
		var want []string
		lines := bytes.Split(in, []byte("\n"))
		for _, line := range lines[:len(lines)-1] {
			switch line = bytes.TrimSuffix(line, []byte("\r")); {
			case len(line) > proto.MaxFrame:
				want = append(want, "!")
			case len(line) > 0:
				want = append(want, string(line))
			}
		}
		rest, end := len(lines[len(lines)-1]), io.EOF
		if rest > 0 {
			end = io.ErrUnexpectedEOF
		}
		if rest >= frameBuffer {
			want = append(want, "!")
		}
		if !errors.Is(err, end) || len(got) != len(want) {
			t.Fatalf("frames of %.80q = %.80q, %v; want %.80q, %v", in, got, err, want, end)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("frame %d = %.80q; want %.80q", i, got[i], want[i])
			}
		}
	})
}

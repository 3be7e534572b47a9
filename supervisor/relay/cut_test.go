package relay

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestNextPiece(t *testing.T) {
	full := strings.Repeat("x", MaxPiece)
	for _, c := range []struct {
		name string
		b    string
		g    Grouping
		h    hurry
		want int
	}{
		{"line", "ab\ncd\n", Lines, patient, 3},
		{"empty line", "\n\n", Lines, patient, 1},
		{"lines", "ab\ncd\ne", Batch, patient, 6},
		{"partial waits", "abc", Lines, patient, 0},
		{"partial in a batch waits", "abc", Batch, patient, 0},
		{"partial goes when quiet", "abc", Lines, quiet, 3},
		{"partial goes at the end", "abc", Batch, last, 3},
		{"open character waits when quiet", "abc\xe2\x82", Lines, quiet, 3},
		{"open character alone waits", "\xf0\x9f\x98", Lines, quiet, 0},
		{"open character goes at the end", "abc\xe2\x82", Lines, last, 5},
		{"no character, no wait", "abc\xff", Lines, quiet, 4},
		{"lone continuation bytes do not wait", "\x80\x80\x80", Lines, quiet, 3},
		{"surrogate is no character", "a\xed\xa0", Lines, quiet, 3},
		{"long line is cut", full + "y", Lines, patient, MaxPiece},
		{"longest piece", full[1:] + "\n" + "z", Lines, patient, MaxPiece},
		{"newline one too far", full + "\n", Lines, patient, MaxPiece},
		{"long line is not cut in a character", full[1:] + "€", Lines, patient, MaxPiece - 1},
		{"long line in a batch", full + "\n", Batch, patient, MaxPiece},
		{"a bad line goes alone", "\xff\nok\n", Batch, patient, 2},
		{"good lines before a bad one", "ab\ncd\n\xff\nef\n", Batch, patient, 6},
		{"a bad byte in the middle of a line", "ok\no\xffk\nok\n", Batch, patient, 3},
	} {
		if got := nextPiece([]byte(c.b), 0, c.g, c.h); got != c.want {
			t.Errorf("%s: nextPiece(%.20q, %d, %d) = %d; want %d", c.name, c.b, c.g, c.h, got, c.want)
		}
	}
}

func TestUnfinished(t *testing.T) {
	for _, r := range "é€😀" {
		whole := []byte("a" + string(r))
		for n := 1; n < len(whole)-1; n++ {
			if got := unfinished(whole[:1+n]); got != n {
				t.Errorf("unfinished(%q) = %d; want %d", whole[:1+n], got, n)
			}
		}
		if got := unfinished(whole); got != 0 {
			t.Errorf("unfinished(%q) = %d; want 0", whole, got)
		}
	}
	if got := unfinished(nil); got != 0 {
		t.Errorf("unfinished(nil) = %d; want 0", got)
	}
}

// FuzzNextPiece holds for any bytes: pieces join to the whole, none is too long, none
// ends in a character that would have become whole, and valid lines stay valid.
func FuzzNextPiece(f *testing.F) {
	f.Add([]byte("a\nb€\n\xff\n"), 3)
	f.Add([]byte("\xf0\x9f\x98\x80\xf0\x9f"), 1)
	f.Fuzz(func(t *testing.T, b []byte, chunk int) {
		if chunk <= 0 || chunk > 1<<20 {
			chunk = 7
		}
		for _, g := range []Grouping{Lines, Batch} {
			var pending, joined []byte
			take := func(h hurry) {
				for len(pending) > 0 {
					n := nextPiece(pending, 0, g, h)
					if n == 0 {
						return
					}
					piece := pending[:n]
					if n > MaxPiece || n < 0 {
						t.Fatalf("nextPiece(%q) = %d; want at most %d", pending, n, MaxPiece)
					}
					if g == Lines && bytes.IndexByte(piece[:n-1], '\n') >= 0 {
						t.Fatalf("nextPiece(%q) = %q; want one line", pending, piece)
					}
					joined = append(joined, piece...)
					pending = pending[n:]
					if utf8.Valid(b) && !utf8.Valid(piece) {
						t.Fatalf("nextPiece() = %q of valid text; want whole characters", piece)
					}
				}
			}
			for i, rest := 0, b; len(rest) > 0; i++ {
				n := min(chunk, len(rest))
				pending = append(pending, rest[:n]...)
				rest = rest[n:]
				take(hurry(i % 2))
			}
			take(last)
			if !bytes.Equal(joined, b) {
				t.Fatalf("pieces of %q = %q; want the same bytes", b, joined)
			}
		}
	})
}

package launch

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold/sandbox/internal/image"
)

// TestCommandEncode reads an encoded command as the target would.
func TestCommandEncode(t *testing.T) {
	for _, want := range []Command{
		{Program: "/bin/sh", Dir: "/", Argv: []string{"sh", "", "a b"}, Env: []string{"A=1", "B="}},
		{Program: "/s", Dir: "/d", Argv: []string{"s"}, Script: true},
		{Program: "/p", Dir: "/", Argv: []string{strings.Repeat("x", 128<<10)}, Env: []string{"E=" + strings.Repeat("y", 128<<10)}},
	} {
		e, err := want.Encode()
		if err != nil {
			t.Fatal(err)
		}
		area, words, rest := e.Area, e.Exec, 8*(image.Commanded-1)
		if len(words) != 8*image.Commanded || len(e.Open) != len(words) {
			t.Fatalf("words take %d and %d bytes; want %d", len(words), len(e.Open), 8*image.Commanded)
		}
		if !bytes.Equal(e.Open[:rest], words[:rest]) || e.Open[rest] != image.ActOpen {
			t.Errorf("words to open = %x; want those to execute, %x, with %d", e.Open, words, image.ActOpen)
		}
		word := func(b []byte, i uint64) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
		str := func(at uint64) string {
			s, _, _ := strings.Cut(string(area[at-image.CommandAt:]), "\x00")
			return s
		}
		list := func(at uint64) (all []string) {
			for at -= image.CommandAt; word(area, at) != 0; at += 8 {
				all = append(all, str(word(area, at)))
			}
			return all
		}
		got := Command{
			Program: str(word(words, 0)), Dir: str(word(words, 8)), Argv: list(word(words, 16)),
			Env: list(word(words, 24)), Script: word(words, 32) == image.ActScript,
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("Encode() differs:\n%s", d)
		}
	}
}

func TestCommandEncodeRefuses(t *testing.T) {
	for want, c := range map[string]Command{
		"argv is empty": {Program: "/p", Dir: "/"},
		"zero byte":     {Program: "/p", Dir: "/", Argv: []string{"a\x00b"}},
		"at most":       {Program: "/p", Dir: "/", Argv: []string{strings.Repeat("x", image.MaxCommand)}},
	} {
		if _, err := c.Encode(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Encode() = %v; want %q", err, want)
		}
	}
}

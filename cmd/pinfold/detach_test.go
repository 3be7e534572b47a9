package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

func TestKeysOf(t *testing.T) {
	for names, want := range map[string]string{
		"ctrl-p,ctrl-q": "\x10\x11", "ctrl-@": "\x00", "ctrl-[,A,b": "\x1bAb", "CTRL-P": "\x10", "ctrl-_": "\x1f",
		"": "", "ctrl-": "", "ctrl-1": "", "ab": "", "ctrl-p,": "", "alt-p": "",
	} {
		got, err := keysOf(names)
		if (err != nil) != (want == "") || string(got) != want {
			t.Errorf("keysOf(%q) = %q, %v; want %q", names, got, err, want)
		}
	}
}

// TestKeyReader: what is typed arrives but for the keys that detach, however it is cut.
func TestKeyReader(t *testing.T) {
	for in, want := range map[string]struct {
		out string
		err error
	}{
		"abc":                   {"abc", io.EOF},
		"a\x10b":                {"a\x10b", io.EOF},
		"a\x10":                 {"a\x10", io.EOF},
		"a\x10\x11b":            {"a", errDetached},
		"a\x10\x10\x11":         {"a\x10", errDetached},
		"\x11\x10x\x10\x11":     {"\x11\x10x", errDetached},
		"\x10\x10\x10\x10":      {"\x10\x10\x10\x10", io.EOF},
		"text\x10more\x10\x11z": {"text\x10more", errDetached},
	} {
		for name, r := range map[string]io.Reader{"whole": strings.NewReader(in), "byte by byte": iotest.OneByteReader(strings.NewReader(in))} {
			k := &keyReader{r: r, keys: keys("\x10\x11")}
			var out bytes.Buffer
			var err error
			for buf := make([]byte, 64); err == nil; {
				var n int
				n, err = k.Read(buf)
				out.Write(buf[:n])
			}
			if out.String() != want.out || !errors.Is(err, want.err) {
				t.Errorf("%q %s gives %q, %v; want %q, %v", in, name, out.String(), err, want.out, want.err)
			}
		}
	}
}

func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if _, err := readToken(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("readToken() of no file = %v; want an error that names it", err)
	}
	if err := os.WriteFile(path, []byte(" \n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readToken(path); err == nil {
		t.Error("readToken() of an empty file = nil; want an error")
	}
	if err := keepToken(path, "secret"); err != nil {
		t.Fatal(err)
	}
	got, err := readToken(path)
	info, serr := os.Stat(path)
	if got != "secret" || err != nil || serr != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token reads %q, %v, %v; want it, and the file to be this user's alone", got, err, info)
	}
	if err := keepToken(filepath.Join(path, "x"), "secret"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("keepToken() below a file = %v; want an error without the token", err)
	}
}

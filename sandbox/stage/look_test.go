package stage_test

import (
	"bytes"
	"os"
	"testing"

	"pinfold/sandbox"
)

// TestLookInterpreters: what a program needs to be started at all is looked at
// with the caller's rights too.
func TestLookInterpreters(t *testing.T) {
	b, w := newBench(t), workspace(t)
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	loader := ""
	for _, l := range []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"} {
		if bytes.Contains(sh, []byte(l+"\x00")) {
			loader = l
		}
	}
	if loader == "" {
		t.Fatal("/bin/sh names none of the known ELF loaders")
	}
	missing := append([]byte("/no"), bytes.Repeat([]byte("x"), len(loader)-3)...)
	if err := os.MkdirAll(w+"/shut", 0o700); err != nil {
		t.Fatal(err)
	}
	exec := func(name, data string) {
		write(t, w+name, data)
		if err := os.Chmod(w+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exec("/shut/sh", "#!/bin/sh\n")
	if err := os.Chown(w+"/shut", 0, 0); err != nil {
		t.Fatal(err)
	}
	write(t, w+"/plain", "")
	tests := []struct {
		name, data string
		kind       sandbox.Kind
		interp     string
		err        string
	}{
		{"/good", "#!/bin/sh -e\n", sandbox.KindScript, "/bin/sh", ""},
		{"/env", "#! /usr/bin/env python3\n", sandbox.KindScript, "/usr/bin/env", ""},
		{"/gone", "#!" + w + "/none\n", sandbox.KindScript, w + "/none", "ENOENT"},
		{"/hidden", "#!" + w + "/shut/sh\n", sandbox.KindScript, w + "/shut/sh", "EACCES"},
		{"/noexec", "#!" + w + "/plain\n", sandbox.KindScript, w + "/plain", "EACCES"},
		{"/dir", "#!/usr\n", sandbox.KindScript, "/usr", "EACCES"},
		{"/relative", "#!sh\n", sandbox.KindScript, "sh", ""},
		{"/elf", string(sh), sandbox.KindELF, loader, ""},
		{"/noloader", string(bytes.Replace(sh, []byte(loader), missing, 1)), sandbox.KindELF, string(missing), "ENOENT"},
	}
	var r sandbox.LookRequest
	for _, tt := range tests {
		exec(tt.name, tt.data)
		r.Programs = append(r.Programs, w+tt.name)
	}
	l, _, err := b.Look(t.Context(), b.conn, r)
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range tests {
		if f := l.Programs[i]; f.Kind != tt.kind || f.Interp != tt.interp || f.Err != tt.err || !f.Executable {
			t.Errorf("Look(%s) = %q %q %q; want %q %q %q", tt.name, f.Kind, f.Interp, f.Err, tt.kind, tt.interp, tt.err)
		}
	}
}

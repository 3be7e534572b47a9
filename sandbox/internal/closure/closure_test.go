package closure

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold/test/testkit"
)

// tree makes files below a new root: contents that begin with "->" are links,
// with "<-" copies of host files.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(content, "->"); ok {
			err = os.Symlink(to, p)
		} else {
			err = os.WriteFile(p, []byte(content), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// elfFile is a 64-bit ELF object with the given loader, needed libraries and
// run paths.
func elfFile(interp string, needed, runpath, rpath []string) string {
	var strs bytes.Buffer
	strs.WriteByte(0)
	str := func(s string) uint64 {
		at := uint64(strs.Len())
		strs.WriteString(s + "\x00")
		return at
	}
	var dyn []uint64
	for _, n := range needed {
		dyn = append(dyn, 1, str(n))
	}
	if len(runpath) > 0 {
		dyn = append(dyn, 29, str(strings.Join(runpath, ":")))
	}
	if len(rpath) > 0 {
		dyn = append(dyn, 15, str(strings.Join(rpath, ":")))
	}
	dyn = append(dyn, 0, 0)
	const head, phs, shs = 64, 2 * 56, 3 * 64
	interpAt := uint64(head + phs + shs)
	dynAt := (interpAt + uint64(len(interp)) + 1 + 7) &^ 7
	strAt := dynAt + 8*uint64(len(dyn))
	le := binary.LittleEndian
	b := []byte("\x7fELF\x02\x01\x01")
	b = append(b, make([]byte, 9)...)
	b = le.AppendUint16(b, 3)
	b = le.AppendUint16(b, 62)
	b = le.AppendUint32(b, 1)
	for _, v := range []uint64{0, head, head + phs} {
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint32(b, 0)
	phnum := uint16(0)
	if interp != "" {
		phnum = 1
	}
	for _, v := range []uint16{64, 56, phnum, 64, 3, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 3)
	b = le.AppendUint32(b, 4)
	for _, v := range []uint64{interpAt, 0, 0, uint64(len(interp)) + 1, uint64(len(interp)) + 1, 1} {
		b = le.AppendUint64(b, v)
	}
	b = append(b, make([]byte, head+phs-len(b)+64)...) // second program header unused, section 0
	section := func(kind uint32, off, size uint64, link uint32, ent uint64) {
		b = le.AppendUint32(b, 0)
		b = le.AppendUint32(b, kind)
		for _, v := range []uint64{0, 0, off, size} {
			b = le.AppendUint64(b, v)
		}
		b = le.AppendUint32(b, link)
		b = le.AppendUint32(b, 0)
		b = le.AppendUint64(b, 1)
		b = le.AppendUint64(b, ent)
	}
	section(6, dynAt, 8*uint64(len(dyn)), 2, 16) // SHT_DYNAMIC
	section(3, strAt, uint64(strs.Len()), 0, 0)  // SHT_STRTAB
	b = append(append(b, interp...), 0)
	b = append(b, make([]byte, int(dynAt)-len(b))...)
	for _, v := range dyn {
		b = le.AppendUint64(b, v)
	}
	return string(append(b, strs.Bytes()...))
}

// cacheFile is a cache in glibc's new format.
func cacheFile(entries [][2]string) string {
	le := binary.LittleEndian
	b := []byte(cacheMagic)
	b = le.AppendUint32(b, uint32(len(entries)))
	var strs []byte
	base := cacheHeader + cacheEntry*len(entries)
	body := []byte{}
	for _, e := range entries {
		body = le.AppendUint32(body, 3)
		for _, s := range e {
			body = le.AppendUint32(body, uint32(base+len(strs)))
			strs = append(append(strs, s...), 0)
		}
		body = append(body, make([]byte, 12)...)
	}
	b = le.AppendUint32(b, uint32(len(strs)))
	b = append(b, 2) // little endian
	b = append(b, make([]byte, cacheHeader-len(b))...)
	return string(append(append(b, body...), strs...))
}

func TestUnder(t *testing.T) {
	root := tree(t, map[string]string{
		"lib":                   "->usr/lib",
		"lib64":                 "->usr/lib64",
		"bin":                   "->usr/bin",
		"usr/lib64/ld.so":       "->../lib/ld-2.so",
		"usr/lib/ld-2.so":       elfFile("", nil, nil, nil),
		"usr/lib/libc.so.6":     elfFile("", []string{"ld.so"}, nil, nil),
		"opt/x/libx.so":         "->libx.so.1",
		"opt/x/libx.so.1":       elfFile("", []string{"libc.so.6", "liby.so"}, nil, nil),
		"opt/cached/liby.so":    elfFile("", []string{"libx.so"}, nil, nil), // a cycle; libx by the program's rpath only
		"usr/bin/plain":         elfFile("/lib64/ld.so", []string{"libc.so.6"}, nil, nil),
		"usr/bin/static":        elfFile("", nil, nil, nil),
		"opt/bin/run":           elfFile("/lib64/ld.so", []string{"libx.so"}, nil, []string{"$ORIGIN/../x"}),
		"opt/bin/run2":          elfFile("/lib64/ld.so", []string{"libz.so"}, []string{"${ORIGIN}/../z"}, []string{"/opt/wrong"}),
		"opt/z/libz.so":         elfFile("", nil, nil, nil),
		"opt/wrong/libz.so":     elfFile("", nil, nil, nil),
		"usr/bin/env":           "->plain",
		"usr/bin/sh":            "->plain",
		"usr/local/bin/python3": "->/usr/bin/plain",
		"usr/bin/script":        "#!/bin/sh -e\necho\n",
		"usr/bin/twice":         "#! \t/usr/bin/script\n",
		"usr/bin/py":            "#!/usr/bin/env -S python3 -u\n",
		"usr/bin/loop":          "->loop",
		"usr/bin/text":          "hello",
		"usr/bin/nolib":         elfFile("/lib64/ld.so", []string{"libnone.so"}, nil, nil),
		"usr/bin/noloader":      elfFile("/lib/none.so", nil, nil, nil),
		"usr/bin/nointerp":      "#!/bin/none\n",
		"usr/bin/noenv":         "#!/usr/bin/env nothing\n",
		"usr/bin/relative":      "#!sh\n",
		"usr/bin/rec":           "#!/bin/rec1\n",
		"usr/bin/rec1":          "#!/bin/rec2\n",
		"usr/bin/rec2":          "#!/bin/rec3\n",
		"usr/bin/rec3":          "#!/bin/rec4\n",
		"usr/bin/rec4":          "#!/bin/rec5\n",
		"usr/bin/rec5":          "#!/bin/sh\n",
		"etc/ld.so.cache":       cacheFile([][2]string{{"liby.so", "/opt/cached/liby.so"}, {"ld.so", "/lib64/ld.so"}}),
	})
	plain := []string{"/lib", "/lib64", "/usr/bin/plain", "/usr/lib/ld-2.so", "/usr/lib/libc.so.6", "/usr/lib64/ld.so"}
	for _, c := range []struct {
		paths []string
		want  []string
		err   string
	}{
		{nil, nil, ""},
		{[]string{"/usr/bin/static"}, []string{"/usr/bin/static"}, ""},
		{[]string{"/usr/bin/plain"}, plain, ""},
		{[]string{"/bin/plain", "/usr/bin/plain"}, slices.Concat(plain, []string{"/bin"}), ""},
		{[]string{"/usr/bin/script"}, slices.Concat(plain, []string{"/bin", "/usr/bin/script", "/usr/bin/sh"}), ""},
		{[]string{"/usr/bin/twice"}, slices.Concat(plain, []string{"/bin", "/usr/bin/script", "/usr/bin/sh", "/usr/bin/twice"}), ""},
		{[]string{"/usr/bin/py"}, slices.Concat(plain, []string{"/usr/bin/env", "/usr/bin/py", "/usr/local/bin/python3"}), ""},
		{[]string{"/opt/bin/run"}, []string{
			"/lib", "/lib64", "/opt/bin/run", "/opt/cached/liby.so", "/opt/x/libx.so", "/opt/x/libx.so.1", "/usr/lib/ld-2.so",
			"/usr/lib/libc.so.6", "/usr/lib64/ld.so",
		}, ""},
		{[]string{"/opt/bin/run2"}, []string{"/lib64", "/opt/bin/run2", "/opt/z/libz.so", "/usr/lib/ld-2.so", "/usr/lib64/ld.so"}, ""},
		{[]string{"plain"}, nil, "cannot use program plain: the path is not absolute"},
		{[]string{"/usr/bin/absent"}, nil, "cannot use program /usr/bin/absent: no such file or directory"},
		{[]string{"/usr/bin"}, nil, "cannot use program /usr/bin: not a regular file"},
		{[]string{"/usr/bin/plain/x"}, nil, "cannot use program /usr/bin/plain/x: /usr/bin/plain is not a directory"},
		{[]string{"/usr/bin/loop"}, nil, "cannot use program /usr/bin/loop: too many symbolic links"},
		{[]string{"/usr/bin/text"}, nil, "cannot use program /usr/bin/text: neither an ELF file nor a script"},
		{[]string{"/usr/bin/nolib"}, nil, "cannot use library libnone.so of /usr/bin/nolib: file does not exist in the loader's directories"},
		{[]string{"/usr/bin/noloader"}, nil, "cannot use loader /lib/none.so of /usr/bin/noloader: no such file or directory"},
		{[]string{"/usr/bin/nointerp"}, nil, "cannot use interpreter /bin/none of /usr/bin/nointerp: no such file or directory"},
		{[]string{"/usr/bin/noenv"}, nil, "cannot use interpreter nothing of /usr/bin/noenv: file does not exist in /usr/local/sbin"},
		{[]string{"/usr/bin/relative"}, nil, "cannot use interpreter sh of /usr/bin/relative: the path is not absolute"},
		{[]string{"/usr/bin/rec"}, nil, "too many interpreters of interpreters"},
	} {
		got, err := Under(root, c.paths)
		slices.Sort(c.want)
		if c.err != "" {
			var missing *MissingError
			if err == nil || !strings.Contains(err.Error(), c.err) || !errors.As(err, &missing) {
				t.Errorf("Under(%q) = %v; want a MissingError %q", c.paths, err, c.err)
			}
			continue
		}
		if d := cmp.Diff(c.want, got); err != nil || d != "" {
			t.Errorf("Under(%q) = %v, error %v; want it to differ by nothing (-want +got):\n%s", c.paths, got, err, d)
		}
	}
	_, err := Under(root, []string{"/usr/bin/nolib"})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Under(nolib) = %v; want fs.ErrNotExist inside", err)
	}
}

// TestOfRunsInItsClosure proves the closure by running host programs in a root
// that holds nothing else.
func TestOfRunsInItsClosure(t *testing.T) {
	testkit.NeedRoot(t)
	for _, argv := range [][]string{{"/bin/true"}, {"/bin/bash", "-c", "exit 0"}, {"/usr/bin/git", "--version"}, {"/bin/ls", "/"}} {
		if _, err := os.Stat(argv[0]); errors.Is(err, fs.ErrNotExist) {
			t.Logf("the host has no %s", argv[0])
			continue
		}
		files, err := Of(argv[:1])
		if err != nil {
			t.Errorf("Of(%s) = %v; want files", argv[0], err)
			continue
		}
		root := t.TempDir()
		for _, f := range files {
			place(t, root, f)
		}
		if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "dev/null"), nil, 0o666); err != nil { // git wants one
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Path = argv[0]
		cmd.Err = nil
		out, err := inRoot(cmd, root).CombinedOutput()
		if err != nil {
			t.Errorf("%q in a root of %q = %v, %s; want it to run", argv, files, err, out)
		}
	}
}

func place(t *testing.T, root, path string) {
	t.Helper()
	to := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		link, err := os.Readlink(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(link, to); err != nil {
			t.Fatal(err)
		}
		return
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

func FuzzParseCache(f *testing.F) {
	f.Add([]byte(cacheFile([][2]string{{"libc.so.6", "/lib/libc.so.6"}})))
	f.Add([]byte(cacheMagic))
	f.Add([]byte("ld.so-1.7.0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseCache(b)
		if (c == nil) != (err != nil) {
			t.Errorf("parseCache(%q) = %v, %v; want one of them", b, c, err)
		}
		if c == nil {
			return
		}
		for name, paths := range c.paths {
			for _, p := range paths {
				if !filepath.IsAbs(p) {
					t.Errorf("parseCache: %q is at %q; want absolute paths", name, p)
				}
			}
		}
	})
}

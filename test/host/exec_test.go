package host

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"pinfold/proto"
)

// TestWhatAProgramNeeds: a missing program, interpreter, loader and library are
// told apart.
func TestWhatAProgramNeeds(t *testing.T) {
	t.Parallel()
	d := prepare(t, "x")
	dir, err := os.MkdirTemp("/var/lib", "pinfold-test-") //nolint:usetesting // where no pen can write
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tools, hidden := filepath.Join(dir, "tools"), filepath.Join(dir, "hidden")
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	loader, other := "/lib64/ld-linux-x86-64.so.2", "/lib64/no-linux-x86-64.so.2"
	if runtime.GOARCH == "arm64" {
		loader, other = "/lib/ld-linux-aarch64.so.1", "/lib/no-linux-aarch64.so.1"
	}
	for name, data := range map[string]string{
		"good": "#!/bin/sh\necho well\n", "nointerp": "#!" + tools + "/none\n", "hiddeninterp": "#!" + hidden + "/sh\n",
		"noloader":     strings.Replace(string(sh), loader+"\x00", other+"\x00", 1),
		"nolib":        strings.Replace(string(sh), "libc.so.6\x00", "libd.so.6\x00", 1),
		"../hidden/sh": string(sh),
	} {
		path := filepath.Join(tools, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Contains(sh, []byte(loader+"\x00")) || !bytes.Contains(sh, []byte("libc.so.6\x00")) {
		t.Fatalf("/bin/sh does not name %s and libc.so.6", loader)
	}
	var names []string
	for _, n := range []string{"good", "nointerp", "hiddeninterp", "noloader", "nolib"} {
		names = append(names, filepath.Join(tools, n))
	}
	d.writePolicy(strings.NewReplacer("[python3,", "["+strings.Join(names, ", ")+", python3,", "[ /usr,", "[ "+tools+", /usr,").Replace(basic("", "")))
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	t.Cleanup(d.stop)
	c := d.agent()
	if out := runOK(t, c, proto.Spawn{Cmd: []string{names[0]}}); out != "well\n" {
		t.Errorf("run(good) = %q; want well", out)
	}
	for _, tt := range []struct {
		name  string
		code  proto.Code
		words []string
	}{
		{"nointerp", proto.CodeNotFound, []string{"interpreter", tools + "/none", "it is not there"}},
		{"noloader", proto.CodeNotFound, []string{"loader", other, "it is not there"}},
		{"hiddeninterp", proto.CodeStartFailed, []string{"execve", "no such file or directory", tools + "/hiddeninterp"}},
	} {
		best := time.Hour
		for range 5 {
			at := time.Now()
			_, err := c.Spawn(soon(t), proto.Spawn{Cmd: []string{filepath.Join(tools, tt.name)}})
			best = min(best, time.Since(at))
			e := refused(t, "Spawn("+tt.name+")", err, tt.code)
			for _, w := range tt.words {
				if !strings.Contains(e.Message, w) {
					t.Errorf("Spawn(%s) = %v; want %q in it", tt.name, e, w)
				}
			}
			r, ok := e.Response.(*proto.SpawnResp)
			if e.Hint == "" || tt.code == proto.CodeStartFailed && (!ok || r.Stage == "") {
				t.Errorf("Spawn(%s) = %+v; want a hint, and the step of a failed start", tt.name, e)
			}
		}
		if best > 100*time.Millisecond {
			t.Errorf("Spawn(%s) took %s at best; want 100ms at most", tt.name, best)
		}
	}
	out, errs, v := run(t, c, proto.Spawn{Cmd: []string{filepath.Join(tools, "nolib")}})
	if v.Code != 127 || out != "" || !strings.Contains(errs, "libd.so.6") {
		t.Errorf("run(nolib) = %q, %q, %d; want 127 and a word about the library", out, errs, v.Code)
	}
}

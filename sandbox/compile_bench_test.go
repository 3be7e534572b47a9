package sandbox

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"pinfold/test/testkit"
)

// BenchmarkSpawn compares the start and end of /usr/bin/true in a pen, with its
// tree, ruleset and pipes made anew, with plain ways. One round of all stands in
// one run, interleaved by -count.
func BenchmarkSpawn(b *testing.B) {
	needRoot(b)
	b.Run("ForkExec", func(b *testing.B) {
		for b.Loop() {
			pid, err := syscall.ForkExec("/usr/bin/true", []string{"true"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
			if err != nil {
				b.Fatal(err)
			}
			var ws syscall.WaitStatus
			if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil || ws != 0 {
				b.Fatalf("true = %#x, %v", ws, err)
			}
		}
	})
	b.Run("os/exec", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/usr/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	c := penConfig{profile: testProfile(), argv: []string{"/usr/bin/true"}, work: b.TempDir()}
	build := testBuild(b, c)
	prog, err := Compile(c.profile, build)
	if err != nil {
		b.Fatal(err)
	}
	im, err := prog.Memfd("bench", b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer im.Close()
	tree := testTree(b)
	defer tree.Close()
	pen := func(c penConfig) func(b *testing.B) {
		return func(b *testing.B) {
			b.Helper()
			for b.Loop() {
				p := startPen(b, c, build, prog, im)
				p.start(b)
				if e := p.ended(b); e.Status != 0 {
					b.Fatalf("true = %#x", e.Status)
				}
				p.release(b)
				p.closeAll()
			}
		}
	}
	c.tree = tree
	b.Run("pen", pen(c))
	b.Run("bwrap", func(b *testing.B) {
		bwrap := testkit.NeedProgram(b, "bwrap")
		args := []string{
			"--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
			"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/home/u", "--bind", os.TempDir(), "/home/u/work", "/usr/bin/true",
		}
		for b.Loop() {
			if out, err := exec.Command(bwrap, args...).CombinedOutput(); err != nil {
				b.Fatalf("bwrap = %v, %s", err, out)
			}
		}
	})
}

// BenchmarkCompile is what a new profile costs: list, image, sealed memfd.
func BenchmarkCompile(b *testing.B) {
	c := penConfig{profile: testProfile()}
	build := testBuild(b, c)
	for b.Loop() {
		prog, err := Compile(c.profile, build)
		if err != nil {
			b.Fatal(err)
		}
		f, err := prog.Memfd("bench", ".")
		if err != nil {
			b.Fatal(err)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

package stage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/test/testkit"
)

// runs starts a program from a descriptor that can only be executed.
func runs(t *testing.T, f *os.File) int {
	t.Helper()
	p, err := linux.Reopen(f, unix.O_PATH)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), fmt.Sprintf("/proc/self/fd/%d", linux.FD(p)), "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		linux.CloseAll(p)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	own, err := linux.StatPath("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // Start does not always wait for the exec
		st, err := linux.StatPath(procPath(cmd.Process.Pid, "exe"))
		if err != nil || time.Now().After(end) {
			t.Fatalf("StatPath(exe) = %v; want that the process executes the file within 10s", err)
		}
		if idOf(st) != idOf(own) {
			return cmd.Process.Pid
		}
	}
}

// filled writes a program that waits to f.
func filled(t *testing.T, f *os.File, mode os.FileMode) *os.File {
	t.Helper()
	data, err := os.ReadFile("/bin/sleep")
	if err == nil {
		_, err = f.Write(data)
	}
	if err = errors.Join(err, f.Chmod(mode)); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestImageOfOurs: an image is an anonymous file with the name of the state directory, or a
// nameless one in it where the kernel refuses the first; nothing else is.
func TestImageOfOurs(t *testing.T) {
	testkit.NeedRoot(t)
	state, other := t.TempDir(), t.TempDir()
	memory := func(name string) *os.File {
		n, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_EXEC)
		if errors.Is(err, unix.EINVAL) {
			n, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC) // before Linux 6.3 every one is
		}
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(n), name)
	}
	nameless := func(dir string) *os.File {
		if err := os.MkdirAll(filepath.Join(dir, "stage"), 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(filepath.Join(dir, "stage"), unix.O_TMPFILE|os.O_RDWR, 0o500)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	given := func(f *os.File) *os.File {
		if err := f.Chown(4242, 4242); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for name, tt := range map[string]struct {
		file *os.File
		ours bool
	}{
		"in memory":               {filled(t, memory(imageName(state)), 0o111), true},
		"nameless":                {filled(t, nameless(state), 0o111), true},
		"of another state":        {filled(t, memory(imageName(other)), 0o111), false},
		"nameless, elsewhere":     {filled(t, nameless(other), 0o111), false},
		"of another mode":         {filled(t, memory(imageName(state)), 0o755), false},
		"of another user":         {given(filled(t, memory(imageName(state)), 0o111)), false},
		"nameless, of another":    {given(filled(t, nameless(state), 0o111)), false},
		"with a name that begins": {filled(t, memory(imageName(state)+"x"), 0o111), false},
	} {
		pid := runs(t, tt.file)
		err := (&finder{config: &Config{State: state}}).executesImage(pid)
		if tt.ours && err != nil || !tt.ours && !errors.Is(err, sandbox.ErrGone) {
			t.Errorf("executesImage(%s) = %v; want ours %v", name, err, tt.ours)
		}
	}
}

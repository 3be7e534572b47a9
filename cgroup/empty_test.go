package cgroup

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/test/testkit"
)

func TestEmpty(t *testing.T) {
	b := openBase(t)
	j := newJob(t, b, NoLimits())
	if empty, err := j.Empty(); !empty || err != nil {
		t.Errorf("Empty() of a fresh job = %v, %v; want true", empty, err)
	}
	start(t, j, "exec sleep 1000")
	until(t, "the target to join", func() bool { p, err := j.Pids(); return err == nil && len(p) == 1 })
	if empty, err := j.Empty(); empty || err != nil {
		t.Errorf("Empty() of a job with a process = %v, %v; want false", empty, err)
	}
}

// A file that the kernel gives in pieces is read beyond the first of them.
func TestReadFDInPieces(t *testing.T) {
	const file = "/proc/kallsyms"
	all, err := os.ReadFile(file)
	if err != nil || len(all) < maxFile {
		testkit.LeaveOut(t, fmt.Sprintf("this host's %s is shorter than %d bytes: %v", file, maxFile, err))
	}
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	text, err := readFD(fd)
	if err != nil || len(text) < maxFile || !strings.HasPrefix(string(all), text) {
		t.Errorf("readFD(%s) = %d bytes, %v; want the first %d or more", file, len(text), err, maxFile)
	}
	if err := unix.Close(fd); err != nil {
		t.Error(err)
	}
}

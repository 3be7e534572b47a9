package testkit

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Leftovers lists what Pinfold has on this host now: processes, cgroups, mounts
// and files, one line each, sorted. Names that hold `pinfold` are taken for ours;
// go's own build and test files are not.
func Leftovers() ([]string, error) {
	var out []string
	var errs []error
	for _, list := range []func() ([]string, error){processes, cgroups, mounts, files} {
		lines, err := list()
		out = append(out, lines...)
		errs = append(errs, err)
	}
	slices.Sort(out)
	return out, errors.Join(errs...)
}

// processes finds programs of ours, pens' own PID 1, and members of our cgroups.
func processes() ([]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	self := strconv.Itoa(os.Getpid())
	var out []string
	for _, dir := range dirs {
		pid := filepath.Base(dir)
		if pid == self {
			continue
		}
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil && !gone(err) {
			return nil, err
		}
		name := strings.TrimSpace(string(comm))
		if strings.HasPrefix(name, "pinfold") || strings.Contains(string(groups), "/pinfold-") {
			out = append(out, fmt.Sprintf("process %s %s", pid, name))
		}
	}
	return out, nil
}

// gone says whether an error of reading /proc means that the process ended.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || (err != nil && strings.Contains(err.Error(), "no such process"))
}

func cgroups() ([]string, error) {
	var out []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), "pinfold") {
			out = append(out, "cgroup "+path)
			return filepath.SkipDir
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return out, err
}

func mounts() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var out []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if source := lines.Text(); strings.Contains(fields[4], "pinfold") || strings.Contains(source, " tmpfs pinfold") {
			out = append(out, "mount "+fields[4])
		}
	}
	return out, lines.Err()
}

// files looks at the places where Pinfold and its tests keep things for a while.
func files() ([]string, error) {
	var out []string
	for _, pattern := range []string{
		filepath.Join(os.TempDir(), "pinfold*"), "/run/pinfold*", "/run/user/*/pinfold*", "/dev/shm/pinfold*",
		"/var/lib/pinfold*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			if !strings.HasPrefix(filepath.Base(path), "pinfold-test-run.") {
				out = append(out, "file "+path)
			}
		}
	}
	return out, nil
}

// ownCgroup returns the directory of this process's cgroup in the v2 hierarchy.
func ownCgroup() (string, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for _, top := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
			if _, err := os.Stat(filepath.Join(top, path, "cgroup.procs")); err == nil {
				return filepath.Join(top, path), nil
			}
		}
	}
	return "", errors.New("cannot find the own cgroup: no v2 hierarchy in /proc/self/cgroup that is mounted")
}

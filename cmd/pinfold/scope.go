package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// scopeCommand returns the words that put a private daemon into a cgroup of its
// own; none where it may make one beside this process: at the root of the
// hierarchy, or where that gives no controllers.
func scopeCommand() ([]string, error) {
	dir := ownCgroup()
	if dir == "" || noControllers(dir) {
		return nil, nil
	}
	words := []string{"systemd-run", "--quiet", "--collect", "--scope", "-p", "Delegate=yes", "--"}
	if os.Getuid() != 0 {
		words = append(words[:1:1], append([]string{"--user"}, words[1:]...)...)
	}
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		if path, err := exec.LookPath(words[0]); err == nil {
			words[0] = path
			return words, nil
		}
	}
	return nil, fail(exitFailed, strings.Join(words, " ")+" pinfoldd",
		errorf("cannot make a cgroup in %s: other processes are in it, and systemd is not running to give another", dir))
}

// ownCgroup is the directory of this process's cgroup in the v2 hierarchy; empty at
// its root, and where there is none.
func ownCgroup() string {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok || path == "/" {
			continue
		}
		for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
			if _, err := os.Stat(filepath.Join(top, path, "cgroup.procs")); err == nil {
				return filepath.Join(top, path)
			}
		}
	}
	return ""
}

// noControllers says whether a cgroup has no controllers to give to its children:
// a hybrid host, where limits come from other hierarchies, or one that delegates
// nothing; processes beside the daemon are in nobody's way there.
func noControllers(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	return err == nil && strings.TrimSpace(string(data)) == ""
}

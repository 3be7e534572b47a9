package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// writeOK is W_OK of access(2).
const writeOK = 2

// scopeCommand returns the words that put a private daemon into a cgroup of its
// own; none where it may make one beside this process.
func (c *cli) scopeCommand() ([]string, error) {
	dir := ownCgroup()
	why := needScope(dir)
	if why == "" {
		return nil, nil
	}
	words := []string{"systemd-run", "--quiet", "--collect", "--scope", "-p", "Delegate=yes"}
	manager := "/run/systemd/system" // sd_booted(3)
	if os.Getuid() != 0 {
		words = slices.Insert(words, 1, "--user")
		manager = filepath.Join(c.getenv("XDG_RUNTIME_DIR"), "systemd")
	}
	if info, err := os.Stat(manager); err == nil && info.IsDir() && filepath.IsAbs(manager) {
		if path, err := exec.LookPath(words[0]); err == nil {
			words[0] = path
			return append(words, "--"), nil
		}
	}
	return nil, fail(exitFailed, scopeCure(),
		errorf("cannot make a cgroup in %s: %s, and no systemd is running that could give another", dir, why))
}

// scopeCure is what a person types to give a daemon a cgroup of its own.
func scopeCure() string {
	if os.Getuid() != 0 {
		return "systemd-run --user --scope -p Delegate=yes pinfoldd"
	}
	return "systemd-run --scope -p Delegate=yes pinfoldd"
}

// needScope says why a daemon cannot have a cgroup below that of this process;
// empty: it can. Where controllers are given to the children of a cgroup it may
// have no members itself, and this process is one: cgroups(7).
func needScope(dir string) string {
	switch {
	case dir == "":
		return ""
	case os.Getuid() != 0 && (syscall.Access(dir, writeOK) != nil || syscall.Access(filepath.Join(dir, "cgroup.procs"), writeOK) != nil):
		return "it is not this user's"
	case isRoot(dir), noControllers(dir):
		return ""
	}
	return "other processes are in it"
}

// isRoot says whether a directory is the root of the machine's v2 hierarchy: only
// that one has no cgroup.type.
func isRoot(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, "cgroup.type"))
	return os.IsNotExist(err)
}

// ownCgroup is the directory of this process's cgroup in the v2 hierarchy; empty
// where there is none.
func ownCgroup() string {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
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

// noControllers says whether a cgroup has none of the controllers that carry
// limits to give to its children: a hybrid host, where limits come from other
// hierarchies, or one that delegates nothing; processes beside the daemon are in
// nobody's way there.
func noControllers(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	return err == nil && !slices.ContainsFunc(strings.Fields(string(data)), func(c string) bool {
		return slices.Contains([]string{"memory", "pids", "cpu", "io"}, c)
	})
}

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// controllersV2 are those that are used where they are on the v2 tree.
func controllersV2() []string {
	return []string{ControllerMemory, ControllerPids, ControllerCPU, ControllerIO}
}

// enableV2 finds which controllers the v2 tree can give and switches them on down to the base's children.
func (b *Base) enableV2(f facts, at place) error {
	root := b.hiers[0].base
	above := filepath.Dir(at.v2)
	var want []string
	have, err := readControllers(filepath.Join(f.v2.mount, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range b.controllers {
		if b.host.home[c] == homeNone && slices.Contains(have, c) {
			want = append(want, c)
		}
	}
	if len(want) == 0 {
		return nil
	}
	if err := b.vacate(at); err != nil {
		return err
	}
	from := f.v2.mount
	if at.found {
		from = at.own // never above our own cgroup: that is somebody else's
	}
	b.enableAbove(from, above, want)
	text, err := root.read("cgroup.controllers")
	if err != nil {
		return err
	}
	for _, c := range want {
		if !slices.Contains(strings.Fields(text), c) {
			b.host.lack[c] = fmt.Sprintf("the %s controller is not delegated to cgroup %s: set Delegate=yes on its unit, or %s", c, b.v2path, delegateCure)
			continue
		}
		if err := root.write("cgroup.subtree_control", "+"+c); err != nil {
			b.host.lack[c] = fmt.Sprintf("cannot pass the %s controller on: %v: %s", c, err, delegateCure)
			continue
		}
		b.host.home[c] = homeV2
	}
	return nil
}

// enableAbove switches controllers on from one directory down to the one above the base, as far as we may: what
// could not be switched on shows as missing in the base's cgroup.controllers.
func (b *Base) enableAbove(from, above string, want []string) {
	rel, err := filepath.Rel(from, above)
	if err != nil || !filepath.IsLocal(rel) {
		return
	}
	at := from
	for _, name := range append([]string{"."}, strings.Split(rel, "/")...) {
		at = filepath.Join(at, name)
		file := filepath.Join(at, "cgroup.subtree_control")
		on, err := readControllers(file)
		if err != nil {
			return
		}
		for _, c := range want {
			if slices.Contains(on, c) {
				continue
			}
			if err := os.WriteFile(file, []byte("+"+c), 0); err == nil && at == above && b.back != "" {
				b.toggled = file
			}
		}
	}
}

// vacate moves this process out of a cgroup that must have no members, into <base>/daemon.
func (b *Base) vacate(at place) error {
	if !at.found || machineRoot(at.own) {
		return nil
	}
	root := b.hiers[0].base
	pids, err := (dir{fd: -1}).membersOf(at.own)
	if err != nil {
		return err
	}
	self := os.Getpid()
	if at.own != filepath.Join(at.v2, daemonDir) {
		for _, pid := range pids {
			if pid != self {
				return fmt.Errorf("cannot use cgroup %s: %w: process %d is in it too: %s", at.own, ErrNoBase, pid, delegateCure)
			}
		}
	}
	if err := root.mkdir(daemonDir); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := root.write(daemonDir+"/cgroup.procs", strconv.Itoa(self)); err != nil {
		return fmt.Errorf("cannot move into cgroup %s/daemon: %w", at.v2, err)
	}
	if at.own != filepath.Join(at.v2, daemonDir) {
		b.back = at.own
	}
	return nil
}

// membersOf lists the processes of the cgroup at an absolute path.
func (dir) membersOf(path string) ([]int, error) {
	d, err := openDir(path)
	if err != nil {
		return nil, err
	}
	pids, err := d.pids("")
	return pids, errors.Join(err, d.close())
}

// machineRoot says whether a directory is the root of the machine's v2 tree: only that one has no cgroup.type, cgroups(7).
func machineRoot(path string) bool {
	_, err := os.Lstat(filepath.Join(path, "cgroup.type"))
	return errors.Is(err, os.ErrNotExist)
}

// leave undoes vacate for a base that we made: controllers off above it, this process back, daemon/ away.
func (b *Base) leave(remove func(string) error) error {
	if len(b.hiers) == 0 || !b.hiers[0].made || b.back == "" {
		return nil
	}
	root := b.hiers[0].base
	var errs []error
	for _, c := range b.controllers {
		if b.host.home[c] != homeV2 {
			continue
		}
		errs = append(errs, root.write("cgroup.subtree_control", "-"+c))
		if b.toggled != "" {
			errs = append(errs, os.WriteFile(b.toggled, []byte("-"+c), 0))
		}
	}
	procs := filepath.Join(b.back, "cgroup.procs")
	errs = append(errs, os.WriteFile(procs, []byte(strconv.Itoa(os.Getpid())), 0), remove(filepath.Join(root.path, daemonDir)))
	b.back = ""
	return errors.Join(errs...)
}

// noteLacks says for every controller without a home why, and for swap where its file is missing.
func (b *Base) noteLacks(f facts) {
	for _, c := range b.controllers {
		if b.host.home[c] != homeNone || b.host.lack[c] != "" {
			continue
		}
		why := f.kernelLack(c)
		switch {
		case why != "":
		case b.backend == BackendHybrid:
			why = fmt.Sprintf("this host has the %s controller neither among the v1 hierarchies that are used nor on the v2 tree: "+
				"boot with systemd.unified_cgroup_hierarchy=1 (or cgroup_no_v1=all)", c)
		default:
			why = fmt.Sprintf("the %s controller is not in cgroup.controllers of the v2 tree: %s", c, delegateCure)
		}
		b.host.lack[c] = why
	}
	b.noteSwap()
}

// noteSwap looks for the file of the swap limit.
func (b *Base) noteSwap() {
	switch b.host.home[ControllerMemory] {
	case homeNone:
		b.host.lack[ControllerSwap] = b.host.lack[ControllerMemory]
	case homeV1:
		if i := b.index(ControllerMemory); !exists(b.hiers[i].Dir, "memory.memsw.limit_in_bytes") {
			b.host.lack[ControllerSwap] = "memory.memsw.limit_in_bytes is missing: boot with swapaccount=1"
		}
	case homeV2: // the base's own file: it is a child of where memory was switched on, or was delegated
		if !exists(b.hiers[0].Dir, "memory.swap.max") && exists(b.hiers[0].Dir, "memory.max") {
			b.host.lack[ControllerSwap] = "memory.swap.max is missing: use a kernel with CONFIG_SWAP, booted without swapaccount=0"
		}
	}
}

// index is the place of a controller's hierarchy among hiers; 0, the v2 tree, when it has none of its own.
func (b *Base) index(controller string) int {
	for i, h := range b.hiers {
		if h.Controller == controller {
			return i
		}
	}
	return 0
}

func exists(dirname, file string) bool {
	_, err := os.Lstat(filepath.Join(dirname, file))
	return err == nil
}

// readControllers reads a file with a list of controllers.
func readControllers(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	return strings.Fields(string(text)), err
}

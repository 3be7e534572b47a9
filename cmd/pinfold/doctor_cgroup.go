package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"pinfold/cgroup"
	"pinfold/sandbox"
)

// cgroupLacks says which limits a daemon started here could not hold, by making
// its cgroups and removing them again; where it would be started by way of
// systemd, which gives it a cgroup of its own, there is nothing to try.
func (c *cli) cgroupLacks() ([]sandbox.Lack, error) {
	words, err := c.scopeCommand()
	if words != nil {
		return nil, nil
	}
	if err != nil {
		return lackAll(err.Error(), scopeCure()), nil
	}
	base, err := cgroup.Open("", filepath.Join(os.TempDir(), "doctor", strconv.Itoa(os.Getpid())))
	if errors.Is(err, cgroup.ErrNoBase) {
		return lackAll(err.Error(), scopeCure()), nil
	}
	if err != nil {
		return nil, err
	}
	var out []sandbox.Lack
	lacks := base.Lacks()
	for controller, control := range limitControls() {
		if why, ok := lacks[controller]; ok {
			out = append(out, sandbox.Lack{Control: control, Why: why, Fix: scopeCure()})
		}
	}
	return out, base.Close()
}

// limitControls are the controls that rest on a controller.
func limitControls() map[string]sandbox.Control {
	return map[string]sandbox.Control{
		cgroup.ControllerMemory: sandbox.ControlMemory, cgroup.ControllerPids: sandbox.ControlPids,
		cgroup.ControllerCPU: sandbox.ControlCPU, cgroup.ControllerIO: sandbox.ControlIO,
	}
}

func lackAll(why, fix string) []sandbox.Lack {
	var out []sandbox.Lack
	for _, control := range limitControls() {
		out = append(out, sandbox.Lack{Control: control, Why: why, Fix: fix})
	}
	return out
}

// addLacks joins two lists; of one control the first counts.
func addLacks(list, more []sandbox.Lack) []sandbox.Lack {
	for _, l := range more {
		if !slices.ContainsFunc(list, func(m sandbox.Lack) bool { return m.Control == l.Control }) {
			list = append(list, l)
		}
	}
	return list
}

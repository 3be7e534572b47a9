package main

import (
	"strings"
	"testing"

	"pinfold/sandbox"
)

func TestDiagnose(t *testing.T) {
	lacks := []sandbox.Lack{
		{Control: sandbox.ControlMemory, Why: "no memory controller in this cgroup", Fix: "systemd-run --scope -p Delegate=yes pinfoldd"},
		{Control: sandbox.ControlIO, Why: "no io controller", Fix: "mount cgroup2"},
	}
	d := diagnose(sandbox.Features{Kernel: "6.18.0", Machine: "x86_64", LandlockABI: 7}, lacks)
	if len(d.Controls) != len(sandbox.Controls()) {
		t.Errorf("diagnose has %d controls; want all %d", len(d.Controls), len(sandbox.Controls()))
	}
	var missing []string
	for _, k := range d.Controls {
		if k.missing() {
			missing = append(missing, string(k.Control))
		}
	}
	if strings.Join(missing, " ") != "cgroup.memory" {
		t.Errorf("diagnose misses %q; want cgroup.memory alone", missing)
	}
	text := d.text(style{})
	for _, want := range []string{
		"kernel 6.18.0 x86_64, Landlock ABI 7\n",
		"ok  mounts         available\n",
		"no  cgroup.memory  blocked by no memory controller in this cgroup\n      fix: systemd-run --scope -p Delegate=yes pinfoldd\n",
		"--  cgroup.io      blocked by no io controller (not required by default)\n      fix: mount cgroup2\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("text =\n%s\nwant %q in it", text, want)
		}
	}
}

// TestDiagnoseNetHost: what is missing in the host's network alone stands in the row of the
// control, which is there otherwise.
func TestDiagnoseNetHost(t *testing.T) {
	f := sandbox.Features{LandlockABI: 2}
	d := diagnose(f, nil)
	const want = "ok  landlock       available, but with net: host blocked by Landlock ABI 2, which has no scopes"
	if text := d.text(style{}); !strings.Contains(text, want) || strings.Count(text, "net: host") != 2 {
		t.Errorf("text =\n%s\nwant %q in it, and of no other control", text, want)
	}
	f.LandlockABI = 6
	if text := diagnose(f, nil).text(style{}); strings.Contains(text, "net: host") {
		t.Errorf("text =\n%s\nwant nothing of net: host with ABI 6", text)
	}
}

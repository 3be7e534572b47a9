package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"pinfold/policy"
)

// suitName is the profile that a private daemon of doctor gives to the attacker.
const suitName = "pinfold-attack"

// suited is a policy that lets this program into the pen of a profile.
type suited struct {
	profile string
	source  []byte
	added   []string // what it has that the profile has not
}

// suit makes the policy of a private daemon: the profile as it is applied, and one that
// extends it by this program alone, for the present user.
func suit(p *policy.Policy, profile, self string) (suited, error) {
	who, err := callerNamed("")
	if err != nil {
		return suited{}, err
	}
	p.Bind(idsOf(p.Names()))
	admitted, err := p.Admit(who)
	if err != nil {
		return suited{}, fail(exitFailed, "pinfold policy check", err)
	}
	if profile == "" && len(admitted.Profiles) > 0 {
		profile = admitted.Profiles[0]
	}
	if !slices.Contains(admitted.Profiles, profile) {
		return suited{}, fail(exitFailed, "--profile "+strings.Join(admitted.Profiles, " or "),
			errorf("cannot attack profile %q: policy gives %s to caller %q", profile, strings.Join(admitted.Profiles, ", "), admitted.Caller))
	}
	text, err := p.Show(profile)
	if err != nil {
		return suited{}, err
	}
	s := suited{profile: profile, added: []string{"commands: " + self, "fs.read: " + self}}
	text, hasDir := withoutEnvdir(text)
	if hasDir {
		s.added = append(s.added, "no env.envdir: the attacker gets no secrets")
	}
	var b strings.Builder
	b.WriteString(text)
	fmt.Fprintf(&b, "  %s:\n    extends: %s\n    commands: [ %s ]\n    fs: { read: [ %s ] }\n", suitName, strconv.Quote(profile), strconv.Quote(self), strconv.Quote(self))
	if strings.Contains(text, ", else: refuse }") {
		b.WriteString("    workspace: { else: scratch }\n")
		s.added = append(s.added, "workspace.else: scratch")
	}
	fmt.Fprintf(&b, "callers:\n  - name: doctor\n    match: { uid: %d }\n    profiles: [ %s ]\n", os.Getuid(), suitName)
	if admitted.RunAs != "" {
		fmt.Fprintf(&b, "    run_as: %s\n", strconv.Quote(admitted.RunAs))
	}
	d := p.Dynamic()
	fmt.Fprintf(&b, "dynamic: { first: %d, count: %d }\n", d.First, d.Count)
	s.source = []byte(b.String())
	return s, nil
}

// visible is this program where a pen may see it: itself, or a copy where it lies in a
// place that every pen has for itself or that no view shows.
func visible(self string) (string, func() error, error) {
	none := func() error { return nil }
	own := []string{"/tmp", "/var/tmp", "/run", "/dev", "/proc", "/sys", "/root", "/home"}
	if !slices.ContainsFunc(own, func(dir string) bool { return atOrBelow(self, dir) }) {
		return self, none, nil
	}
	data, err := os.ReadFile(self)
	if err != nil {
		return "", nil, errorf("cannot copy %s: %w", self, cause(err))
	}
	dir, err := os.MkdirTemp("/var/lib", "pinfold-attack-")
	if err != nil {
		return "", nil, fail(exitFailed, "install pinfold in /usr/bin", errorf("cannot copy %s to where pens may see it: %w", self, cause(err)))
	}
	remove := func() error { return os.RemoveAll(dir) }
	to := filepath.Join(dir, "pinfold")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(to, data, 0o755), os.Chmod(to, 0o755)); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return to, remove, nil
}

// withoutEnvdir takes the directory of variables out of a printed profile: what is in
// it is nothing for an attacker.
func withoutEnvdir(text string) (string, bool) {
	lines := strings.SplitAfter(text, "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "      envdir: ") })
	if i < 0 {
		return text, false
	}
	lines = slices.Delete(lines, i, i+1)
	if lines[i-1] == "    env:\n" {
		lines = slices.Delete(lines, i-1, i)
	}
	return strings.Join(lines, ""), true
}

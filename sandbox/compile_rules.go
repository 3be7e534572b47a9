package sandbox

import (
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/ruleset"
)

// StageRules returns the Landlock rules of a profile that the stage puts into the
// ruleset of a launch: those on what it mounts. The others are on file systems that
// PID 1 makes, and PID 1 adds them: a rule on a directory that something is mounted
// on is not seen from inside the mount.
func StageRules(p Profile) []Rule {
	var stage []Rule
	for _, r := range p.Landlock.Rules {
		if !ofInit(p, r.Path) {
			stage = append(stage, r)
		}
	}
	return stage
}

// ofInit says whether the innermost mount that holds a path is made by PID 1.
func ofInit(p Profile, name string) bool {
	made := map[string]bool{procDir: true, ptsDir: true}
	for _, t := range p.Private {
		made[t.Path] = true
	}
	for _, a := range p.Attach {
		made[a.Path] = false
	}
	for dir := name; ; dir = path.Dir(dir) {
		if init, ok := made[dir]; ok {
			return init
		}
		if dir == "/" {
			return false
		}
	}
}

// rules adds PID 1's own rules to the ruleset.
func (c *compiler) rules() {
	if c.b.LandlockABI == 0 {
		return
	}
	for _, r := range c.p.Landlock.Rules {
		if !ofInit(c.p, r.Path) {
			continue
		}
		bits := ruleset.AccessBits(string(r.Access), true, c.b.LandlockABI)
		c.Call("openat", []image.Arg{atCWD, image.Text(r.Path), openPath, image.Int(0)}, image.Want(image.FDProgram))
		rule := image.Words(fmt.Sprintf("{%q, %d}", r.Access, image.FDProgram), uint32(bits), uint32(bits>>32), image.FDProgram)
		c.Call("landlock_add_rule", []image.Arg{
			image.Int(image.FDRuleset), image.Named(1, "LANDLOCK_RULE_PATH_BENEATH"), rule, image.Int(0),
		})
		c.Call("close", []image.Arg{image.Int(image.FDProgram)})
	}
}

// restrict confines the target by Landlock and proves it: the canary's file is
// open to everybody, and no rule covers it. Landlock: Linux 5.13, landlock(7).
func (c *compiler) restrict() {
	if c.b.LandlockABI == 0 {
		return
	}
	c.Call("landlock_restrict_self", []image.Arg{image.Int(image.FDRuleset), image.Int(0)})
	c.Call("openat", []image.Arg{
		image.Int(image.FDCanary), image.Text(image.CanaryFile), image.Named(unix.O_CLOEXEC, "O_RDONLY|O_CLOEXEC"), image.Int(0),
	}, image.Refused(unix.EACCES))
	c.Set(image.RegLandlock, image.Int(1))
}

package stage

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"pinfold/sandbox"
)

// Config is what the stage was started with. No message can change it.
type Config struct {
	State        string // state directory
	Cgroups      []sandbox.CgroupHier
	DynamicFirst uint32
	DynamicCount uint32
	Named        []uint32
	Entered      bool // an ordinary user's stage that has entered its user namespace
	Succeeds     bool // descriptor successorFD says how to start the daemon's successor
	Successor    *sandbox.Successor
	Probe        bool // say what this host can do on standard output, and end
}

// parse reads the stage's command line.
func parse(args []string, stderr io.Writer) (Config, error) {
	var c Config
	f := flag.NewFlagSet("pinfold-stage", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&c.State, "state", "", "state `directory`")
	f.Func("cgroup", "`CONTROLLER=DIR` of our base in a hierarchy; =DIR is cgroup v2", func(s string) error {
		name, dir, ok := strings.Cut(s, "=")
		if !ok || !cleanAbs(dir) {
			return errors.New("not CONTROLLER=DIR with an absolute clean DIR")
		}
		c.Cgroups = append(c.Cgroups, sandbox.CgroupHier{Controller: name, Dir: dir})
		return nil
	})
	f.Func("dynamic", "`FIRST:COUNT` of the uids for run_as: dynamic", func(s string) (err error) {
		first, count, _ := strings.Cut(s, ":")
		if c.DynamicFirst, err = number(first); err != nil {
			return err
		}
		if c.DynamicCount, err = number(count); err != nil {
			return err
		}
		if c.DynamicFirst == 0 || c.DynamicCount == 0 || c.DynamicFirst+c.DynamicCount < c.DynamicFirst {
			return errors.New("not a range of uids above 0")
		}
		return nil
	})
	f.Func("named", "`UID` that pens may run as, whoever asks", func(s string) error {
		u, err := number(s)
		if err == nil && u == 0 {
			err = errors.New("uid 0 is never used")
		}
		c.Named = append(c.Named, u)
		return err
	})
	f.BoolVar(&c.Entered, "entered", false, "it has entered its user namespace: for its own use")
	f.BoolVar(&c.Succeeds, "successor", false, "read from descriptor 4 how to start the daemon's successor: for its daemon's use")
	f.BoolVar(&c.Probe, "probe", false, "print what this host can do as one JSON object and end")
	if err := f.Parse(args); err != nil {
		return Config{}, err
	}
	if f.NArg() > 0 || !c.Probe && !cleanAbs(c.State) {
		return Config{}, fmt.Errorf("cannot start: --state %q is not an absolute clean path, or arguments are left over", c.State)
	}
	return c, nil
}

func cleanAbs(p string) bool {
	return filepath.IsAbs(p) && filepath.Clean(p) == p && !strings.ContainsRune(p, 0)
}

func number(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

// base returns our directory in a hierarchy, and whether there is one.
func (c *Config) base(controller string) (string, bool) {
	for _, h := range c.Cgroups {
		if h.Controller == controller {
			return h.Dir, true
		}
	}
	return "", false
}

// dynamic reports whether uid is one for run_as: dynamic. The first of the range
// is PID 1's alone.
func (c *Config) dynamic(uid uint32) bool {
	return c.DynamicCount > 0 && uid > c.DynamicFirst && uid-c.DynamicFirst < c.DynamicCount
}

package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"pinfold/audit"
	"pinfold/sandbox/confine"
	"pinfold/supervisor/outcome"
)

// keptCaps are the capabilities with which a daemon of root serves: it signals
// processes of pens, which have other uids, and reads programs (for their hashes),
// tokens and env.envdir whoever owns them.
func keptCaps() []int { return []int{confine.CapKill, confine.CapLookAt} }

// confineSelf gives up what the daemon does not need to serve. It comes last of what is
// opened: the stage has been started with everything, and what only root can do at an
// end is asked of it.
func (d *daemon) confineSelf(context.Context) (func() error, error) {
	trees, err := d.ownTrees()
	if err != nil {
		return nil, err
	}
	n := confine.Needs{Trees: trees, Files: []string{filepath.Join(d.c.State, pidName), filepath.Join(d.c.State, outcome.Name)}}
	if os.Geteuid() == 0 {
		n.Caps = keptCaps()
	}
	if d.c.Listener == nil || d.c.OwnFile {
		n.Unlink = append(n.Unlink, filepath.Dir(d.c.Socket))
	}
	for _, h := range d.cgroups.Hierarchies() {
		n.Trees = append(n.Trees, h.Dir)
	}
	remove, write := d.cgroups.Outside()
	n.Files = append(n.Files, write...)
	if d.stage.Features().Rootless { // else the stage removes them
		n.Remove = append(n.Remove, remove...)
	}
	kept, err := confine.Self(n)
	if err != nil {
		return nil, fmt.Errorf("cannot give up what this daemon does not need: %w", err)
	}
	if kept.Landlock == 0 {
		d.log.Warn("this host has no Landlock: what root may write, the daemon could", slog.String("cure", "a kernel with CONFIG_SECURITY_LANDLOCK, and landlock in lsm="))
	}
	return nothing, nil
}

// ownTrees are the directories of the state in which the daemon itself makes files. As
// root the rest is its stage's.
func (d *daemon) ownTrees() ([]string, error) {
	run := filepath.Join(d.c.State, "run")
	own := []string{filepath.Join(run, "spool"), d.recordDir(), audit.Dir(d.auditFile())}
	if !d.stage.Features().Rootless {
		return own, nil
	}
	homes := filepath.Join(d.c.State, "cache")
	if err := os.MkdirAll(homes, 0o711); err != nil {
		return nil, fmt.Errorf("cannot make the directory of kept homes: %w", err)
	}
	return append(own, filepath.Join(run, "scratch"), homes), nil
}

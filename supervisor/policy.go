package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"pinfold/audit"
	"pinfold/policy"
	"pinfold/supervisor/outcome"
)

// readPolicy reads, checks and binds the policy.
func readPolicy(c Config) (*policy.Policy, []policy.Source, error) {
	sources, err := c.Policy()
	if err != nil {
		return nil, nil, err
	}
	p, err := policy.Parse(sources...)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot load policy: %w", err)
	}
	ids, err := resolve(p.Names())
	if err != nil {
		return nil, nil, fmt.Errorf("cannot find the users and groups of the policy: %w", err)
	}
	for _, w := range p.Bind(ids) {
		c.Log.Warn("policy", slog.String("warning", w.String()))
	}
	return p, sources, nil
}

// loadPolicy reads the policy, and swaps it in only when it is whole.
func (d *daemon) loadPolicy() error {
	p, sources, err := readPolicy(d.c)
	if err != nil {
		return err
	}
	if d.first == nil {
		d.first = p
	}
	if err := reloadable(d.first, p); err != nil {
		return err
	}
	d.policy.Store(p)
	sum := sha256.New()
	loaded := audit.PolicyLoaded{}
	for _, s := range sources {
		loaded.Files = append(loaded.Files, s.Name)
		_, _ = fmt.Fprintf(sum, "%d:%s%d:%s", len(s.Name), s.Name, len(s.Data), s.Data) // a hash takes everything
	}
	loaded.SHA256 = hex.EncodeToString(sum.Sum(nil))
	d.loaded.Store(&loaded)
	return nil
}

// reloadable refuses a policy that changes what the stage and the audit log were
// started with: it would be in force and not work.
func reloadable(old, p *policy.Policy) error {
	var errs []error
	if a, b := old.Dynamic(), p.Dynamic(); a != b {
		errs = append(errs, fmt.Errorf("dynamic changes from %d:%d to %d:%d", a.First, a.Count, b.First, b.Count))
	}
	named := old.NamedUIDs()
	for _, uid := range p.NamedUIDs() {
		if !slices.Contains(named, uid) {
			errs = append(errs, fmt.Errorf("run_as names uid %d, which the stage was not told of", uid))
		}
	}
	if a, b := old.Audit(), p.Audit(); a.Sync != b.Sync || a.Interval != b.Interval {
		errs = append(errs, fmt.Errorf("audit.sync changes from %s to %s", a.Sync, b.Sync))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("cannot take this policy without a restart of the daemon: %w", errors.Join(errs...))
}

// reload puts the policy in force as its files are now.
func (d *daemon) reload() {
	err := d.loadPolicy()
	if err != nil {
		d.log.Error("policy not reloaded, the old one stays in force", slog.Any("error", err))
	} else {
		d.note(audit.Subject{}, *d.loaded.Load())
		d.log.Info("policy reloaded")
	}
	d.answer(outcome.Policy, err)
}

package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pinfold/sandbox"
	"pinfold/supervisor/record"
)

// runSize is its size: spools of all callers and what the daemon notes about
// running pens.
const runSize = "size=1g,mode=0700,nr_inodes=262144"

// spoolParts of runParts of it are what spools may hold. The rest is for what is small and
// without which nothing starts: records of sessions, processes and operations.
const (
	spoolParts = 3
	runParts   = 4
)

// spoolSize is how many bytes all spools together may have.
func (d *daemon) spoolSize() (int64, error) {
	run := filepath.Join(d.c.State, "run")
	var fs syscall.Statfs_t
	if err := syscall.Statfs(run, &fs); err != nil {
		return 0, fmt.Errorf("cannot tell the size of %q: %w", run, err)
	}
	return int64(fs.Blocks) / runParts * spoolParts * fs.Bsize, nil
}

// openState prepares STATE/run: a memory file system for what must outlive the
// daemon but not the host. As root one is mounted there unless something (a .mount
// unit, an earlier daemon) has done so. What an earlier daemon has left in it is adopt's.
func (d *daemon) openState(context.Context) (func() error, error) {
	dir := filepath.Join(d.c.State, "run")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("cannot make %q: %w", dir, err)
	}
	mounted, err := mountedAt(dir)
	if err != nil {
		return nil, err
	}
	mine := !mounted && os.Geteuid() == 0
	if mine {
		if err := syscall.Mount(sandbox.RunSource, dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, runSize); err != nil {
			return nil, fmt.Errorf("cannot mount a memory file system at %q: %w; mount one there (var-lib-pinfold-run.mount), or give the daemon CAP_SYS_ADMIN", dir, err)
		}
	}
	for _, sub := range []string{"spool", "scratch"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("cannot make %q: %w", filepath.Join(dir, sub), err)
		}
	}
	if d.records, err = record.Open(d.recordDir()); err != nil {
		return nil, err
	}
	if err := d.records.PutDaemon(d.record()); err != nil {
		return nil, err
	}
	return func() error {
		if !mine || d.stage != nil {
			return nil // then endState has done it
		}
		if err := syscall.Unmount(dir, 0); err != nil {
			return fmt.Errorf("cannot unmount %q: %w", dir, err)
		}
		return nil
	}, nil
}

// recordDir is where the records for the next daemon are.
func (d *daemon) recordDir() string { return filepath.Join(d.c.State, "run", "record") }

// endState gives back what openState, openCgroups and the sessions have put there.
// What takes a privilege that the daemon has given up, the stage does.
func (d *daemon) endState(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	err := d.stage.EndState(ctx)
	if errors.Is(err, sandbox.ErrStageGone) {
		d.log.Warn("the stage has ended: mounts and cgroups stay as they are for the next daemon")
		return nil
	}
	err = errors.Join(err, d.records.DropDaemon(), d.clearRun(filepath.Join(d.c.State, "run"), func(string, string) bool { return false }))
	if d.stage.Features().Rootless {
		return err // its cgroups are removed once the stage has left them
	}
	return errors.Join(err, d.cgroups.CloseBy(func(path string) error { return d.stage.RemoveBase(ctx, path) }))
}

// endTime bounds what the stage may take to unmount STATE/run.
const endTime = 5 * time.Second

// clearRun unmounts and removes what lies in the scratch and spool directories, but for
// what keep names.
func (d *daemon) clearRun(dir string, keep func(sub, name string) bool) error {
	var errs []error
	for _, sub := range []string{"scratch", "spool"} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, e := range entries {
			if keep(sub, e.Name()) {
				continue
			}
			p := filepath.Join(dir, sub, e.Name())
			d.log.Info("removing what an earlier daemon left", slog.String("path", p))
			if mounted, err := mountedAt(p); err != nil {
				errs = append(errs, err)
				continue
			} else if mounted {
				errs = append(errs, os.NewSyscallError("umount2 "+p, syscall.Unmount(p, syscall.MNT_DETACH)))
			}
			errs = append(errs, os.RemoveAll(p))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot clear %q: %w", dir, err)
	}
	return nil
}

// mountedAt reports whether something is mounted at dir, from the mount table
// (proc_pid_mountinfo(5)).
func mountedAt(dir string) (mounted bool, err error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return false, fmt.Errorf("cannot read the mount table: %w", err)
	}
	defer f.Close()
	want := strings.NewReplacer("\\", `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(dir)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		mounted = mounted || len(fields) > 4 && fields[4] == want
	}
	return mounted, lines.Err()
}

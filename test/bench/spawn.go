package main

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"pinfold/proto/client"
)

// bare runs a command with nothing around it: vfork and exec.
func bare(argv ...string) contender {
	return contender{"bare " + argv[0], func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		err := exec.CommandContext(ctx, argv[0], argv[1:]...).Run()
		return time.Since(start), err
	}}
}

// bwrapArgs are the binds that the bench profile has.
func bwrapArgs(argv ...string) []string {
	return append([]string{
		"--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr",
		"--symlink", "usr/bin", "/bin", "--symlink", "usr/sbin", "/sbin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
		"--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
		"--tmpfs", "/workspace", "--chdir", "/workspace", "--",
	}, argv...)
}

// bwrap runs a command in bubblewrap; ok is false where it is not installed or this
// host does not let it.
func bwrap(ctx context.Context, argv ...string) (c contender, ok bool) {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return c, false
	}
	if err := exec.CommandContext(ctx, path, bwrapArgs(argv...)...).Run(); err != nil {
		return c, false
	}
	args := bwrapArgs(argv...)
	return contender{"bwrap --unshare-all " + argv[0], func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		err := exec.CommandContext(ctx, path, args...).Run()
		return time.Since(start), err
	}}, true
}

func measureSpawn(ctx context.Context, o options, d *daemon) ([]row, error) {
	c, err := d.session(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	other, err := d.session(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = other.Close() }()
	var answered, first samples
	anew := alternating(other, "true")
	cs := []contender{
		bare("true"),
		{"pinfold true, every layer, over the socket", func(ctx context.Context) (time.Duration, error) {
			total, at, _, err := spawned(ctx, c, "true")
			answered = append(answered, at)
			return total, err
		}},
		{"pinfold true, no pen ready", func(ctx context.Context) (time.Duration, error) {
			total, at, _, err := anew(ctx)
			first = append(first, at)
			return total, err
		}},
	}
	if b, ok := bwrap(ctx, "true"); ok {
		cs = append(cs, b)
	}
	got, err := interleave(ctx, o.rounds, settle, cs)
	if err != nil {
		return nil, err
	}
	rows := spawnRows("spawn→exit: ", cs, got)
	rows = append(rows, row{
		"  of which request→answer", fmt.Sprintf("%.2f ms", ms(answered.at(0.5))),
		fmt.Sprintf("look, decide, plan, launch, record, exec; no pen ready: %.2f ms", ms(first.at(0.5))),
	})
	if len(got) > 3 {
		ratio := func(i int) string { return fmt.Sprintf("%.2f×", float64(got[3].at(0.5))/float64(got[i].at(0.5))) }
		rows = append(rows, row{"  bwrap / pinfold", ratio(1), "target ≥ 2.5; no pen ready: " + ratio(2)})
	}
	return rows, nil
}

func spawnRows(prefix string, cs []contender, got []samples) []row {
	rows := make([]row, 0, len(cs))
	for i, c := range cs {
		rows = append(rows, got[i].row(prefix+c.name, got[0]))
	}
	return rows
}

func measureEcho(ctx context.Context, o options, d *daemon) ([]row, error) {
	c, err := d.session(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	cs := []contender{
		{"bare echo", func(ctx context.Context) (time.Duration, error) { return firstByte(ctx, "echo", "x") }},
		{"pinfold echo", func(ctx context.Context) (time.Duration, error) {
			_, _, first, err := spawned(ctx, c, "echo", "x")
			return first, err
		}},
	}
	if _, ok := bwrap(ctx, "true"); ok {
		cs = append(cs, contender{"bwrap echo", func(ctx context.Context) (time.Duration, error) {
			return firstByte(ctx, "bwrap", bwrapArgs("echo", "x")...)
		}})
	}
	got, err := interleave(ctx, o.rounds, settle, cs)
	if err != nil {
		return nil, err
	}
	return spawnRows("spawn→first byte: ", cs, got), nil
}

// firstByte is the time from a bare start to the first byte of output.
func firstByte(ctx context.Context, name string, args ...string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	_, err = out.Read(make([]byte, 1))
	took := time.Since(start)
	if err != nil {
		return 0, err
	}
	return took, cmd.Wait()
}

func measureRate(ctx context.Context, o options, d *daemon) ([]row, error) {
	c, err := d.session(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	var rows []row
	for _, width := range []int{1, 8, 64} {
		bareRate, err := rate(ctx, o.rounds*2, width, func(ctx context.Context) error {
			return exec.CommandContext(ctx, "true").Run()
		})
		if err != nil {
			return nil, err
		}
		ours, err := rate(ctx, o.rounds*2, width, func(ctx context.Context) error { return runTrue(ctx, c) })
		if err != nil {
			return nil, err
		}
		rows = append(rows, row{
			fmt.Sprintf("spawns a second, %d at once", width), fmt.Sprintf("%.0f /s", ours), fmt.Sprintf("bare %.0f /s", bareRate),
		})
	}
	return rows, nil
}

func runTrue(ctx context.Context, c *client.Client) error {
	_, _, _, err := spawned(ctx, c, "true")
	return err
}

// rate runs something n times, width at once, and returns how often a second.
func rate(ctx context.Context, n, width int, once func(context.Context) error) (float64, error) {
	var work sync.WaitGroup
	turns := make(chan struct{}, n)
	for range n {
		turns <- struct{}{}
	}
	close(turns)
	failed := make(chan error, width)
	start := time.Now()
	for range width {
		work.Go(func() {
			for range turns {
				if err := once(ctx); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	work.Wait()
	took := time.Since(start)
	select {
	case err := <-failed:
		return 0, err
	default:
		return float64(n) / took.Seconds(), nil
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// measureSteps shows what each step of a spawn takes, as a daemon of its own logs it
// at debug level: an ordinary one times nothing.
func measureSteps(ctx context.Context, o options, _ *daemon) (rows []row, err error) {
	d, err := startDaemon(ctx, o.bin, "PINFOLD_LOG=debug")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	seen := 0
	for _, ready := range []bool{false, true} {
		prefix := "step, no pen ready: "
		if ready {
			prefix = "step, pen ready: "
		}
		if err := spawnSteps(ctx, o, d, ready); err != nil {
			return nil, err
		}
		log := d.log.String()
		rows = append(rows, stepRows(prefix, log[seen:])...)
		seen = len(log)
	}
	if len(rows) == 0 {
		return nil, errors.New("the daemon logged no steps")
	}
	return rows, nil
}

// spawnSteps spawns in a session of its own, which has a pen ready each time or never.
func spawnSteps(ctx context.Context, o options, d *daemon, ready bool) error {
	c, err := d.session(ctx)
	if err != nil {
		return err
	}
	once := alternating(c, "true")
	if ready {
		once = func(ctx context.Context) (_, _, _ time.Duration, err error) { return spawned(ctx, c, "true") }
	}
	for range o.rounds {
		if _, _, _, err := once(ctx); err != nil {
			return errors.Join(err, c.Close())
		}
		time.Sleep(settle) //nolint:forbidigo // see settle
	}
	return errors.Join(c.Shutdown(ctx, time.Second), c.Close())
}

func stepRows(prefix, log string) (rows []row) {
	names, took := steps(log)
	for _, n := range names {
		s := took[n]
		rows = append(rows, row{prefix + n, fmt.Sprintf("%d µs", s.at(0.5).Microseconds()), fmt.Sprintf("p10 %d µs, p95 %d µs", s.at(0.1).Microseconds(), s.at(0.95).Microseconds())})
	}
	return rows
}

// steps reads the log: the names in the order of their first showing, and how long
// each took.
func steps(log string) (names []string, took map[string]samples) {
	lap := regexp.MustCompile(`([a-z0-9.-]+)=([0-9.]+(?:ns|µs|ms|s))(?: |$)`)
	took = map[string]samples{}
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "level=DEBUG msg=steps ") {
			continue
		}
		for _, m := range lap.FindAllStringSubmatch(strings.TrimSpace(line), -1) {
			d, err := time.ParseDuration(m[2])
			if err != nil {
				continue // another attribute
			}
			if took[m[1]] == nil {
				names = append(names, m[1])
			}
			took[m[1]] = append(took[m[1]], d)
		}
	}
	return names, took
}

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
	c, err := d.session(ctx)
	if err != nil {
		return nil, err
	}
	for range o.rounds {
		if err := runTrue(ctx, c); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	if err := errors.Join(c.Shutdown(ctx, time.Second), c.Close()); err != nil {
		return nil, err
	}
	names, took := steps(d.log.String())
	if len(names) == 0 {
		return nil, errors.New("the daemon logged no steps")
	}
	for _, n := range names {
		s := took[n]
		rows = append(rows, row{"step: " + n, fmt.Sprintf("%d µs", s.at(0.5).Microseconds()), fmt.Sprintf("p10 %d µs, p95 %d µs", s.at(0.1).Microseconds(), s.at(0.95).Microseconds())})
	}
	return rows, nil
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

// Command bench prints how fast and how small Pinfold is on this machine, beside
// bare spawns and bubblewrap with the same binds, all interleaved in one run. It
// is no test: it fails only where it cannot measure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of pinfoldd")
	flag.IntVar(&o.rounds, "rounds", 200, "rounds of each spawn measurement")
	flag.IntVar(&o.lines, "lines", 2_000_000, "lines of 80 bytes for the relay")
	flag.IntVar(&o.pens, "pens", 100, "idle pens for the memory measurement")
	flag.StringVar(&o.only, "only", "", "one measurement: spawn, echo, rate, relay, trip, memory, steps")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := bench(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:forbidigo,gocritic // the program's own exit; nothing is deferred but a signal handler
	}
}

// options are the flags.
type options struct {
	bin                 string
	rounds, lines, pens int
	only                string
}

// measurement is one block of the table.
type measurement struct {
	name string
	run  func(context.Context, options, *daemon) ([]row, error)
}

// row is one line of the table.
type row struct {
	what, value, ratio string
}

func measurements() []measurement {
	return []measurement{
		{"spawn", measureSpawn},
		{"echo", measureEcho},
		{"rate", measureRate},
		{"relay", measureRelay},
		{"trip", measureTrip},
		{"memory", measureMemory},
		{"steps", measureSteps},
	}
}

func bench(ctx context.Context, o options, out io.Writer) (err error) {
	d, err := startDaemon(ctx, o.bin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	for _, m := range measurements() {
		if o.only != "" && o.only != m.name {
			continue
		}
		rows, err := m.run(ctx, o, d)
		if err != nil {
			return fmt.Errorf("cannot measure %s: %w\n%s", m.name, err, d.log.String())
		}
		for _, r := range rows {
			if _, err := fmt.Fprintf(out, "%-52s %14s  %s\n", r.what, r.value, r.ratio); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(out); err != nil {
			return err
		}
	}
	return nil
}

// samples are durations of one thing.
type samples []time.Duration

func (s samples) at(fraction float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(fraction*float64(len(sorted))))]
}

func (s samples) row(what string, base samples) row {
	r := row{what: what, value: fmt.Sprintf("%.2f ms", ms(s.at(0.5)))}
	r.ratio = fmt.Sprintf("%.2f× bare, p95 %.2f ms", float64(s.at(0.5))/float64(base.at(0.5)), ms(s.at(0.95)))
	return r
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// contender is one way to run a command.
type contender struct {
	name string
	once func(context.Context) (time.Duration, error)
}

// settle is the pause after each sample: what a contender leaves to be done (removing a
// pen, making the next one ready, together 4 to 8 ms) is in nobody's time but its own.
const settle = 10 * time.Millisecond

// interleave takes rounds samples of each contender, one of each in turn, after a
// few that do not count.
func interleave(ctx context.Context, rounds int, pause time.Duration, cs []contender) ([]samples, error) {
	const warm = 5
	out := make([]samples, len(cs))
	for round := range rounds + warm {
		for i, c := range cs {
			took, err := c.once(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			if round >= warm {
				out[i] = append(out[i], took)
			}
			time.Sleep(pause) //nolint:forbidigo // see settle
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

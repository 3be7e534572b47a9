package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"pinfold/proto"
)

// relayLine is 79 bytes; with its newline 80.
const relayLine = "the quick brown fox jumps over the lazy dog and the lazy dog does not mind it.."

// relayChunk is how many lines the command's file holds.
const relayChunk = 50_000

// relayCommand writes lines of 80 bytes with little work of its own: a file that it
// has made, again and again. What is timed begins with the first byte.
func relayCommand(lines int) []string {
	script := "yes '" + relayLine + "' | head -n " + strconv.Itoa(relayChunk) + " >/tmp/pinfold-lines; exec cat" + strings.Repeat(" /tmp/pinfold-lines", lines/relayChunk)
	return []string{"sh", "-c", script}
}

func measureRelay(ctx context.Context, o options, d *daemon) ([]row, error) {
	bytesSent := float64(o.lines * 80)
	bareTime, err := drainBare(ctx, o.lines)
	if err != nil {
		return nil, err
	}
	rows := []row{{"relay: bare pipe, read and dropped", fmt.Sprintf("%.0f MB/s", bytesSent/1e6/bareTime.Seconds()), "of the same command"}}
	for _, batch := range []bool{false, true} {
		took, err := drainWire(ctx, d.socket, o.lines, batch)
		if err != nil {
			return nil, err
		}
		name := "relay: 80-byte lines, an event each"
		if batch {
			name = "relay: 80-byte lines, batch"
		}
		rows = append(rows, row{name, fmt.Sprintf("%.0f MB/s", bytesSent/1e6/took.Seconds()), "of payload, through the spool"})
	}
	return rows, nil
}

func drainBare(ctx context.Context, lines int) (time.Duration, error) {
	argv := relayCommand(lines)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	buf := make([]byte, 1<<16)
	first, err := out.Read(buf)
	if err != nil {
		return 0, errors.Join(err, cmd.Wait())
	}
	start := time.Now()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{out}, buf)
	if n += int64(first); err != nil || n != int64(lines*80) {
		return 0, errors.Join(err, fmt.Errorf("read %d bytes; want %d", n, lines*80), cmd.Wait())
	}
	took := time.Since(start)
	return took, errors.Join(cmd.Wait(), os.Remove("/tmp/pinfold-lines"))
}

// drainWire is a sink: it reads frames, checks their shape and counts their bytes.
func drainWire(ctx context.Context, socket string, lines int, batch bool) (time.Duration, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReaderSize(conn, 1<<20)
	hello := &proto.Handshake{AgentID: "bench", AgentCaps: []string{proto.Capability}, Proc: proto.ProcOptions{Batch: batch}}
	if err := sendMessage(conn, hello); err != nil {
		return 0, err
	}
	if line, err := in.ReadSlice('\n'); err != nil || !bytes.Contains(line, []byte(`"ok":true`)) {
		return 0, fmt.Errorf("handshake: %s %w", line, err)
	}
	spawn := &proto.SpawnReq{Spawn: proto.Spawn{Cmd: relayCommand(lines), Profile: "all", StdinMode: proto.StdinNull}}
	if err := sendMessage(conn, spawn); err != nil {
		return 0, err
	}
	if line, err := in.ReadSlice('\n'); err != nil || !bytes.Contains(line, []byte(`"ok":true`)) {
		return 0, fmt.Errorf("spawn: %s %w", line, err)
	}
	if _, err := in.Peek(1); err != nil {
		return 0, err
	}
	start := time.Now()
	got, err := sink(in)
	if err == nil && got != lines {
		err = fmt.Errorf("got %d lines; want %d", got, lines)
	}
	return time.Since(start), err
}

// sink counts the lines of output until the final event.
func sink(in *bufio.Reader) (int, error) {
	lead, ends := []byte(`{"type":"proc/read/event"`), []byte(`\\n`)
	lines := 0
	for {
		frame, err := in.ReadSlice('\n')
		if err != nil {
			return lines, err
		}
		if !bytes.HasPrefix(frame, lead) || frame[len(frame)-2] != '}' {
			return lines, fmt.Errorf("cannot use frame %s", frame)
		}
		if bytes.Contains(frame, []byte(`"verdict":`)) {
			return lines, nil
		}
		lines += bytes.Count(frame, ends)
	}
}

func sendMessage(w io.Writer, m proto.Message) error {
	line, err := proto.Append(nil, m)
	if err != nil {
		return err
	}
	_, err = w.Write(line)
	return err
}

// measureTrip times one line there and back, by cat.
func measureTrip(ctx context.Context, o options, d *daemon) ([]row, error) {
	raw, stop, err := rawEcho(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	c, err := d.session(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	p, err := c.Spawn(ctx, proto.Spawn{Cmd: []string{"cat"}, Profile: "all", StdinMode: proto.StdinPipe})
	if err != nil {
		return nil, err
	}
	ours := func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		if err := p.Write(ctx, []byte("x\n")); err != nil {
			return 0, err
		}
		_, err := p.Next(ctx)
		return time.Since(start), err
	}
	got, err := interleave(ctx, o.rounds*10, 0, []contender{{"raw pipes", raw}, {"pinfold", ours}})
	if err != nil {
		return nil, err
	}
	_, err = p.Kill(ctx, proto.SigKill)
	return []row{
		{"write→echo: raw pipes", fmt.Sprintf("%d µs", got[0].at(0.5).Microseconds()), ""},
		{"write→echo: pinfold", fmt.Sprintf("%d µs", got[1].at(0.5).Microseconds()), fmt.Sprintf("p99 %d µs", got[1].at(0.99).Microseconds())},
	}, err
}

// rawEcho is a cat on bare pipes.
func rawEcho(ctx context.Context) (once func(context.Context) (time.Duration, error), stop func(), err error) {
	cmd := exec.CommandContext(ctx, "cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	buf := make([]byte, 16)
	once = func(context.Context) (time.Duration, error) {
		start := time.Now()
		if _, err := io.WriteString(in, "x\n"); err != nil {
			return 0, err
		}
		_, err := out.Read(buf)
		return time.Since(start), err
	}
	return once, func() { _ = in.Close(); _ = cmd.Wait() }, nil
}

// measureMemory compares idle pens with as many bare sleeps by what they take of
// MemAvailable, median of three.
func measureMemory(ctx context.Context, o options, d *daemon) ([]row, error) {
	var bares, pens []float64
	for range 3 {
		b, err := sleepersBare(ctx, o.pens)
		if err != nil {
			return nil, err
		}
		p, err := sleepersPenned(ctx, o.pens, d)
		if err != nil {
			return nil, err
		}
		bares, pens = append(bares, b), append(pens, p)
	}
	per := (median(pens) - median(bares)) / float64(o.pens)
	return []row{{fmt.Sprintf("an idle pen beyond its target, of %d", o.pens), fmt.Sprintf("%.0f KB", per/1024), "by MemAvailable; target ≤ 450"}}, nil
}

func median(v []float64) float64 {
	return slices.Sorted(slices.Values(v))[len(v)/2]
}

func sleepersBare(ctx context.Context, n int) (float64, error) {
	before, err := available()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	cmds := make([]*exec.Cmd, 0, n)
	for range n {
		cmd := exec.CommandContext(ctx, "sleep", "1000")
		if err := cmd.Start(); err != nil {
			cancel()
			return 0, err
		}
		cmds = append(cmds, cmd)
	}
	time.Sleep(time.Second) //nolint:forbidigo // lets the kernel's asynchronous work settle
	after, err := available()
	cancel()
	for _, cmd := range cmds {
		_ = cmd.Wait()
	}
	return before - after, err
}

func sleepersPenned(ctx context.Context, n int, d *daemon) (float64, error) {
	c, err := d.session(ctx)
	if err != nil {
		return 0, err
	}
	if err := runTrue(ctx, c); err != nil { // the profile is compiled
		return 0, errors.Join(err, c.Close())
	}
	before, err := available()
	if err != nil {
		return 0, errors.Join(err, c.Close())
	}
	for range n {
		if _, err := c.Spawn(ctx, proto.Spawn{Cmd: []string{"sleep", "1000"}, Profile: "all", StdinMode: proto.StdinNull}); err != nil {
			return 0, errors.Join(err, c.Close())
		}
	}
	time.Sleep(time.Second) //nolint:forbidigo // lets the kernel's asynchronous work settle
	after, err := available()
	return before - after, errors.Join(err, c.Shutdown(ctx, time.Second), c.Close())
}

// available reads MemAvailable in bytes: proc_meminfo(5).
func available() (float64, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		var kb float64
		if _, err := fmt.Sscanf(line, "MemAvailable: %f kB", &kb); err == nil {
			return kb * 1024, nil
		}
	}
	return 0, errors.New("cannot find MemAvailable in /proc/meminfo")
}

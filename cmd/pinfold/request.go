package main

import (
	"errors"
	"path/filepath"
	"strings"
	"time"

	"pinfold/proto"

	"github.com/spf13/cobra"
)

// request holds the flags that say what to run: those of run and of explain.
type request struct {
	socket  string
	profile string
	cwd     string
	env     []string
	timeout time.Duration
	labels  []string
	asJSON  bool
	fs      []string // of explain alone
	net     []string
}

func (r *request) flags(c *cli, cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.socket, "socket", c.defaultSocket(), "the daemon's socket `PATH`; where there is none, a private daemon is started")
	f.StringVar(&r.profile, "profile", "", "use profile `NAME`, one of the caller's")
	f.StringVar(&r.cwd, "cwd", "", "working `DIR`ectory, below an allowed workspace; without it a scratch one")
	f.StringArrayVar(&r.env, "env", nil, "add variable `K=V`; may be repeated")
	f.DurationVar(&r.timeout, "timeout", 0, "end the command after `TIME`, such as 90s")
	f.StringArrayVar(&r.labels, "label", nil, "mark the process with `LABEL`; may be repeated")
	f.BoolVar(&r.asJSON, "json", false, "print the daemon's messages, one JSON object a line")
}

// spawn is the request as the wire has it.
func (r *request) spawn(argv []string) (proto.Spawn, error) {
	if len(argv) == 0 {
		return proto.Spawn{}, fail(exitUsage, "pinfold run -- ls -l", errors.New("cannot run nothing: no command given"))
	}
	if r.timeout < 0 {
		return proto.Spawn{}, usage(errorf("cannot use --timeout %s: less than nothing", r.timeout))
	}
	env := make(map[string]string, len(r.env))
	for _, kv := range r.env {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || name == "" {
			return proto.Spawn{}, usage(errorf("cannot use --env %q: want NAME=value", kv))
		}
		env[name] = value
	}
	cwd := r.cwd
	if cwd != "" {
		abs, err := filepath.Abs(cwd)
		if err != nil {
			return proto.Spawn{}, errorf("cannot use --cwd %q: %w", cwd, err)
		}
		cwd = abs
	}
	return proto.Spawn{
		Cmd: argv, Cwd: cwd, Env: env, Profile: r.profile, Labels: r.labels, StdinMode: proto.StdinPipe,
		Timeout: proto.WholeSeconds((r.timeout + time.Second - 1) / time.Second),
	}, nil
}

package test

import (
	"go/ast"
	"slices"
	"strings"
)

// room is one row of the import plan: what a package may import.
type room struct {
	own   []string // packages of this module
	other []string // packages of other modules, or a prefix ending in /…
	raw   bool     // may import x/sys/unix, syscall and unsafe
	goes  bool     // may start goroutines
	logs  bool     // may log
	pure  bool     // may not touch the host: no os, net, syscall, time.Now belongs to review
}

// refuses says why a package of this room may not import a path; empty: it may.
func (r room) refuses(_, imp string) string {
	switch {
	case strings.HasPrefix(imp, module+"/"):
		if !slices.Contains(r.own, strings.TrimPrefix(imp, module+"/")) {
			return "not among the packages its row allows"
		}
	case imp == "unsafe", imp == "golang.org/x/sys/unix":
		if !r.raw {
			return "raw kernel calls belong to other rooms"
		}
	case strings.Contains(strings.SplitN(imp, "/", 2)[0], "."):
		if !slices.ContainsFunc(r.other, func(p string) bool { return matches(p, imp) }) {
			return "not among the libraries its row allows"
		}
	case imp == "log/slog":
		if !r.logs {
			return "only supervisor and cmd log"
		}
	case imp == "log":
		return "log/slog is the project's logger"
	case r.pure && slices.Contains([]string{"os", "os/exec", "net", "syscall", "io/ioutil", "os/user"}, imp):
		return "this package never touches the host"
	}
	return ""
}

func matches(pattern, imp string) bool {
	prefix, open := strings.CutSuffix(pattern, "…")
	if open {
		return strings.HasPrefix(imp, prefix)
	}
	return pattern == imp
}

// importPlan has one row for each package. Leaves (proto, policy, sandbox, cgroup,
// audit, systemd) never import each other; the supervisor joins them.
func importPlan() map[string]room {
	const (
		jsonV2   = "github.com/go-json-experiment/json…"
		uuid     = "github.com/google/uuid"
		yaml     = "github.com/goccy/go-yaml…"
		cobra    = "github.com/spf13/cobra"
		landlock = "github.com/landlock-lsm/go-landlock/landlock…"
		cgroups  = "github.com/containerd/cgroups/v3…"
		moby     = "github.com/moby/profiles/seccomp…"
		bpf      = "golang.org/x/net/bpf"
		psx      = "kernel.org/pub/linux/libs/security/libcap/psx"
	)
	return map[string]room{
		"proto":        {other: []string{jsonV2, uuid}, pure: true},
		"proto/client": {own: []string{"proto"}, other: []string{jsonV2}, goes: true},
		"policy":       {other: []string{yaml}, pure: true},
		"audit":        {other: []string{jsonV2, uuid}, raw: true},
		"cgroup":       {other: []string{cgroups, "github.com/opencontainers/runtime-spec/specs-go"}, raw: true, goes: true},
		"systemd":      {raw: true},

		"sandbox": {
			own: []string{
				"sandbox/internal/image", "sandbox/internal/launch", "sandbox/internal/linux",
				"sandbox/internal/filter", "sandbox/internal/ruleset", "sandbox/internal/closure", "sandbox/internal/stagewire",
			},
			other: []string{jsonV2, landlock}, raw: true, goes: true,
		},
		"sandbox/stage": {
			own: []string{
				"sandbox", "sandbox/internal/image", "sandbox/internal/launch", "sandbox/internal/linux",
				"sandbox/internal/filter", "sandbox/internal/ruleset", "sandbox/internal/closure", "sandbox/internal/stagewire",
			},
			other: []string{jsonV2}, raw: true, goes: true,
		},
		"sandbox/confine":            {own: []string{"sandbox/internal/filter", "sandbox/internal/ruleset"}, other: []string{landlock, bpf, psx}, raw: true},
		"sandbox/internal/image":     {raw: true},
		"sandbox/internal/launch":    {own: []string{"sandbox/internal/image", "sandbox/internal/linux"}, raw: true},
		"sandbox/internal/linux":     {raw: true},
		"sandbox/internal/filter":    {other: []string{moby, bpf, "github.com/opencontainers/runtime-spec/specs-go"}, raw: true},
		"sandbox/internal/ruleset":   {other: []string{landlock}, raw: true},
		"sandbox/internal/closure":   {raw: true},
		"sandbox/internal/stagewire": {own: []string{"sandbox/internal/linux"}, other: []string{jsonV2}, raw: true},

		"supervisor/outcome": {other: []string{jsonV2}, raw: true},
		"supervisor/record":  {other: []string{jsonV2}, raw: true},
		"supervisor/relay":   {own: []string{"proto"}, raw: true, goes: true, logs: true},
		"supervisor/socket":  {own: []string{"proto"}, raw: true, goes: true, logs: true},
		"supervisor/ops":     {own: []string{"proto"}, other: []string{jsonV2}},
		"supervisor/session": {own: []string{"proto", "policy", "sandbox", "cgroup", "audit", "supervisor/ops", "supervisor/record", "supervisor/relay", "supervisor/socket"}, other: []string{uuid, jsonV2}, goes: true, logs: true},
		"supervisor": {
			own:   []string{"proto", "policy", "sandbox", "sandbox/confine", "cgroup", "audit", "systemd", "supervisor/outcome", "supervisor/record", "supervisor/relay", "supervisor/socket", "supervisor/session"},
			other: []string{uuid, jsonV2}, raw: true, goes: true, logs: true,
		},

		"cmd/pinfold": {
			own:   []string{"attack", "audit", "proto", "proto/client", "policy", "sandbox", "cgroup", "supervisor/outcome", "supervisor/session"},
			other: []string{cobra, jsonV2, "golang.org/x/term"}, raw: true, goes: true, logs: true,
		},
		"cmd/pinfoldd": {
			own: []string{"policy", "sandbox", "cgroup", "audit", "systemd", "supervisor", "supervisor/socket", "supervisor/session"},
			raw: true, goes: true, logs: true,
		},
		"cmd/pinfold-stage": {own: []string{"sandbox/stage"}, goes: true, logs: true},

		"attack": {raw: true},

		"test/testkit": {raw: true},
		"test/attack":  {},
		"test/host":    {},
		"test/docs":    {},
		"test/bench":   {own: []string{"proto", "proto/client", "test/testkit"}, raw: true, goes: true},
	}
}

// allowedVariable names the package variables that may change, each with its reason.
func allowedVariable(_ string, _ *ast.ValueSpec) bool {
	return false
}

package main

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"pinfold/attack"
	"pinfold/policy"
	"pinfold/sandbox"
)

// judge turns answers into a report, in the order of the table.
func (g *ground) judge(told, reasons map[string]string) {
	for _, a := range attack.Table() {
		if a.Harmful != "" {
			continue
		}
		o := attackOutcome{ID: a.ID, Class: a.Class, Layer: a.Layer, Result: attack.NotApplicable, Reason: reasons[a.ID]}
		if answer, made := told[a.ID]; made {
			o.Result, o.Reason = a.Judge(answer)
		} else if o.Reason == "" {
			o.Result, o.Reason = attack.Broken, "no answer: the attacker ended before it"
		}
		g.report.Attacks = append(g.report.Attacks, o)
	}
}

// without says why an attack proves nothing in this pen, by what policy decided and what
// the kernel showed; empty: it does.
func (g *ground) without(a attack.Attack) string {
	for _, n := range a.Needs {
		if why := g.lacksNeed(n); why != "" {
			return why
		}
	}
	if why := g.layerOff(a.Layer); why != "" {
		return why
	}
	if why := g.given(a.Reads, false); why != "" {
		return why
	}
	return g.given(a.Writes, true)
}

// lacksNeed says what of the decision is in the way of a need.
func (g *ground) lacksNeed(n attack.Need) string {
	abi := g.record.Landlock.ABI
	scopes := "the record shows Landlock ABI " + strconv.Itoa(abi) + ", which has no scopes"
	why := map[attack.Need]struct {
		fits bool
		why  string
	}{
		attack.NetNone:    {g.spec.Net != sandbox.NetHost, "net: host: policy gives the host's network"},
		attack.NetHost:    {g.spec.Net == sandbox.NetHost, "net: none: the pen has no network of the host's"},
		attack.ExecListed: {g.grant.Exec == policy.ExecListed, "exec: anything: policy lets the pen execute what it sees"},
		attack.NotRoot:    {!g.spec.RootMap, "allow_root: the pen shows its uid as 0 already"},
		attack.Strict:     {g.grant.Seccomp.Base == "strict", "seccomp: default: policy allows the call"},
		attack.Denies:     {false, "the scratch workspace has no denied paths"},
		attack.Scoped:     {abi >= 6, scopes},
		attack.Apart:      {abi >= 6 || g.spec.Net != sandbox.NetHost, "net: host: " + scopes},
		attack.OwnHome:    {g.grant.Home.Kind == policy.HomePrivate, "the home is not a private one"},
		attack.FileLimit:  {g.fileLimit() <= 65536, "policy allows more open files"},
	}[n]
	if why.fits {
		return ""
	}
	if why.why == "" {
		return "it needs " + string(n)
	}
	return why.why
}

func (g *ground) fileLimit() uint64 {
	for _, l := range g.record.Rlimits {
		if l.Name == "nofile" {
			return l.Value
		}
	}
	return ^uint64(0)
}

// layerOff says that policy has switched off what would refuse.
func (g *ground) layerOff(l attack.Layer) string {
	control := map[attack.Layer]sandbox.Control{
		attack.Landlock: sandbox.ControlLandlock, attack.Limits: sandbox.ControlRlimits,
	}[l]
	for _, n := range g.spec.Controls {
		if n.Control == control && n.Level == sandbox.LevelOff {
			return "controls: " + string(control) + ": off"
		}
	}
	return ""
}

// given says that policy gives a path of the host, or that this host does not have it.
func (g *ground) given(path string, write bool) string {
	if path == "" {
		return ""
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return "this host has no " + path
	}
	got := pathAccess(g.spec, g.grant, path)
	if got.Rule != "" && (got.Write || got.Read && !write) {
		return "policy gives " + path + " [" + got.Rule + "]"
	}
	if !write && slices.ContainsFunc(g.spec.View, func(e sandbox.Entry) bool { return e.Kind == sandbox.EntryBind && strings.HasPrefix(e.Path, path+"/") }) {
		return "policy gives what lies below " + path
	}
	return ""
}

package main

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"pinfold/policy"
	"pinfold/proto"
	"pinfold/sandbox"
	"pinfold/supervisor/session"
)

// access is what the pen of a command would let it do with a path or a host, as far
// as Pinfold decides: the host's own permissions come on top.
type access struct {
	Kind   string `json:"kind"` // fs or net
	Object string `json:"object"`
	Read   bool   `json:"read"`
	Write  bool   `json:"write"` // of a host: as Read
	Layer  string `json:"layer"` // the control that decides
	Cause  string `json:"cause"`
	Rule   string `json:"rule,omitempty"`
}

// accesses says of each path and host that was asked about whether the pen of an
// allowed command lets it through. It plans as the daemon does.
func (r *request) accesses(a *proto.ExplainResp) ([]access, error) {
	if len(r.fs)+len(r.net) == 0 || !a.Allowed {
		return nil, nil
	}
	e, err := session.DecodeExplanation(a.Explanation)
	if err == nil && e.Grant == nil {
		err = errors.New("the daemon's answer has no grant")
	}
	if err != nil {
		return nil, errorf("cannot say what the pen lets through: %w", err)
	}
	who, err := callerNamed("")
	if err != nil {
		return nil, err
	}
	place, err := placeOf(e.Grant, who, policy.DynamicRange{})
	if err != nil {
		return nil, err
	}
	spec, _ := session.Plan(e.Grant, place)
	var out []access
	for _, name := range r.fs {
		abs, err := filepath.Abs(name)
		if err != nil {
			return nil, errorf("cannot use --fs %q: %w", name, err)
		}
		out = append(out, pathAccess(spec.Profile, e.Grant, abs))
	}
	for _, name := range r.net {
		got, err := netAccess(spec.Profile.Net, name)
		if err != nil {
			return nil, err
		}
		out = append(out, got)
	}
	return out, nil
}

// pathAccess asks the layers in the order in which the kernel meets them: denied
// paths are masks over the mounts, then the mounts, then Landlock.
func pathAccess(p sandbox.Profile, g *policy.Grant, name string) access {
	a := access{Kind: "fs", Object: name, Layer: string(sandbox.ControlMounts)}
	inside, mounted := mountOf(p, name)
	says := g.Path(inside)
	a.Rule = ruleText(says.Rule)
	a.Read, a.Write, a.Cause = mounted.read, mounted.write, mounted.cause
	switch {
	case a.Cause != "":
	case a.Read && !says.Read: // what policy says of the host's path is not about the pen's own tree
		a.Cause, a.Rule = mounted.at+" is the pen's own", ""
	default:
		a.Cause = says.Cause
	}
	for _, d := range p.Deny {
		if !atOrBelow(inside, d.Path) {
			continue
		}
		if a.Write = false; d.Readable {
			a.Cause = says.Cause
			continue
		}
		a.Read, a.Cause, a.Rule = false, says.Cause, ruleText(says.Rule)
		return a
	}
	read, write := landlockOf(p, inside)
	if a.Read && !read || a.Write && !write {
		a.Layer, a.Cause = string(sandbox.ControlLandlock), "no rule of the pen's ruleset allows it"
	}
	a.Read, a.Write = a.Read && read, a.Write && write
	return a
}

// mount is what covers a path in a view. Without a cause the policy has it.
type mount struct {
	read, write bool
	cause       string
	at          string
}

// mountOf finds the mount that covers a path, and the path once the view's own
// symbolic links are followed.
func mountOf(p sandbox.Profile, name string) (string, mount) {
	best, found := -1, mount{cause: "no visible path holds it"}
	consider := func(dir string, m mount) {
		if len(dir) >= best && atOrBelow(name, dir) {
			best, found = len(dir), m
			found.at = dir
		}
	}
	link := ""
	for _, e := range p.View {
		switch e.Kind {
		case sandbox.EntryBind:
			consider(e.Path, mount{read: true, write: e.Writable})
		case sandbox.EntryDevice:
			consider(e.Path, mount{read: true, write: true, cause: e.Path + " is a device that every pen has"})
		case sandbox.EntryFile, sandbox.EntryDir:
			consider(e.Path, mount{read: true, cause: e.Path + " is the pen's own, read-only"})
		case sandbox.EntrySymlink:
			if atOrBelow(name, e.Path) {
				link = path.Join(path.Dir(e.Path), e.Source)
				if path.IsAbs(e.Source) {
					link = e.Source
				}
				link += strings.TrimPrefix(name, e.Path)
			}
		}
	}
	if link != "" && !atOrBelow(link, name) {
		return mountOf(p, link)
	}
	consider("/proc", mount{read: true, write: true, cause: "/proc is the pen's own; what would show or change the host is masked"})
	for _, t := range p.Private {
		consider(t.Path, mount{read: true, write: true, cause: t.Path + " is the command's own"})
	}
	for _, t := range p.Attach {
		consider(t.Path, mount{read: true, write: t.Writable})
	}
	return name, found
}

// landlockOf is what the ruleset lets be done with a path: the rules of all its
// parents together.
func landlockOf(p sandbox.Profile, name string) (read, write bool) {
	for _, n := range p.Controls {
		if n.Control == sandbox.ControlLandlock && n.Level == sandbox.LevelOff {
			return true, true
		}
	}
	for _, r := range p.Landlock.Rules {
		if atOrBelow(name, r.Path) {
			read = read || strings.Contains(string(r.Access), sandbox.AccessRead)
			write = write || strings.Contains(string(r.Access), sandbox.AccessWrite)
		}
	}
	return read, write
}

// netAccess says whether a connection to HOST:PORT leaves the pen.
func netAccess(mode sandbox.NetMode, object string) (access, error) {
	a := access{Kind: "net", Object: object, Layer: string(sandbox.ControlNetNS)}
	host, port, err := net.SplitHostPort(object)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || n == 0 {
		return a, usage(errorf("cannot use --net %q: want HOST:PORT", object))
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case mode == sandbox.NetHost:
		a.Read, a.Write, a.Cause = true, true, "net: host: the pen has the host's network, and Pinfold filters nothing of it"
	case host == "localhost" || err == nil && ip.IsLoopback():
		a.Cause = "net: none: the pen's loopback is its own; only what the command starts itself listens there"
	default:
		a.Cause = "net: none: the pen has a loopback device alone"
	}
	return a, nil
}

// accessText is a line for each.
func accessText(list []access) string {
	var rows [][]string
	word := map[bool]string{true: "yes", false: "no"}
	for _, a := range list {
		says := word[a.Read]
		if a.Kind == "fs" {
			says = "read " + word[a.Read] + ", write " + word[a.Write]
		}
		cause := a.Cause
		if a.Rule != "" {
			cause += " [" + a.Rule + "]"
		}
		rows = append(rows, []string{a.Kind + " " + plain(a.Object), says, "by " + a.Layer + ": " + plain(cause)})
	}
	return table(rows)
}

// accessLine is the same as one JSON object.
func accessLine(list []access) (string, error) {
	b, err := json.Marshal(map[string][]access{"access": list})
	if err != nil {
		return "", errorf("cannot encode the accesses: %w", err)
	}
	return string(b) + "\n", nil
}

func ruleText(r policy.Rule) string {
	if r == (policy.Rule{}) {
		return ""
	}
	return r.String()
}

// atOrBelow reports whether p is dir or lies below it; both are clean.
func atOrBelow(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

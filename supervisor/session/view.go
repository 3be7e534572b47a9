package session

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"pinfold/sandbox"
)

// hostname is what a pen calls its host.
const hostname = "pinfold"

// person is who the command runs as, seen from inside.
type person struct {
	Name string
	UID  uint32 // as seen inside: 0 with allow_root
	GID  uint32
	Home string
}

// baseView returns what every pen has besides its policy's paths: names for the
// run uid, the loader's cache, time zone and resolver, and the harmless devices.
// Everything is read-only.
func baseView(who person, terminal bool) []sandbox.Entry {
	etc := []sandbox.Entry{
		{Kind: sandbox.EntryFile, Path: "/etc/passwd", Data: passwd(who)},
		{Kind: sandbox.EntryFile, Path: "/etc/group", Data: group(who)},
		{Kind: sandbox.EntryFile, Path: "/etc/nsswitch.conf", Data: "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n"},
		{Kind: sandbox.EntryFile, Path: "/etc/hosts", Data: "127.0.0.1\tlocalhost " + hostname + "\n::1\tlocalhost ip6-localhost ip6-loopback\n"},
		{Kind: sandbox.EntryFile, Path: "/etc/hostname", Data: hostname + "\n"},
	}
	for _, name := range []string{
		"ld.so.cache", "resolv.conf", "localtime", "timezone", "protocols", "services", "mime.types",
		"host.conf", "gai.conf", "os-release", "debian_version", "locale.alias",
	} {
		etc = append(etc, sandbox.Entry{
			Kind: sandbox.EntryBind, Path: "/etc/" + name, Source: "/etc/" + name,
			NoExec: true, Follow: true, Missing: sandbox.MissingSkip,
			Copy: name != "resolv.conf", // which others write to while a pen runs
		})
	}
	return append(etc, devices(terminal)...)
}

func devices(terminal bool) []sandbox.Entry {
	names := []string{"null", "zero", "full", "random", "urandom"}
	if terminal {
		names = append(names, "tty")
	}
	var es []sandbox.Entry
	for _, n := range names {
		es = append(es, sandbox.Entry{Kind: sandbox.EntryDevice, Path: "/dev/" + n, Source: "/dev/" + n, Writable: true, NoExec: true})
	}
	for _, l := range [][2]string{
		{"/dev/fd", "/proc/self/fd"},
		{"/dev/stdin", "/proc/self/fd/0"},
		{"/dev/stdout", "/proc/self/fd/1"},
		{"/dev/stderr", "/proc/self/fd/2"},
		{"/dev/ptmx", "pts/ptmx"},
		{"/var/tmp", "/tmp"},
	} {
		es = append(es, sandbox.Entry{Kind: sandbox.EntrySymlink, Path: l[0], Source: l[1]})
	}
	return append(es, sandbox.Entry{Kind: sandbox.EntryDir, Path: "/run"})
}

func passwd(who person) string {
	var b strings.Builder
	if who.UID != 0 {
		b.WriteString("root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n")
	}
	fmt.Fprintf(&b, "%s:x:%d:%d:%s:%s:/bin/sh\n", who.Name, who.UID, who.GID, who.Name, who.Home)
	b.WriteString("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")
	return b.String()
}

func group(who person) string {
	var b strings.Builder
	if who.GID != 0 {
		b.WriteString("root:x:0:\n")
	}
	fmt.Fprintf(&b, "%s:x:%d:\n", who.Name, who.GID)
	b.WriteString("nogroup:x:65534:\n")
	return b.String()
}

// tidy sorts the entries of a view so that parents come before children and
// drops those that an earlier one already shows.
func tidy(es []sandbox.Entry) []sandbox.Entry {
	slices.SortStableFunc(es, func(a, b sandbox.Entry) int { return strings.Compare(a.Path, b.Path) })
	var out []sandbox.Entry
	for _, e := range es {
		e.Path = path.Clean(e.Path)
		if e.Kind == sandbox.EntryFile && hosts(out, e.Path) {
			e.Missing = sandbox.MissingSkip // it has a place only over the host's own
		}
		if n := len(out); n > 0 && out[n-1].Path == e.Path {
			out[n-1] = widest(out[n-1], e)
			continue
		}
		if e.Kind == sandbox.EntryBind && shown(out, e) || e.Kind == sandbox.EntrySymlink && hosts(out, e.Path) {
			continue
		}
		out = append(out, e)
	}
	return out
}

// widest joins two entries of one path: a rule of the policy beats the base view's
// file, and what either lets be written or executed stays so.
func widest(a, b sandbox.Entry) sandbox.Entry {
	if a.Kind != sandbox.EntryBind || b.Kind != sandbox.EntryBind {
		if b.Kind == sandbox.EntryBind {
			return a
		}
		return b
	}
	a.Writable = a.Writable || b.Writable
	a.Copy = a.Copy && b.Copy
	a.NoExec = a.NoExec && b.NoExec
	a.Follow = a.Follow && b.Follow
	return a
}

// shown reports whether a bind of the same place with the same rights already
// contains e.
func shown(es []sandbox.Entry, e sandbox.Entry) bool {
	for _, o := range slices.Backward(es) {
		if o.Kind != sandbox.EntryBind || !below(e.Path, o.Path) {
			continue
		}
		rel := strings.TrimPrefix(e.Path, strings.TrimSuffix(o.Path, "/"))
		return e.Source == strings.TrimSuffix(o.Source, "/")+rel && o.Writable == e.Writable && o.NoExec == e.NoExec && !e.Follow
	}
	return false
}

// hosts reports whether p lies in a tree of the host that the policy shows, in which
// nothing can be made.
func hosts(es []sandbox.Entry, p string) bool {
	return slices.ContainsFunc(es, func(o sandbox.Entry) bool { return o.Kind == sandbox.EntryBind && below(p, o.Path) })
}

// below reports whether p lies strictly below dir; both are clean.
func below(p, dir string) bool {
	if dir == "/" {
		return p != "/" && strings.HasPrefix(p, "/")
	}
	return strings.HasPrefix(p, dir+"/")
}

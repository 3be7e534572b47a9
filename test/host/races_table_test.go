package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"pinfold/proto"
)

// both reads who is here by a relative and an absolute name, and leaves a mark.
const both = `read w <who && echo "$w"; read w <"$PWD/who" && echo "$w"; echo x >mark`

func bothSay(who string) string { return strings.Repeat(who+"\n", 2) }

// sees reads a file again and again for about as long as a swap takes.
func sees(names ...string) string {
	return fmt.Sprintf(`for i in 1 2 3 4 5 6 7 8; do for f in %s; do if read w 2>/dev/null <$f; then echo "$w"; fi; done; done`, strings.Join(names, " "))
}

func (g *ground) plain() string { return forCaller(g.under, plainFS) }

func (g *ground) showing(paths ...string) string {
	return forCaller(g.under, strings.Replace(plainFS, "/etc/ssl", "/etc/ssl, "+strings.Join(paths, ", "), 1))
}

func (g *ground) denying(path string) string {
	return forCaller(g.under, strings.Replace(plainFS, "      missing:", "      deny: [ \""+path+"\" ]\n      missing:", 1))
}

// scratch is a shell script without a workspace on the host.
func scratch(script func(g *ground) string) func(*ground) proto.Spawn {
	return func(g *ground) proto.Spawn { return shell(script(g)) }
}

func working(dir, script string) func(*ground) proto.Spawn {
	return func(g *ground) proto.Spawn { return in(filepath.Join(g.under, dir), script) }
}

func races() []race {
	out := slicesOf(workspaceRaces(), denyRaces(), sourceRaces(), programRaces())
	for i := range out {
		if out[i].uid == 0 && !strings.HasPrefix(out[i].name, "root") {
			out[i].uid = callerUID
		}
	}
	return out
}

func slicesOf(lists ...[]race) (out []race) {
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// workspaceRaces swap the working directory and what is above it.
func workspaceRaces() []race {
	return []race{
		{
			name: "the working directory and a symlink",
			lay: func(g *ground) []swap {
				g.elsewhere("who")
				return []swap{{A: g.project, B: g.link(g.outside, filepath.Join(g.under, "link"), callerUID)}}
			},
			policy: (*ground).plain, spawn: working("project", both), wrong: stated(bothSay("inside")),
		},
		{
			name: "a directory above the working directory and a symlink",
			lay: func(g *ground) []swap {
				put(g.t, g.under, "a/b/c/who", "inside\n")
				g.elsewhere("b/c/who")
				return []swap{{A: filepath.Join(g.under, "a"), B: g.link(g.outside, filepath.Join(g.under, "link"), callerUID)}}
			},
			policy: (*ground).plain, spawn: working("a/b/c", both), wrong: stated(bothSay("inside")),
		},
		{
			name: "two working directories",
			lay: func(g *ground) []swap {
				put(g.t, g.under, "other/who", "other\n")
				g.elsewhere("who")
				return []swap{{A: g.project, B: filepath.Join(g.under, "other")}}
			},
			policy: (*ground).plain, spawn: working("project", both),
			wrong: func(_ *ground, out string, _ *proto.Verdict) string {
				if out != bothSay("inside") && out != bothSay("other") {
					return fmt.Sprintf("output = %q; want one directory under both of its names", clip(out))
				}
				return ""
			},
		},
	}
}

// oneOf is a process that must not have seen two things of which one is hidden from it.
func oneOf(a, b string) judge {
	return func(_ *ground, out string, _ *proto.Verdict) string {
		if strings.Contains(out, a) && strings.Contains(out, b) {
			return fmt.Sprintf("output = %q; want one of them hidden under every name", clip(out))
		}
		return among(a, b)(nil, out, nil)
	}
}

// denyRaces swap denied paths inside the workspace and directories above them. A mask
// lies on what was at the denied path at the start: whatever that is called later, it
// is not read. What comes there later from outside is not masked.
func denyRaces() []race {
	at := func(g *ground, name string) string { return filepath.Join(g.project, name) }
	denying := func(path string) func(*ground) string {
		return func(g *ground) string { return g.denying("${workspace}/" + path) }
	}
	lay := func(first, second string, pairs func(g *ground) []swap) func(*ground) []swap {
		return func(g *ground) []swap {
			put(g.t, g.project, first, "first\n")
			if second != "" {
				put(g.t, g.project, second, "second\n")
			}
			g.elsewhere("b/one")
			return pairs(g)
		}
	}
	return []race{
		{
			name: "a denied file and another", policy: denying("d/one"), spawn: working("project", sees("d/one", "d/two")), wrong: oneOf("first", "second"),
			lay: lay("d/one", "d/two", func(g *ground) []swap { return []swap{{A: at(g, "d/one"), B: at(g, "d/two")}} }),
		},
		{
			name: "a denied file and a symlink", policy: denying("d/one"), spawn: working("project", sees("d/one", "d/two")), wrong: oneOf("first", "second"),
			lay: lay("d/one", "d/plain", func(g *ground) []swap {
				return []swap{{A: at(g, "d/one"), B: g.link("plain", at(g, "d/two"), callerUID)}}
			}),
		},
		{
			name: "a denied file and a symlink to outside", policy: denying("d/one"), spawn: working("project", sees("d/one", "d/two")), wrong: among("first"),
			lay: lay("d/one", "", func(g *ground) []swap {
				return []swap{{A: at(g, "d/one"), B: g.link(filepath.Join(g.outside, "b/one"), at(g, "d/two"), callerUID)}}
			}),
		},
		{
			name: "directories above a denied file", policy: denying("a/b/one"), spawn: working("project", sees("a/b/one", "x/b/one")), wrong: oneOf("first", "second"),
			lay: lay("a/b/one", "x/b/one", func(g *ground) []swap {
				return []swap{{A: at(g, "a"), B: at(g, "x")}}
			}),
		},
		{
			// A mask does not follow out of a pinned directory; the path itself stays held.
			name: "the directory of a denied file and another", policy: denying("a/b/one"), spawn: working("project", sees("a/b/one", "a/b/one")), wrong: oneOf("first", "second"),
			lay: lay("a/b/one", "x/b/one", func(g *ground) []swap {
				return []swap{{A: at(g, "a/b"), B: at(g, "x/b")}}
			}),
		},
		{
			name: "a directory above a denied file and a symlink", policy: denying("a/b/one"), spawn: working("project", sees("a/b/one", "x/b/one")), wrong: among("first"),
			lay: lay("a/b/one", "", func(g *ground) []swap { return []swap{{A: at(g, "a"), B: g.link(g.outside, at(g, "x"), callerUID)}} }),
		},
		{
			name: "a directory above a placeholder and a symlink", policy: denying("a/b/none/at/all"), spawn: working("project", "echo done"), wrong: stated("done\n"),
			lay: lay("a/b/one", "", func(g *ground) []swap { return []swap{{A: at(g, "a"), B: g.link(g.outside, at(g, "x"), callerUID)}} }),
		},
		{
			name: "a denied directory that goes and comes", policy: denying("a/b/one"), spawn: working("project", sees("a/b/one")),
			lay: lay("a/b/one", "", func(g *ground) []swap { return []swap{{A: at(g, "a"), B: at(g, "away"), Move: true}} }),
			wrong: func(g *ground, out string, v *proto.Verdict) string {
				if out != "" && len(v.Denies) == 0 {
					return fmt.Sprintf("output = %q and nothing of it in the verdict; want it told that the placeholder was replaced", clip(out))
				}
				return among("first")(g, out, v)
			},
		},
	}
}

// sourceRaces swap what the view shows of the host.
func sourceRaces() []race {
	tree := func(g *ground) string {
		put(g.t, g.beside, "top/mid/lib/who", "inside\n")
		put(g.t, g.beside, "top/mid/file", "inside\n")
		g.elsewhere("lib/who")
		g.elsewhere("file")
		return filepath.Join(g.beside, "top/mid")
	}
	shown := func(g *ground) string {
		return g.showing(filepath.Join(g.beside, "top/mid/lib"), filepath.Join(g.beside, "top/mid/file"))
	}
	reads := scratch(func(g *ground) string {
		return sees(filepath.Join(g.beside, "top/mid/lib/who"), filepath.Join(g.beside, "top/mid/file"))
	})
	ends := func(uid int) func(*ground) []swap {
		return func(g *ground) []swap {
			mid := tree(g)
			if uid == 0 {
				for _, name := range []string{"top", "top/mid", "top/mid/lib", "top/mid/file"} {
					if err := os.Lchown(filepath.Join(g.beside, name), 0, 0); err != nil {
						g.t.Fatal(err)
					}
				}
			}
			return []swap{
				{A: filepath.Join(mid, "lib"), B: g.link(filepath.Join(g.outside, "lib"), filepath.Join(mid, "x"), uid)},
				{A: filepath.Join(mid, "file"), B: g.link(filepath.Join(g.outside, "file"), filepath.Join(mid, "y"), uid)},
			}
		}
	}
	return []race{
		{name: "sources and symlinks of the caller", lay: ends(callerUID), policy: shown, spawn: reads, wrong: among("inside")},
		{name: "root's sources and symlinks", lay: ends(0), policy: shown, spawn: reads, wrong: among("inside")},
		{
			name: "a directory above sources and a symlink of the caller",
			lay: func(g *ground) []swap {
				mid := tree(g)
				return []swap{{A: mid, B: g.link(g.outside, filepath.Join(g.beside, "top/x"), callerUID)}}
			},
			policy: shown, spawn: reads, wrong: among("inside"),
		},
		{
			name: "root's sources and others",
			lay: func(g *ground) []swap {
				mid := tree(g)
				put(g.t, g.beside, "top/mid/lib2/who", "other\n")
				return []swap{{A: filepath.Join(mid, "lib"), B: filepath.Join(mid, "lib2")}}
			},
			policy: func(g *ground) string { return g.showing(filepath.Join(g.beside, "top/mid/lib")) },
			spawn:  scratch(func(g *ground) string { return sees(filepath.Join(g.beside, "top/mid/lib/who")) }),
			wrong:  oneOf("inside", "other"),
		},
	}
}

// programRaces swap the program, which tells its inode.
func programRaces() []race {
	tool := func(g *ground, dir string) {
		for _, name := range []string{"prog", "other"} {
			put(g.t, dir, "bin/"+name, "")
			if err := errors.Join(copyFile("/usr/bin/stat", filepath.Join(dir, "bin", name)), os.Chmod(filepath.Join(dir, "bin", name), 0o755)); err != nil {
				g.t.Fatal(err)
			}
		}
	}
	policy := func(g *ground) string {
		text := g.showing(filepath.Join(g.beside, "bin"))
		return strings.Replace(text, "commands: [", "commands: ["+filepath.Join(g.beside, "bin/prog")+", ", 1)
	}
	spawn := func(g *ground) proto.Spawn {
		return proto.Spawn{Cmd: []string{filepath.Join(g.beside, "bin/prog"), "-L", "-c", "%i", "/proc/self/exe"}}
	}
	lay := func(to func(g *ground) []swap) func(*ground) []swap {
		return func(g *ground) []swap {
			tool(g, g.beside)
			tool(g, g.outside)
			g.elsewhere("who")
			return to(g)
		}
	}
	foreign := func(g *ground, out string, _ *proto.Verdict) string {
		for _, name := range []string{"prog", "other"} {
			var st syscall.Stat_t
			if err := syscall.Stat(filepath.Join(g.outside, "bin", name), &st); err != nil || strings.TrimSpace(out) == strconv.FormatUint(st.Ino, 10) {
				return fmt.Sprintf("output = %q, %v; want no program from outside", out, err)
			}
		}
		if strings.TrimSpace(out) == "" {
			return "no output; want the program's inode"
		}
		return ""
	}
	return []race{
		{
			name: "the program and another", policy: policy, spawn: spawn, wrong: foreign,
			lay: lay(func(g *ground) []swap {
				return []swap{{A: filepath.Join(g.beside, "bin/prog"), B: filepath.Join(g.beside, "bin/other")}}
			}),
		},
		{
			name: "the program and symlinks", policy: policy, spawn: spawn, wrong: foreign,
			lay: lay(func(g *ground) []swap {
				bin := filepath.Join(g.beside, "bin")
				return []swap{
					{A: filepath.Join(bin, "prog"), B: g.link("other", filepath.Join(bin, "x"), callerUID)},
					{A: filepath.Join(bin, "prog"), B: g.link(filepath.Join(g.outside, "bin/prog"), filepath.Join(bin, "y"), callerUID)},
				}
			}),
		},
		{
			name: "a directory above the program and a symlink", policy: policy, spawn: spawn, wrong: foreign,
			lay: lay(func(g *ground) []swap {
				return []swap{{A: filepath.Join(g.beside, "bin"), B: g.link(filepath.Join(g.outside, "bin"), filepath.Join(g.beside, "x"), callerUID)}}
			}),
		},
	}
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

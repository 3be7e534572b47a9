package policy

import (
	"fmt"
	"path"
	"strings"
)

func commandKeys() []key { return keysOf(commandFields()) }

func commandFields() []field[command] {
	return []field[command]{
		{key{"path", plain(shapeText), "", "", "The program: a bare name or an absolute path."}, func(d *decoder, n *node, t *command) {
			t.name = d.program(n)
		}},
		{key{"args", objectOf(argsKeys), "", "any arguments", "Patterns for its arguments. They are guard-rails; the pen is the boundary."}, func(d *decoder, n *node, t *command) {
			decodeMap(d, n, "args", argsFields(), t)
		}},
	}
}

func argsKeys() []key { return keysOf(argsFields()) }

func argsFields() []field[command] {
	patterns := listOf(either(plain(shapeText), listOf(plain(shapeText))))
	return []field[command]{
		{key{"allow", patterns, "", "any arguments", "Patterns of which one must match all arguments from the first to the last."}, func(d *decoder, n *node, t *command) {
			t.allow, t.given = d.patterns(n), true
			if n.kind == nodeList && len(n.items) == 0 {
				d.problem(n.pos, "an empty list allows no arguments at all, not even none", `for no arguments write allow: [""]`)
			}
		}},
		{key{"deny", patterns, "", "[]", "Patterns of which none may match; before `allow`."}, func(d *decoder, n *node, t *command) {
			t.deny = d.patterns(n)
		}},
	}
}

func (d *decoder) commands(n *node) []command {
	if !d.want(n, nodeList, "commands") {
		return nil
	}
	if len(n.items) == 0 {
		d.problem(n.pos, "an empty list of commands", "a profile without commands can start nothing")
	}
	var out []command
	for _, item := range n.items {
		c := command{pos: item.pos}
		if item.kind == nodeMap {
			decodeMap(d, item, "a command", commandFields(), &c)
			if c.name == "" && !hasKey(item, "path") {
				d.problem(item.pos, "a command without path", "")
			}
		} else {
			c.name = d.program(item)
		}
		if c.name != "" {
			out = append(out, c)
		}
	}
	return out
}

func hasKey(n *node, name string) bool {
	for _, p := range n.pairs {
		if p.key.text == name {
			return true
		}
	}
	return false
}

// program reads a bare name or an absolute path; empty: a problem.
func (d *decoder) program(n *node) string {
	text, ok := d.word(n)
	if !ok {
		return ""
	}
	bad := func(why, hint string) string {
		d.problem(n.pos, fmt.Sprintf("%q: %s", text, why), hint)
		return ""
	}
	switch {
	case text == "":
		return bad("a program without a name", "")
	case strings.ContainsRune(text, 0):
		return bad("a NUL byte", "")
	case strings.Contains(text, "${"):
		return bad("a listed program must not be in a tree that the pen may write", "list the interpreter, or install the program outside")
	case strings.ContainsAny(text, "*?["):
		return bad("programs are listed by name, without patterns", "one entry for each program")
	case strings.ContainsAny(text, " \t\n"):
		return bad("a program has no arguments here", `path: /usr/bin/git, args: { allow: ["status"] }`)
	case text == "." || text == "..":
		return bad("not a program", "")
	case !strings.Contains(text, "/"):
		return text
	case !path.IsAbs(text):
		return bad("neither a bare name nor an absolute path", "such as python3 or /usr/bin/git")
	case path.Clean(text) != text || text == "/":
		return bad("not a clean path", "write "+path.Clean(text))
	}
	return text
}

func (d *decoder) patterns(n *node) []pattern {
	if !d.want(n, nodeList, "a list of patterns") {
		return nil
	}
	out := make([]pattern, 0, len(n.items))
	for _, item := range n.items {
		var tokens []string
		text := ""
		if item.kind == nodeList {
			list, _ := d.words(item)
			for _, w := range list {
				tokens = append(tokens, w.text)
			}
			text = strings.Join(tokens, " ")
		} else {
			one, ok := d.word(item)
			if !ok {
				continue
			}
			tokens, text = strings.Fields(one), one
		}
		if strings.ContainsRune(text, 0) {
			d.problem(item.pos, "a NUL byte in a pattern", "")
			continue
		}
		out = append(out, pattern{item.pos, text, splitTokens(tokens)})
	}
	return out
}

// splitTokens turns a token such as --output** into --output* and **: "an
// argument that begins so, and any after it".
func splitTokens(tokens []string) []string {
	out := make([]string, 0, len(tokens))
	for _, t := range tokens {
		if len(t) > 2 && strings.HasSuffix(t, "**") {
			out = append(out, strings.TrimRight(t, "*")+"*", "**")
			continue
		}
		out = append(out, t)
	}
	return out
}

// paths reads a list of paths that may begin with one of the variables.
func (d *decoder) paths(n *node, variables ...string) ([]word, bool) {
	list, ok := d.words(n)
	if !ok {
		return nil, false
	}
	out := make([]word, 0, len(list))
	for _, w := range list {
		if d.goodPath(w, variables) {
			out = append(out, w)
		}
	}
	return out, true
}

func (d *decoder) goodPath(w word, variables []string) bool {
	rest := w.text
	for _, v := range variables {
		if after, found := strings.CutPrefix(w.text, v); found && (after == "" || after[0] == '/') {
			rest = "/home" + after
		}
	}
	bad := func(why, hint string) bool {
		d.problem(w.pos, fmt.Sprintf("%q: %s", w.text, why), hint)
		return false
	}
	switch {
	case w.text == "":
		return bad("an empty path", "")
	case strings.ContainsRune(rest, 0):
		return bad("a NUL byte", "")
	case strings.Contains(rest, "${"):
		return bad("unknown variable, or one that does not stand at the beginning", "known here: "+strings.Join(variables, ", "))
	case strings.HasPrefix(rest, "~"):
		return bad("~ is not known here", "write ${home}")
	case !path.IsAbs(rest):
		return bad("not an absolute path", "begin with / or "+strings.Join(variables, " or "))
	case strings.ContainsAny(rest, "*?"):
		return bad("paths take no patterns", "a directory stands for all below it")
	case path.Clean(rest) != rest:
		return bad("not a clean path", "no // . .. and no / at the end")
	}
	return true
}

// absolute reads one absolute, clean path.
func (d *decoder) absolute(n *node) (string, bool) {
	text, ok := d.word(n)
	if !ok || !d.goodPath(word{text, n.pos}, nil) {
		return "", false
	}
	return text, true
}

// variables reports variables in a text other than the known ones.
func (d *decoder) variables(pos Pos, text string, known ...string) {
	rest := text
	for _, k := range known {
		rest = strings.ReplaceAll(rest, k, "")
	}
	if i := strings.Index(rest, "${"); i >= 0 {
		name, _, _ := strings.Cut(rest[i:], "}")
		d.problem(pos, fmt.Sprintf("unknown variable %s}", name), "known: "+strings.Join(known, ", "))
	}
}

// cleanPath says whether a relative or absolute path has no part that climbs.
func cleanPath(s string) bool {
	return path.Clean(s) == s && s != ".." && !strings.HasPrefix(s, "../")
}

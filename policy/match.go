package policy

import (
	"path"
	"slices"
	"strings"
)

// matchArgs says whether a pattern matches all arguments: * is one argument, **
// any number of them, a word with a star at its end any argument that begins
// so, every other word itself.
func matchArgs(tokens, args []string) bool {
	t, a := 0, 0
	star, resume := -1, 0 // the last ** and where its run of arguments ends so far
	for a < len(args) {
		switch {
		case t < len(tokens) && tokens[t] == "**":
			star, resume = t, a
			t++
		case t < len(tokens) && matchToken(tokens[t], args[a]):
			t, a = t+1, a+1
		case star >= 0:
			resume++
			t, a = star+1, resume
		default:
			return false
		}
	}
	for t < len(tokens) && tokens[t] == "**" {
		t++
	}
	return t == len(tokens)
}

func matchToken(token, arg string) bool {
	if token == "*" {
		return true
	}
	if prefix, found := strings.CutSuffix(token, "*"); found {
		return strings.HasPrefix(arg, prefix)
	}
	return token == arg
}

// matchName matches a name against a word that may end in a star.
func matchName(pattern, name string) bool {
	if prefix, found := strings.CutSuffix(pattern, "*"); found {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

func goodGlob(pattern string) bool {
	_, err := path.Match(pattern, "x")
	return err == nil && pattern != ""
}

// matchUnit matches the name of a unit against a glob; names hold no slash.
func matchUnit(pattern, unit string) bool {
	ok, err := path.Match(pattern, unit)
	return ok && err == nil
}

// below says whether p is strictly below dir. Both are absolute and clean.
func below(p, dir string) bool {
	if dir == "/" {
		return p != "/" && strings.HasPrefix(p, "/")
	}
	return strings.HasPrefix(p, dir) && len(p) > len(dir) && p[len(dir)] == '/'
}

// atOrBelow says whether p is dir or below it.
func atOrBelow(p, dir string) bool { return p == dir || below(p, dir) }

// within says whether p is at or below one of the directories.
func within(p string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return atOrBelow(p, d) })
}

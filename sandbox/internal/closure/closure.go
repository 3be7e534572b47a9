// Package closure finds the files that a program needs to be executed: its
// interpreters, its loader and its libraries. It reads files and never executes
// one.
package closure

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Limits of one closure: nothing on a host comes near them.
const (
	maxFiles  = 4096 // files in all
	maxInterp = 4    // interpreters of interpreters: BINPRM_MAX_RECURSION, execve(2)
	maxLinks  = 40   // symbolic links on one path: path_resolution(7)
)

// MissingError says that a file is not there or cannot be used, and what for.
type MissingError struct {
	Path string // the file, or a library's name that is in no directory
	By   string // the file that needs it; empty: the list of programs
	What string // program, interpreter, loader or library
	Err  error
}

func (e *MissingError) Error() string {
	if e.By == "" {
		return fmt.Sprintf("cannot use %s %s: %v", e.What, e.Path, e.Err)
	}
	return fmt.Sprintf("cannot use %s %s of %s: %v", e.What, e.Path, e.By, e.Err)
}

func (e *MissingError) Unwrap() error { return e.Err }

// Of returns every file that the programs at paths need so that they can be
// executed, themselves included: interpreters of scripts (and what env(1) is told
// to find, in the usual directories), ELF loaders, and libraries named by
// DT_NEEDED. Each stands there by every path that leads to it: the symbolic
// links on the way and the file at its end. Paths are absolute, sorted and
// unique. The first file that is missing is a *MissingError. What a program opens
// by itself later (dlopen(3), plugins, modules of an interpreter) is not seen.
func Of(paths []string) ([]string, error) {
	return Under("/", paths)
}

// Under is Of where dir is the root directory: paths, links and loader
// configuration are looked up below it, and the result is as seen from inside.
func Under(dir string, paths []string) ([]string, error) {
	w := &walk{root: dir, found: map[string]bool{}, seen: map[string]bool{}}
	for _, p := range paths {
		if !filepath.IsAbs(p) {
			return nil, &MissingError{Path: p, What: "program", Err: errors.New("the path is not absolute")}
		}
		if err := w.program(filepath.Clean(p), "", "program", 0); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(w.found)), nil
}

// walk is one search.
type walk struct {
	root  string
	found map[string]bool // result
	seen  map[string]bool // files that were read, by real path
	cache *loaderCache    // read when the first library is looked for
}

// program adds an executable and what it needs.
func (w *walk) program(path, by, what string, depth int) error {
	file, err := w.add(path)
	if err != nil {
		return &MissingError{Path: path, By: by, What: what, Err: err}
	}
	if w.seen[file] {
		return nil
	}
	w.seen[file] = true
	head, err := w.head(file)
	if err != nil {
		return &MissingError{Path: path, By: by, What: what, Err: err}
	}
	switch {
	case strings.HasPrefix(head, elf.ELFMAG):
		return w.elf(path, file)
	case strings.HasPrefix(head, "#!"):
		if depth >= maxInterp {
			return &MissingError{Path: path, By: by, What: what, Err: errors.New("too many interpreters of interpreters")}
		}
		return w.script(path, head, depth)
	}
	return &MissingError{Path: path, By: by, What: what, Err: errors.New("neither an ELF file nor a script")}
}

// headSize is what the kernel looks at: BINPRM_BUF_SIZE, execve(2).
const headSize = 256

func (w *walk) head(file string) (string, error) {
	f, err := os.Open(filepath.Join(w.root, file))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	b := make([]byte, headSize)
	n, err := f.Read(b)
	if n == 0 {
		return "", fmt.Errorf("cannot read its head: %w", err)
	}
	return string(b[:n]), nil
}

// script adds the interpreter of a first line, as the kernel splits it: the
// path, and the rest as one argument.
func (w *walk) script(path, head string, depth int) error {
	line, _, ended := strings.Cut(head[2:], "\n")
	if !ended && len(head) == headSize && !strings.ContainsAny(strings.TrimLeft(line, " \t"), " \t") {
		return &MissingError{Path: path, What: "script", Err: fmt.Errorf("its first line is longer than %d bytes", headSize)}
	}
	interp, arg, _ := strings.Cut(strings.Trim(line, " \t\r"), " ")
	if before, after, ok := strings.Cut(interp, "\t"); ok {
		interp, arg = before, after+" "+arg
	}
	if !filepath.IsAbs(interp) {
		return &MissingError{Path: interp, By: path, What: "interpreter", Err: errors.New("the path is not absolute")}
	}
	if err := w.program(filepath.Clean(interp), path, "interpreter", depth+1); err != nil {
		return err
	}
	if filepath.Base(interp) != "env" {
		return nil
	}
	return w.env(path, strings.Fields(arg), depth)
}

// searched are the directories in which what env(1) is told to run is looked for.
func searched() []string {
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
}

// env adds the program that `#!/usr/bin/env [-S] [-i] [NAME=value] PROGRAM` names.
func (w *walk) env(script string, words []string, depth int) error {
	for _, word := range words {
		if strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
			continue
		}
		if filepath.IsAbs(word) {
			return w.program(filepath.Clean(word), script, "interpreter", depth+1)
		}
		for _, dir := range searched() {
			p := filepath.Join(dir, word)
			if _, _, err := w.resolve(p); err == nil {
				return w.program(p, script, "interpreter", depth+1)
			}
		}
		return &MissingError{Path: word, By: script, What: "interpreter", Err: fmt.Errorf("%w in %s", fs.ErrNotExist, strings.Join(searched(), ", "))}
	}
	return &MissingError{Path: "env", By: script, What: "interpreter", Err: errors.New("it is told to run nothing")}
}

// add puts a path, every link on the way and the file at its end into the
// result, and returns that file.
func (w *walk) add(path string) (string, error) {
	file, links, err := w.resolve(path)
	if err != nil {
		return "", err
	}
	for _, p := range append(links, file) {
		w.found[p] = true
	}
	if len(w.found) > maxFiles {
		return "", fmt.Errorf("more than %d files are needed", maxFiles)
	}
	return file, nil
}

// resolve follows symbolic links below the root. It returns the regular file at
// the end and each path that is a link, as it was reached.
func (w *walk) resolve(path string) (file string, links []string, err error) {
	rest := strings.Split(strings.TrimPrefix(path, "/"), "/")
	at := "/"
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		info, err := os.Lstat(filepath.Join(w.root, next))
		if err != nil {
			return "", nil, stripPath(err)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if len(rest) > 0 && !info.IsDir() {
				return "", nil, fmt.Errorf("%s is not a directory", next)
			}
			at = next
			continue
		}
		links = append(links, next)
		if len(links) > maxLinks {
			return "", nil, errors.New("too many symbolic links")
		}
		to, err := os.Readlink(filepath.Join(w.root, next))
		if err != nil {
			return "", nil, stripPath(err)
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	info, err := os.Lstat(filepath.Join(w.root, at))
	if err != nil {
		return "", nil, stripPath(err)
	}
	if !info.Mode().IsRegular() {
		return "", nil, errors.New("not a regular file")
	}
	return at, links, nil
}

// stripPath leaves the cause of a path error: the path is told once.
func stripPath(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

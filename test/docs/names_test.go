package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	testName   = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*)`")
	scriptName = regexp.MustCompile("`([a-z_]+\\.txtar)`")
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*)\(`)
	link       = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
)

// written are the documents that this package holds to the code.
func written() []string {
	return []string{"architecture.md", "security.md", "guarantees.md", "limits.md", "performance.md", "decisions/README.md"}
}

// A test that a document names exists.
func TestNamedTestsExist(t *testing.T) {
	have := map[string]bool{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != top && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".txtar") {
			have[d.Name()] = true
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(b), -1) {
			have[m[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, doc := range written() {
		text := read(t, doc)
		for _, re := range []*regexp.Regexp{testName, scriptName} {
			for _, m := range re.FindAllStringSubmatch(text, -1) {
				if named++; !have[m[1]] {
					t.Errorf("%s names %s, which does not exist", doc, m[1])
				}
			}
		}
	}
	if named < 40 {
		t.Errorf("documents name %d tests; want at least 40", named)
	}
}

// A link between documents leads to a file.
func TestLinksLeadSomewhere(t *testing.T) {
	for _, doc := range written() {
		dir := filepath.Dir(filepath.Join(top, "docs", doc))
		for _, m := range link.FindAllStringSubmatch(read(t, doc), -1) {
			if _, err := os.Stat(filepath.Join(dir, m[1])); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
		}
	}
}

// Every room of architecture.md is a package, and every package is a room.
func TestRoomsAreThePackages(t *testing.T) {
	rooms := map[string]bool{}
	_, table, ok := strings.Cut(read(t, "architecture.md"), "## Rooms\n")
	if !ok {
		t.Fatal("architecture.md has no table of rooms")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	for _, cells := range rows(table) {
		rooms[strings.Trim(cells[0], "`")] = true
	}
	packages := map[string]bool{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		if d.IsDir() && (rel == "test" || rel == "bin" || d.Name() == "testdata" || rel != "." && strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(rel, ".go") && !strings.HasSuffix(rel, "_test.go") {
			packages[filepath.ToSlash(filepath.Dir(rel))] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for p := range packages {
		if !rooms[p] {
			t.Errorf("architecture.md has no room for the package %s", p)
		}
	}
	for r := range rooms {
		if !packages[r] {
			t.Errorf("architecture.md has the room %s, which is no package", r)
		}
	}
}

// The index of decisions is the list of their titles.
func TestDecisionsAreListed(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(top, "docs/decisions/[0-9]*.md"))
	if err != nil || len(files) < 30 {
		t.Fatalf("Glob(decisions) = %d files, %v; want at least 30", len(files), err)
	}
	index := read(t, "decisions/README.md")
	var want strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(b), "\n")
		number := filepath.Base(f)[:3]
		title := strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(first, "# "), number), ":"))
		want.WriteString("| " + number + " | [" + title + "](" + filepath.Base(f) + ") |\n")
	}
	head, have, ok := strings.Cut(index, decisionHead)
	if !ok {
		t.Fatalf("decisions/README.md has no table %q", decisionHead)
	}
	if *update {
		if err := os.WriteFile(filepath.Join(top, "docs/decisions/README.md"), []byte(head+decisionHead+want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want.String(), have); d != "" {
		t.Errorf("decisions/README.md is not the list of decisions (go test ./test/docs -update writes it anew):\n%s", d)
	}
}

// decisionHead begins the table of decisions.
const decisionHead = "| number | decision |\n|---|---|\n"

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pinfold/sandbox"
)

// words returns the values of the string constants of one type in a package.
func words(t *testing.T, pkg, typ string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(top, pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			id, ok := v.Type.(*ast.Ident)
			if !ok || id.Name != typ {
				return true
			}
			for _, x := range v.Values {
				if lit, ok := x.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					s, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					out = append(out, s)
				}
			}
			return true
		})
	}
	if len(out) < 5 {
		t.Fatalf("package %s has %d constants of type %s; want at least 5", pkg, len(out), typ)
	}
	return out
}

// unsent returns the values of the constants of one type in package proto that none of
// these packages uses: nothing sends them.
func unsent(t *testing.T, typ string, pkgs ...string) []string {
	t.Helper()
	var text strings.Builder
	for _, pkg := range pkgs {
		files, err := filepath.Glob(filepath.Join(top, pkg, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("package %s = %v, %v; want files", pkg, files, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, "proto/names.go") {
				continue
			}
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			text.Write(b)
		}
	}
	b, err := os.ReadFile(filepath.Join(top, "proto/names.go"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile(`(?m)^\t(`+typ+`\w+) +`+typ+` += "(\w+)"`).FindAllStringSubmatch(string(b), -1) {
		if !regexp.MustCompile(`\b` + m[1] + `\b`).MatchString(text.String()) {
			out = append(out, m[2])
		}
	}
	return out
}

// Words of the wire that nothing sends are reserved, and the protocol says so; what it
// calls reserved is sent by nothing.
func TestUnsentWordsAreReserved(t *testing.T) {
	want := slices.Concat(
		unsent(t, "Code", "proto", "supervisor", "supervisor/session"),
		unsent(t, "Cause", "supervisor/session"),
	)
	var got []string
	for _, cells := range rows(read(t, "protocol.md")) {
		if strings.Contains(cells[1], "reserved for") {
			got = append(got, strings.Trim(cells[0], "`"))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) || len(got) == 0 {
		t.Errorf("protocol.md calls %q reserved; want %q, which nothing sends", got, want)
	}
}

// section returns what stands in a document between a heading and the next of its
// depth.
func section(t *testing.T, doc, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, doc), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", doc, heading)
	}
	depth, _, _ := strings.Cut(heading, " ")
	rest, _, _ = strings.Cut(rest, "\n"+depth+" ")
	return rest
}

// Closed lists of the code stand in their tables whole.
func TestTablesAreWhole(t *testing.T) {
	controls := make([]string, 0, len(sandbox.Controls()))
	for _, c := range sandbox.Controls() {
		controls = append(controls, string(c))
	}
	causes := slices.DeleteFunc(words(t, "proto", "Cause"), func(c string) bool { return c == "quota" || c == "start_failed" }) // never of a process that ran
	ops := slices.DeleteFunc(words(t, "sandbox/internal/stagewire", "Op"), func(o string) bool { return o == "hello" })         // answers nothing
	for _, tt := range []struct {
		doc, heading string
		want         []string
	}{
		{"architecture.md", "## Daemon and stage", ops},
		{"architecture.md", "## The life of a process", causes},
		{"security.md", "## Controls", controls},
	} {
		text := section(t, tt.doc, tt.heading)
		for _, w := range tt.want {
			if !strings.Contains(text, "`"+w+"`") {
				t.Errorf("%s, %q does not name `%s`", tt.doc, tt.heading, w)
			}
		}
	}
}

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// identifier is a name of the code as documents write it: package.Name or
// package.Type.Method.
var identifier = regexp.MustCompile("`([a-z]+)\\.([A-Za-z]+(?:\\.[A-Za-z]+)?)`")

// declared returns the top-level names of every package by the last element of its
// path: types, functions, and methods as Type.Method.
func declared(t *testing.T) map[string]map[string]bool {
	t.Helper()
	out := map[string]map[string]bool{}
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return err
		}
		pkg := path.Base(filepath.ToSlash(filepath.Dir(name)))
		if out[pkg] == nil {
			out[pkg] = map[string]bool{}
		}
		for _, decl := range f.Decls {
			for _, n := range names(decl) {
				out[pkg][n] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func names(decl ast.Decl) []string {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return []string{d.Name.Name}
		}
		recv := d.Recv.List[0].Type
		if star, ok := recv.(*ast.StarExpr); ok {
			recv = star.X
		}
		if id, ok := recv.(*ast.Ident); ok {
			return []string{id.Name + "." + d.Name.Name}
		}
	case *ast.GenDecl:
		var out []string
		for _, s := range d.Specs {
			if ts, ok := s.(*ast.TypeSpec); ok {
				out = append(out, ts.Name.Name)
			}
		}
		return out
	}
	return nil
}

// A function or type that architecture.md names exists.
func TestNamedCodeExists(t *testing.T) {
	have := declared(t)
	checked := 0
	for _, m := range identifier.FindAllStringSubmatch(read(t, "architecture.md"), -1) {
		pkg, ok := have[m[1]]
		if !ok {
			continue // a file or a key
		}
		if checked++; !pkg[m[2]] {
			t.Errorf("architecture.md names %s.%s, which does not exist", m[1], m[2])
		}
	}
	if checked < 25 {
		t.Errorf("architecture.md names %d functions and types; want at least 25", checked)
	}
}

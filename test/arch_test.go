package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module      = "pinfold"
	maxFunction = 60  // lines from `func` to its closing brace
	maxFile     = 500 // lines
)

// TestImportPlan reads every source file and holds its imports against plan:
// a package without a row fails, and so does a row without a package.
func TestImportPlan(t *testing.T) {
	plan := importPlan()
	seen := map[string]bool{}
	for _, pkg := range sourceTree(t) {
		seen[pkg.path] = true
		room, ok := plan[pkg.path]
		if !ok {
			t.Errorf("package %s has no row in the import plan; add one to test/plan_test.go", pkg.path)
			continue
		}
		for _, f := range pkg.files {
			for _, imp := range f.imports() {
				if why := room.refuses(pkg.path, imp); why != "" {
					t.Errorf("%s imports %s: %s", f.name, imp, why)
				}
			}
		}
	}
	for path := range plan {
		if !seen[path] {
			t.Errorf("the import plan has a row for %s, which has no source files", path)
		}
	}
}

// TestHouseRules checks what the style asks of each file and package.
func TestHouseRules(t *testing.T) {
	plan := importPlan()
	for _, pkg := range sourceTree(t) {
		if !pkg.documented() {
			t.Errorf("package %s has no package comment", pkg.path)
		}
		pkg.checkVariables(t)
		for _, f := range pkg.files {
			f.checkSize(t)
			f.checkFunctions(t)
			if !plan[pkg.path].goes {
				f.checkGoStatements(t)
			}
		}
	}
}

// TestRoomRefuses holds the plan's own rule against examples, so that a plan that
// lets everything through cannot pass.
func TestRoomRefuses(t *testing.T) {
	tests := []struct {
		from, imp string
		refused   bool
	}{
		{"policy", "os", true},
		{"policy", "pinfold/sandbox", true},
		{"policy", "strings", false},
		{"proto", "unsafe", true},
		{"cgroup", "pinfold/policy", true},
		{"supervisor/session", "pinfold/policy", false},
		{"supervisor/relay", "golang.org/x/sys/unix", false},
		{"cmd/pinfold", "golang.org/x/sys/unix", false},
		{"cmd/pinfold-stage", "pinfold/policy", true},
		{"systemd", "github.com/unknown/thing", true},
	}
	plan := importPlan()
	for _, tt := range tests {
		room, ok := plan[tt.from]
		if !ok {
			t.Errorf("the import plan has no row for %s", tt.from)
			continue
		}
		if why := room.refuses(tt.from, tt.imp); (why != "") != tt.refused {
			t.Errorf("refuses(%s, %s) = %q; want refused %v", tt.from, tt.imp, why, tt.refused)
		}
	}
}

// sourcePackage is one directory's non-test files.
type sourcePackage struct {
	path  string // below the module, for example sandbox/stage
	files []sourceFile
}

// sourceFile is one parsed file.
type sourceFile struct {
	name  string // from the top of the tree
	lines int
	fset  *token.FileSet
	ast   *ast.File
}

// sourceTree parses every non-test Go file. It reads the tree itself: `go list`
// in a test would be answered from a cache that does not know this input.
func sourceTree(t *testing.T) []sourcePackage {
	t.Helper()
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dirs := map[string][]sourceFile{}
	err = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() && path != top && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(base, ".go") || strings.HasSuffix(base, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		f := parseSource(t, path, rel)
		dirs[filepath.ToSlash(filepath.Dir(rel))] = append(dirs[filepath.ToSlash(filepath.Dir(rel))], f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	pkgs := make([]sourcePackage, 0, len(dirs))
	for dir, files := range dirs {
		pkgs = append(pkgs, sourcePackage{path: dir, files: files})
	}
	slices.SortFunc(pkgs, func(a, b sourcePackage) int { return strings.Compare(a.path, b.path) })
	if len(pkgs) < 10 {
		t.Fatalf("the source tree at %s has %d packages; want at least 10", top, len(pkgs))
	}
	return pkgs
}

func parseSource(t *testing.T, path, rel string) sourceFile {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, rel, data, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return sourceFile{name: rel, lines: strings.Count(string(data), "\n"), fset: fset, ast: file}
}

func (f sourceFile) imports() []string {
	out := make([]string, 0, len(f.ast.Imports))
	for _, spec := range f.ast.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			out = append(out, path)
		}
	}
	return out
}

func (p sourcePackage) documented() bool {
	for _, f := range p.files {
		text := f.ast.Doc.Text()
		if strings.HasPrefix(text, "Package ") || strings.HasPrefix(text, "Command ") {
			return true
		}
	}
	return false
}

func (f sourceFile) checkSize(t *testing.T) {
	t.Helper()
	if f.lines > maxFile && !ast.IsGenerated(f.ast) {
		t.Errorf("%s has %d lines; want at most %d", f.name, f.lines, maxFile)
	}
}

func (f sourceFile) checkFunctions(t *testing.T) {
	t.Helper()
	for _, decl := range f.ast.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if fn.Recv == nil && fn.Name.Name == "init" {
			t.Errorf("%s has an init function", f.fset.Position(fn.Pos()))
		}
		lines := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line
		if lines > maxFunction {
			t.Errorf("%s: %s has %d lines; want at most %d", f.fset.Position(fn.Pos()), fn.Name.Name, lines, maxFunction)
		}
	}
}

func (f sourceFile) checkGoStatements(t *testing.T) {
	t.Helper()
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if stmt, ok := n.(*ast.GoStmt); ok {
			t.Errorf("%s starts a goroutine; only rooms marked in the import plan do", f.fset.Position(stmt.Pos()))
		}
		return true
	})
}

// checkVariables finds package variables that change: assigned in a function, or
// of a type that exists to be changed.
func (p sourcePackage) checkVariables(t *testing.T) {
	t.Helper()
	vars := map[string]*ast.ValueSpec{}
	for _, f := range p.files {
		for _, spec := range f.packageVars() {
			for _, name := range spec.Names {
				vars[name.Name] = spec
			}
			if why := mutableType(spec); why != "" && !allowedVariable(p.path, spec) {
				t.Errorf("%s: package variable %s is a %s", f.fset.Position(spec.Pos()), spec.Names[0].Name, why)
			}
		}
	}
	for _, f := range p.files {
		for _, id := range f.assigned() {
			spec, ok := vars[id.Name]
			if !ok || !refersTo(id, spec) || allowedVariable(p.path, spec) {
				continue
			}
			t.Errorf("%s: package variable %s is changed", f.fset.Position(id.Pos()), id.Name)
		}
	}
}

func (f sourceFile) packageVars() []*ast.ValueSpec {
	var out []*ast.ValueSpec
	for _, decl := range f.ast.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.VAR {
			continue
		}
		for _, spec := range gen.Specs {
			if vs, ok := spec.(*ast.ValueSpec); ok && vs.Names[0].Name != "_" {
				out = append(out, vs)
			}
		}
	}
	return out
}

// assigned lists the identifiers at the root of everything that functions assign
// to or take the address of.
func (f sourceFile) assigned() []*ast.Ident {
	var out []*ast.Ident
	add := func(e ast.Expr) {
		if id := rootIdent(e); id != nil {
			out = append(out, id)
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, lhs := range n.Lhs {
					add(lhs)
				}
			}
		case *ast.IncDecStmt:
			add(n.X)
		}
		return true
	})
	return out
}

func rootIdent(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// refersTo says whether an identifier means the package variable of a spec: the
// parser resolves what is declared in the same file, and leaves open what is not.
func refersTo(id *ast.Ident, spec *ast.ValueSpec) bool {
	return id.Obj == nil || id.Obj.Decl == spec
}

// mutableType names the type of a variable if the type exists to be changed.
func mutableType(spec *ast.ValueSpec) string {
	expr := spec.Type
	if expr == nil && len(spec.Values) == 1 {
		if lit, ok := spec.Values[0].(*ast.CompositeLit); ok {
			expr = lit.Type
		}
		if call, ok := spec.Values[0].(*ast.CallExpr); ok && len(call.Args) > 0 {
			if fn, ok := call.Fun.(*ast.Ident); ok && (fn.Name == "make" || fn.Name == "new") {
				expr = call.Args[0]
			}
		}
	}
	switch x := expr.(type) {
	case *ast.ChanType:
		return "channel"
	case *ast.SelectorExpr:
		if pkg, ok := x.X.(*ast.Ident); ok && (pkg.Name == "sync" || pkg.Name == "atomic") {
			return pkg.Name + "." + x.Sel.Name
		}
	}
	return ""
}

package docs

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// top is the top of the tree, as the tests of this package see it.
const top = "../.."

// named says by its name that a constant is a limit, wherever it stands.
var named = regexp.MustCompile(`^(max|Max|min|Min|default|Default)[A-Z]`)

// limitFiles are the files whose constants are limits whatever they are called.
func limitFiles() []string {
	return []string{
		"audit/audit.go", "audit/follow.go", "audit/hash.go", "audit/record.go", "audit/redact.go", "audit/rotate.go", "audit/tally.go", "audit/verify.go",
		"cgroup/cgroup.go", "cgroup/dir.go", "cgroup/group.go", "cgroup/kill.go", "cgroup/oom.go", "cgroup/settings.go",
		"cmd/pinfold/conn.go", "cmd/pinfold/connect.go", "cmd/pinfold/daemon.go", "cmd/pinfold/reload.go", "cmd/pinfold/forward.go", "cmd/pinfold/logs.go",
		"policy/defaults.go", "policy/environ.go", "policy/yaml.go",
		"proto/proto.go", "proto/client/client.go",
		"sandbox/validate.go", "sandbox/probe_child.go", "sandbox/internal/closure/closure.go", "sandbox/internal/stagewire/stagewire.go",
		"sandbox/stage/cache.go", "sandbox/stage/gate.go", "sandbox/stage/heir.go", "sandbox/stage/idmap.go", "sandbox/stage/launch.go", "sandbox/stage/look.go",
		"sandbox/stage/scratch.go", "sandbox/stage/server.go", "sandbox/stage/trusted.go",
		"supervisor/adopt.go", "supervisor/conn.go", "supervisor/state.go", "supervisor/supervisor.go",
		"supervisor/relay/relay.go",
		"supervisor/session/client.go", "supervisor/session/end.go", "supervisor/session/envdir.go", "supervisor/session/outbox.go", "supervisor/session/pace.go", "supervisor/session/plan.go", "supervisor/session/restore.go",
		"supervisor/session/process.go", "supervisor/session/resume.go", "supervisor/session/session.go", "supervisor/session/spawn.go", "supervisor/session/trees.go",
		"supervisor/socket/frames.go", "supervisor/socket/listen.go", "supervisor/socket/peer.go",
		"systemd/listen.go", "systemd/notify.go",
	}
}

// noLimits are constants of those files, or with such names, that bound nothing.
func noLimits() map[string]string {
	return map[string]string{
		"cmd/pinfold.readyFD":               "a descriptor",
		"sandbox/stage.successorFD":         "a descriptor",
		"audit.ManyUIDs":                    "a uid",
		"cgroup.leastPage":                  "how the kernel reads",
		"cgroup.longestRecord":              "how the kernel writes",
		"proto.longest":                     "what a Duration can hold",
		"sandbox.maxCap":                    "a number of the kernel's",
		"sandbox/stage.connFD":              "a descriptor",
		"sandbox/stage.overflowID":          "a uid",
		"supervisor/session.modeSticky":     "a mode",
		"systemd.firstListener":             "a descriptor",
		"sandbox/internal/closure.headSize": "what the kernel reads",
		"sandbox/internal/ruleset.maxABI":   "an ABI",
	}
}

// limit is one constant that bounds something.
type limit struct {
	name  string // package and constant: supervisor/relay.MaxPiece
	value constant.Value
}

// tree is the constants of the module, by package and name.
type tree map[string]map[string]ast.Expr

// limits evaluates every limit of the source.
func limits(t *testing.T) []limit {
	t.Helper()
	all := tree{}
	var names []string
	listed := map[string]bool{}
	for _, f := range limitFiles() {
		listed[f] = false
	}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		if d.IsDir() && (rel == "test" || rel == "bin" || rel != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") {
			return nil
		}
		rel = filepath.ToSlash(rel)
		_, every := listed[rel]
		if every {
			listed[rel] = true
		}
		names = append(names, all.add(t, path, filepath.ToSlash(filepath.Dir(rel)), every)...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for f, seen := range listed {
		if !seen {
			t.Errorf("%s stands in limitFiles and is not there", f)
		}
	}
	slices.Sort(names)
	var out []limit
	for _, n := range slices.Compact(names) {
		dot := strings.LastIndexByte(n, '.')
		v := all.eval(n[:dot], all[n[:dot]][n[dot+1:]])
		if v.Kind() == constant.Int || n == "supervisor.runSize" {
			out = append(out, limit{n, v})
		}
	}
	if len(out) < 100 {
		t.Fatalf("the source has %d limits; want at least 100", len(out))
	}
	return out
}

// add takes the constants of one file and returns the names of its limits.
func (c tree) add(t *testing.T, path, pkg string, every bool) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if c[pkg] == nil {
		c[pkg] = map[string]ast.Expr{}
	}
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		g, ok := n.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			return true
		}
		for _, s := range g.Specs {
			v, ok := s.(*ast.ValueSpec)
			if !ok {
				continue
			}
			for i, name := range v.Names {
				if i >= len(v.Values) {
					continue // repeats iota: an enumeration
				}
				c[pkg][name.Name] = v.Values[i]
				full := pkg + "." + name.Name
				if _, not := noLimits()[full]; !not && v.Type == nil && (every || named.MatchString(name.Name)) {
					out = append(out, full)
				}
			}
		}
		return true
	})
	return out
}

// eval computes a constant expression of the package pkg; unknown where it needs
// more than this module's constants and the units of package time.
func (c tree) eval(pkg string, e ast.Expr) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.ParenExpr:
		return c.eval(pkg, e.X)
	case *ast.Ident:
		if x, ok := c[pkg][e.Name]; ok {
			return c.eval(pkg, x)
		}
	case *ast.SelectorExpr:
		return c.selected(e)
	case *ast.CallExpr: // a conversion
		if id, ok := e.Fun.(*ast.Ident); (!ok || id.Name != "len") && len(e.Args) == 1 {
			return c.eval(pkg, e.Args[0])
		}
	case *ast.UnaryExpr:
		if x := c.eval(pkg, e.X); x.Kind() == constant.Int {
			return constant.UnaryOp(e.Op, x, 0)
		}
	case *ast.BinaryExpr:
		x, y := c.eval(pkg, e.X), c.eval(pkg, e.Y)
		if x.Kind() != constant.Int || y.Kind() != constant.Int {
			break
		}
		switch e.Op { //nolint:exhaustive // the operators of limits
		case token.SHL, token.SHR:
			n, _ := constant.Uint64Val(y)
			return constant.Shift(x, e.Op, uint(n))
		case token.QUO:
			return constant.BinaryOp(x, token.QUO_ASSIGN, y)
		case token.ADD, token.SUB, token.MUL, token.OR, token.AND_NOT:
			return constant.BinaryOp(x, e.Op, y)
		}
	}
	return constant.MakeUnknown()
}

func (c tree) selected(e *ast.SelectorExpr) constant.Value {
	id, ok := e.X.(*ast.Ident)
	if !ok {
		return constant.MakeUnknown()
	}
	if id.Name == "time" {
		units := map[string]time.Duration{
			"Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
		}
		if d, ok := units[e.Sel.Name]; ok {
			return constant.MakeInt64(int64(d))
		}
		return constant.MakeUnknown()
	}
	for pkg, consts := range c {
		if x, ok := consts[e.Sel.Name]; ok && (pkg == id.Name || strings.HasSuffix(pkg, "/"+id.Name)) {
			return c.eval(pkg, x)
		}
	}
	return constant.MakeUnknown()
}

// What is said to be no limit is a constant of the code still.
func TestNoLimitsExist(t *testing.T) {
	all := tree{}
	for name, why := range noLimits() {
		pkg := name[:strings.LastIndexByte(name, '.')]
		files, err := filepath.Glob(filepath.Join(top, pkg, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			all.add(t, f, pkg, false)
		}
		if _, ok := all[pkg][name[len(pkg)+1:]]; !ok {
			t.Errorf("noLimits has %s (%s), which is no constant", name, why)
		}
	}
}

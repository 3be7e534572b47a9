package test

import (
	"go/ast"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestNoOtherWayToLeaveOut: a test is left out by testkit alone, which notes the proof.
func TestNoOtherWayToLeaveOut(t *testing.T) {
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	err = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		seen++
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		for _, at := range skips(parseSource(t, path, rel)) {
			t.Errorf("%s leaves a test out; testkit.LeaveOut and its Need functions do that with a proof", at)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 50 {
		t.Errorf("the source tree at %s has %d files of tests; want at least 50", top, seen)
	}
}

// skips is where a file calls one of testing.TB's own ways.
func skips(f sourceFile) (at []string) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if s, ok := c.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
			at = append(at, f.fset.Position(c.Pos()).String())
		}
		return true
	})
	return at
}

package docs

import (
	"go/constant"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// read returns a document.
func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(top, "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// rows returns the cells of every table row of a document that begins with code.
func rows(text string) [][]string {
	var out [][]string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| `") || !strings.HasSuffix(line, "|") {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		out = append(out, cells)
	}
	return out
}

// value reads a number as documents write it: 4096, 64 KiB, 1.5s, or `text`.
func value(t *testing.T, text string) constant.Value {
	t.Helper()
	if s, ok := strings.CutPrefix(text, "`"); ok {
		return constant.MakeString(strings.TrimSuffix(s, "`"))
	}
	for unit, shift := range map[string]uint{" KiB": 10, " MiB": 20, " GiB": 30, " TiB": 40} {
		if n, ok := strings.CutSuffix(text, unit); ok {
			i, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				t.Fatalf("size %q: %v", text, err)
			}
			return constant.Make(new(big.Int).Lsh(big.NewInt(i), shift))
		}
	}
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return constant.MakeInt64(i)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("value %q is no number, size or time", text)
	}
	return constant.MakeInt64(int64(d))
}

// Every limit of the code stands in limits.md once, with the value it has.
func TestLimitsAreDocumented(t *testing.T) {
	documented := map[string]constant.Value{}
	for _, cells := range rows(read(t, "limits.md")) {
		if len(cells) != 4 || cells[3] == "" {
			t.Errorf("limits.md: row %q has %d cells; want name, package, value and what happens", cells, len(cells))
			continue
		}
		name := strings.Trim(cells[1], "`") + "." + strings.Trim(cells[0], "`")
		if _, twice := documented[name]; twice {
			t.Errorf("limits.md has %s twice", name)
		}
		documented[name] = value(t, cells[2])
	}
	for _, l := range limits(t) {
		got, ok := documented[l.name]
		delete(documented, l.name)
		switch {
		case !ok:
			t.Errorf("limits.md has no row for %s (%s); add one, or a reason to noLimits", l.name, l.value)
		case got.ExactString() != l.value.ExactString():
			t.Errorf("limits.md says %s = %s; want %s", l.name, got, l.value)
		}
	}
	for name := range documented {
		t.Errorf("limits.md has a row for %s, which is no limit of the code", name)
	}
}

// The reader of tables and values is no rubber stamp.
func TestValue(t *testing.T) {
	for text, want := range map[string]string{
		"4096": "4096", "64 KiB": "65536", "1 TiB": "1099511627776", "1.5s": "1500000000", "1h": "3600000000000", "`size=1g`": `"size=1g"`,
	} {
		if got := value(t, text).ExactString(); got != want {
			t.Errorf("value(%q) = %s; want %s", text, got, want)
		}
	}
}

func TestEval(t *testing.T) {
	seen := map[string]string{}
	for _, l := range limits(t) {
		seen[l.name] = l.value.ExactString()
	}
	for name, want := range map[string]string{
		"proto.MaxFrame": "1048576", "supervisor/socket.frameBuffer": "1048578", "supervisor/session.shmSize": "67108864",
		"supervisor/session.cutTime": "1500000000", "policy.maxArg": "131071",
	} {
		if seen[name] != want {
			t.Errorf("limits()[%s] = %q; want %q", name, seen[name], want)
		}
	}
}

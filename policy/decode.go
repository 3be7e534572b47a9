package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// decoder collects problems while it reads sources.
type decoder struct {
	file string
	list []Problem
}

func (d *decoder) problem(pos Pos, text, hint string) {
	if len(d.list) < maxProblems {
		d.list = append(d.list, Problem{pos, text, hint})
	}
}

// key describes one key of a mapping: everything that the schema and the
// reference say about it.
type key struct {
	name  string
	shape shape
	unit  string // of the value; empty: none
	def   string // default, as it would be written; empty: none
	doc   string // meaning, one sentence or two
}

// field is a key and what reads it into a T. New key: a row in a table of
// keys_*.go, a field in model.go, its merge in resolve.go, its line in show.go,
// its use in Decide; the schema and docs/policy.md follow (go test -update).
type field[T any] struct {
	key
	read func(d *decoder, n *node, t *T)
}

// decodeMap reads a mapping by its table. Unknown and repeated keys are problems.
func decodeMap[T any](d *decoder, n *node, what string, fields []field[T], t *T) {
	if !d.want(n, nodeMap, what) {
		return
	}
	seen := make(map[string]Pos, len(n.pairs))
	for _, p := range n.pairs {
		if d.repeated(seen, p.key) {
			continue
		}
		i := slices.IndexFunc(fields, func(f field[T]) bool { return f.name == p.key.text })
		if i < 0 {
			d.problem(p.key.pos, fmt.Sprintf("unknown key %q in %s", p.key.text, what), nearestHint(p.key.text, names(fields)))
			continue
		}
		if p.value.kind == nodeNull {
			d.problem(p.key.pos, fmt.Sprintf("%s has no value", p.key.text), "leave the key out for its default")
			continue
		}
		fields[i].read(d, p.value, t)
	}
}

// repeated notes a key and says whether it was there before.
func (d *decoder) repeated(seen map[string]Pos, k *node) bool {
	if first, twice := seen[k.text]; twice {
		d.problem(k.pos, fmt.Sprintf("%q is given twice", k.text), fmt.Sprintf("first at line %d", first.Line))
		return true
	}
	seen[k.text] = k.pos
	return false
}

func names[T any](fields []field[T]) []string {
	out := make([]string, 0, len(fields))
	for _, f := range fields {
		out = append(out, f.name)
	}
	return out
}

func keysOf[T any](fields []field[T]) []key {
	out := make([]key, 0, len(fields))
	for _, f := range fields {
		out = append(out, f.key)
	}
	return out
}

func (d *decoder) want(n *node, kind nodeKind, what string) bool {
	if n.kind == kind {
		return true
	}
	d.problem(n.pos, fmt.Sprintf("%s must be %s, not %s", what, kind, n.kind), "")
	return false
}

// keep returns a function that stores a value that was read well.
func keep[T any](n *node, o *opt[T]) func(T, bool) {
	return func(v T, ok bool) {
		if ok {
			*o = opt[T]{v, true, n.pos}
		}
	}
}

func (d *decoder) word(n *node) (string, bool) {
	if !d.want(n, nodeScalar, "this") {
		return "", false
	}
	return n.text, true
}

// words reads a list of scalars.
func (d *decoder) words(n *node) ([]word, bool) {
	if n.kind != nodeList {
		hint := ""
		if n.kind == nodeScalar {
			hint = "write [ " + n.text + " ]"
		}
		d.problem(n.pos, "this must be a list, not "+n.kind.String(), hint)
		return nil, false
	}
	out := make([]word, 0, len(n.items))
	for _, item := range n.items {
		if text, ok := d.word(item); ok {
			out = append(out, word{text, item.pos})
		}
	}
	return out, true
}

func (d *decoder) enum(n *node, what string, values ...string) (string, bool) {
	text, ok := d.word(n)
	if !ok {
		return "", false
	}
	if !slices.Contains(values, text) {
		d.problem(n.pos, fmt.Sprintf("unknown %s %q", what, text), nearestHint(text, values))
		return "", false
	}
	return text, true
}

// enumOf reads one of the values of a string type.
func enumOf[T ~string](d *decoder, n *node, what string, values ...T) (T, bool) {
	texts := make([]string, 0, len(values))
	for _, v := range values {
		texts = append(texts, string(v))
	}
	text, ok := d.enum(n, what, texts...)
	return T(text), ok
}

func (d *decoder) boolean(n *node) (bool, bool) {
	text, ok := d.enum(n, "value", "true", "false")
	return text == "true", ok
}

// size reads a size of at least least; off is Unset where it may be off.
func (d *decoder) size(n *node, least Bytes, off offness) (Bytes, bool) {
	text, ok := d.word(n)
	if !ok {
		return 0, false
	}
	if text == "off" && off == mayBeOff {
		return Unset, true
	}
	v, err := ParseBytes(text)
	if err != nil {
		d.problem(n.pos, fmt.Sprintf("%q: %v", text, err), sizeHint(text))
		return 0, false
	}
	if v < least {
		d.problem(n.pos, fmt.Sprintf("%s is too small", text), "at least "+least.String())
		return 0, false
	}
	return v, true
}

// sizeHint guesses what was meant.
func sizeHint(text string) string {
	digits := strings.TrimRight(text, "bBkKmMgGtTiI")
	if _, err := strconv.ParseUint(digits, 10, 63); err != nil {
		return "such as 512MiB; units: B, KiB, MiB, GiB, TiB"
	}
	switch strings.ToLower(strings.TrimSpace(text[len(digits):])) {
	case "k", "kb", "ki", "kib":
		return "write " + digits + "KiB"
	case "m", "mb", "mi", "mib":
		return "write " + digits + "MiB"
	case "g", "gb", "gi", "gib":
		return "write " + digits + "GiB"
	case "t", "tb", "ti", "tib":
		return "write " + digits + "TiB"
	default:
		return "a unit is missing: " + digits + "MiB or " + digits + "B"
	}
}

// offness says whether a limit may be switched off.
type offness int

const (
	neverOff offness = iota
	mayBeOff
)

func (d *decoder) time(n *node) (time.Duration, bool) {
	text, ok := d.word(n)
	if !ok {
		return 0, false
	}
	v, err := parseTime(text)
	if err != nil {
		hint := "such as 500ms, 10s, 5m, 1h30m, or off"
		if _, bad := strconv.ParseUint(text, 10, 63); bad == nil {
			hint = "a unit is missing: " + text + "s"
		}
		d.problem(n.pos, fmt.Sprintf("%q: %v", text, err), hint)
		return 0, false
	}
	return v, true
}

func (d *decoder) count(n *node, least, most int64, off offness) (int64, bool) {
	text, ok := d.word(n)
	if !ok {
		return 0, false
	}
	if text == "off" && off == mayBeOff {
		return Unset, true
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || strings.HasPrefix(text, "+") || v < least || v > most {
		d.problem(n.pos, fmt.Sprintf("%q is not a whole number from %d to %d", text, least, most), "")
		return 0, false
	}
	return v, true
}

// maxCores is more than any machine has.
const maxCores = 1 << 16

// cores reads a number of processor cores; off is 0.
func (d *decoder) cores(n *node) (float64, bool) {
	text, ok := d.word(n)
	if !ok {
		return 0, false
	}
	if text == "off" {
		return 0, true
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 0.01 && v <= maxCores) {
		d.problem(n.pos, fmt.Sprintf("%q is not a number of cores", text), "such as 1.5, at least 0.01; or off")
		return 0, false
	}
	return v, true
}

package policy

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Limits of one source. The reader is recursive; these keep its depth small.
const (
	maxSource    = 1 << 20 // bytes; a large policy has some ten KiB
	maxNesting   = 32      // levels of [ ] and { }, or of entries opened on one line
	maxIndention = 200     // columns before the first token of a line
	maxProblems  = 100     // more than a person reads at once
)

type nodeKind int

const (
	nodeScalar nodeKind = iota
	nodeNull
	nodeList
	nodeMap
)

func (k nodeKind) String() string {
	return [...]string{"a value", "nothing", "a list", "a mapping"}[k]
}

// node is what a policy may hold of YAML: scalars, lists and mappings, each with
// its place. Anchors, aliases, tags, merge keys and complex keys are refused.
type node struct {
	kind   nodeKind
	text   string // of a scalar, unquoted
	quoted bool
	pos    Pos
	items  []*node
	pairs  []pair
}

type pair struct {
	key   *node
	value *node
}

// readYAML turns a source into nodes. It returns nil when the source is empty
// or when problems were added.
func (d *decoder) readYAML(s Source) *node {
	d.file = s.Name
	if !d.plausible(s) {
		return nil
	}
	tokens := lexer.Tokenize(string(s.Data))
	if !d.allowedTokens(tokens) {
		return nil
	}
	file, err := parse(tokens)
	if err != nil {
		d.syntax(err)
		return nil
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc == nil || doc.Body == nil {
			continue
		}
		if body != nil {
			pos := d.at(doc.Body.GetToken())
			d.problem(Pos{d.file, pos.Line, 1}, "a second document in one file", "put it into a file of its own")
			return nil
		}
		body = doc.Body
	}
	if body == nil {
		return nil
	}
	return d.convert(body, 0)
}

// parse keeps a panic of the YAML library from ending the daemon: a policy that
// trips it is refused like any other that cannot be read.
func parse(tokens token.Tokens) (f *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			f, err = nil, fmt.Errorf("cannot parse YAML: %v", r)
		}
	}()
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

func (d *decoder) syntax(err error) {
	var y yaml.Error
	if errors.As(err, &y) && y.GetToken() != nil {
		d.problem(d.at(y.GetToken()), "not YAML: "+y.GetMessage(), "")
		return
	}
	d.problem(Pos{File: d.file, Line: 1, Column: 1}, "not YAML: "+err.Error(), "")
}

func (d *decoder) at(t *token.Token) Pos {
	if t == nil || t.Position == nil {
		return Pos{File: d.file, Line: 1, Column: 1}
	}
	return Pos{File: d.file, Line: max(t.Position.Line, 1), Column: max(t.Position.Column, 1)}
}

// plausible refuses what no policy is: too big, not UTF-8, a NUL byte.
func (d *decoder) plausible(s Source) bool {
	pos := Pos{File: s.Name, Line: 1, Column: 1}
	if len(s.Data) > maxSource {
		d.problem(pos, fmt.Sprintf("the file has %d bytes, more than %d", len(s.Data), maxSource), "split it into policy.d")
		return false
	}
	for rest := s.Data; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		if r == utf8.RuneError && size == 1 || r == 0 {
			d.problem(pos, "a byte that is not text", "a policy is UTF-8 without NUL")
			return false
		}
		if r == '\n' {
			pos.Line, pos.Column = pos.Line+1, 0
		}
		pos.Column++
		rest = rest[size:]
	}
	return true
}

// allowedTokens refuses the parts of YAML that a policy has no use for, and
// nesting that would make the parser recurse deeply.
func (d *decoder) allowedTokens(tokens token.Tokens) bool {
	ok := true
	refuse := func(t *token.Token, text, hint string) {
		d.problem(d.at(t), text, hint)
		ok = false
	}
	flow, line, opened := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, opened = t.Position.Line, 0
			if t.Position.Column > maxIndention {
				refuse(t, "indented too deeply", "")
				return false
			}
		}
		if text, hint := foreign(t.Type); text != "" {
			refuse(t, text, hint)
		}
		if t.Type == token.SequenceStartType || t.Type == token.MappingStartType {
			flow++
		}
		if t.Type == token.SequenceEndType || t.Type == token.MappingEndType {
			flow--
		}
		if t.Type == token.SequenceEntryType {
			opened++
		}
		if flow > maxNesting || opened > maxNesting {
			refuse(t, "nested too deeply", "")
			return false
		}
	}
	return ok
}

// foreign says why a kind of token has no place in a policy; empty: it has one.
func foreign(t token.Type) (text, hint string) {
	if t == token.AnchorType || t == token.AliasType || t == token.MergeKeyType {
		return "anchors and aliases are not part of a policy", "use extends"
	}
	if t == token.TagType {
		return "tags are not part of a policy", "quote the value instead"
	}
	if t == token.MappingKeyType {
		return "a key must be a plain word", ""
	}
	if t == token.DirectiveType {
		return "directives are not part of a policy", ""
	}
	return "", ""
}

func (d *decoder) convert(n ast.Node, depth int) *node {
	if depth > maxIndention {
		d.problem(d.at(n.GetToken()), "nested too deeply", "")
		return nil
	}
	switch v := n.(type) {
	case *ast.MappingNode:
		return d.convertPairs(d.at(v.GetToken()), v.Values, depth)
	case *ast.MappingValueNode:
		return d.convertPairs(d.at(v.GetToken()), []*ast.MappingValueNode{v}, depth)
	case *ast.SequenceNode:
		out := &node{kind: nodeList, pos: d.at(v.GetToken())}
		for _, item := range v.Values {
			if item == nil {
				continue
			}
			if one := d.convert(item, depth+1); one != nil {
				out.items = append(out.items, one)
			}
		}
		return out
	case *ast.NullNode:
		return &node{kind: nodeNull, pos: d.at(v.GetToken())}
	case *ast.LiteralNode:
		return &node{kind: nodeScalar, text: v.Value.Value, quoted: true, pos: d.at(v.GetToken())}
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		t := n.GetToken()
		quoted := t.Type == token.SingleQuoteType || t.Type == token.DoubleQuoteType
		return &node{kind: nodeScalar, text: t.Value, quoted: quoted, pos: d.at(t)}
	default:
		d.problem(d.at(n.GetToken()), fmt.Sprintf("%s is not part of a policy", n.Type()), "")
		return nil
	}
}

func (d *decoder) convertPairs(pos Pos, values []*ast.MappingValueNode, depth int) *node {
	out := &node{kind: nodeMap, pos: pos}
	for _, v := range values {
		if v == nil || v.Key == nil {
			continue
		}
		key := d.convert(v.Key, depth+1)
		if key == nil {
			continue
		}
		if key.kind != nodeScalar {
			d.problem(key.pos, "a key must be a plain word", "")
			continue
		}
		value := &node{kind: nodeNull, pos: key.pos}
		if v.Value != nil {
			value = d.convert(v.Value, depth+1)
		}
		if value == nil {
			continue
		}
		if value.kind == nodeNull {
			value.pos = key.pos
		}
		out.pairs = append(out.pairs, pair{key, value})
	}
	if len(out.pairs) > 0 && out.pairs[0].key.pos.Line <= pos.Line {
		out.pos = out.pairs[0].key.pos
	}
	return out
}

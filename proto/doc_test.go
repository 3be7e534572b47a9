package proto_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pinfold/proto"

	"github.com/google/go-cmp/cmp"
)

// reference is docs/protocol.md.
func reference(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatalf("ReadFile(docs/protocol.md) = %v; want the wire reference", err)
	}
	return string(b)
}

// blocks are the lines of all fenced blocks of one language.
func blocks(doc, language string) []string {
	var lines []string
	for _, part := range strings.Split(doc, "```"+language+"\n")[1:] {
		body, _, _ := strings.Cut(part, "```")
		lines = append(lines, strings.Split(strings.TrimSpace(body), "\n")...)
	}
	return lines
}

func TestEveryExampleOfTheReferenceIsTheWire(t *testing.T) {
	seen := make(map[proto.Type]bool)
	for _, line := range blocks(reference(t), "json") {
		var m proto.Message
		req, bad := proto.Decode([]byte(line))
		switch {
		case bad == nil:
			m = req
		case bad.Code == proto.CodeUnknownType:
			var err error
			if m, err = proto.DecodeAnswer([]byte(line)); err != nil {
				t.Errorf("DecodeAnswer(%s) = %v; want a message", line, err)
				continue
			}
		default:
			t.Errorf("Decode(%s) = %s; want a message", line, bad.Message)
			continue
		}
		seen[m.Kind()] = true
		got := members(t, encode(t, m))
		for name, want := range members(t, line) {
			if e, ok := m.(*proto.ReadEvent); ok && name == "data" && e.Data.Form == proto.DataString {
				continue // what it has in it is compared by the other tests
			}
			if diff := cmp.Diff(want, got[name]); diff != "" {
				t.Errorf("example %s: member %s is not read (-example +read):\n%s", line, name, diff)
			}
		}
	}
	for _, typ := range constants(t, "Type") {
		if !seen[proto.Type(typ)] {
			t.Errorf("docs/protocol.md has no example of %s; want one", typ)
		}
	}
}

func TestEveryRefusalOfTheReferenceIsTheWire(t *testing.T) {
	lines := blocks(reference(t), "refused")
	if len(lines) == 0 {
		t.Fatalf("docs/protocol.md has no refused lines; want some")
	}
	for _, line := range lines {
		parts := strings.SplitN(line, " ", 4)
		for i := range parts[:3] {
			parts[i] = strings.TrimPrefix(parts[i], "-")
		}
		_, bad := proto.Decode([]byte(parts[3]))
		if bad == nil || string(bad.Code) != parts[0] || bad.ReqID != parts[1] || bad.Detail.Field != parts[2] {
			t.Errorf("Decode(%s) = %+v; want %s, req_id %q, field %q", parts[3], bad, parts[0], parts[1], parts[2])
		}
	}
}

// constants are the string constants of one type of this package.
func constants(t *testing.T, typ string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "names.go", nil, 0)
	if err != nil {
		t.Fatalf("ParseFile(names.go) = %v; want none", err)
	}
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != typ {
			return true
		}
		for _, v := range spec.Values {
			lit, ok := v.(*ast.BasicLit)
			if !ok {
				t.Fatalf("constant of type %s is no literal", typ)
			}
			s, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatalf("Unquote(%s) = %v; want none", lit.Value, err)
			}
			found = append(found, s)
		}
		return true
	})
	if len(found) == 0 {
		t.Fatalf("names.go has no constants of type %s; want some", typ)
	}
	return found
}

func TestTheReferenceNamesEveryWord(t *testing.T) {
	doc := reference(t)
	for _, typ := range []string{"Code", "Cause", "Stream", "Signal", "StdinMode", "Encoding", "Role", "Reason", "Extension", "DataForm", "Outcome"} {
		for _, word := range constants(t, typ) {
			if !strings.Contains(doc, "`"+word+"`") && !strings.Contains(doc, "`\""+word+"\"`") && !strings.Contains(doc, "### "+word) && !strings.Contains(doc, `"encoding":"`+word) {
				t.Errorf("docs/protocol.md does not name the %s %s; want it there", typ, word)
			}
		}
	}
	for _, c := range proto.DenyChanges() {
		if !strings.Contains(doc, "`"+string(c)+"`") {
			t.Errorf("docs/protocol.md does not name the change %s of a denied path; want it there", c)
		}
	}
	for name, value := range map[string]int{
		"MaxFrame": proto.MaxFrame, "MaxNesting": proto.MaxNesting, "MaxID": proto.MaxID, "MaxLabels": proto.MaxLabels, "MaxLabel": proto.MaxLabel,
		"MaxName": proto.MaxName, "MaxToken": proto.MaxToken, "MaxCaps": proto.MaxCaps, "MaxEventText": proto.MaxEventText,
	} {
		if want := fmt.Sprintf("| %d | `%s` |", value, name); !strings.Contains(doc, want) {
			t.Errorf("docs/protocol.md does not have %q; want the limit as it is", want)
		}
	}
}

func TestTheReferenceListsEveryCauseWithItsEnd(t *testing.T) {
	doc := reference(t)
	for _, cause := range proto.Causes() {
		for _, code := range []int{0, 1} {
			v := proto.Verdict{Cause: cause, Code: code}
			end := fmt.Sprintf("| `%s` | `%s` | `%s` |", v.Status(), v.State(), v.Stream())
			if !slices.ContainsFunc(strings.Split(doc, "\n"), func(row string) bool {
				return strings.HasPrefix(row, "| `"+string(cause)+"` |") && strings.HasSuffix(row, end)
			}) {
				t.Errorf("docs/protocol.md has no row for %s with code %d that ends in %s; want one", cause, code, end)
			}
		}
	}
	if got, want := len(constants(t, "Cause")), len(proto.Causes()); got != want {
		t.Errorf("Causes() has %d; want all %d constants", want, got)
	}
	if got, want := len(constants(t, "Signal")), len(proto.Signals()); got != want {
		t.Errorf("Signals() has %d; want all %d constants", want, got)
	}
}

func TestTheReferenceNamesEveryField(t *testing.T) {
	doc := reference(t)
	seen := make(map[reflect.Type]bool)
	messages := []any{proto.ErrorMsg{}, proto.Pong{}, proto.ReadEvent{}}
	for _, req := range requests() {
		messages = append(messages, req)
		if a := proto.Answer(req, proto.Done(req)); a != nil {
			messages = append(messages, a)
		}
	}
	var visit func(typ reflect.Type)
	visit = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] || typ == reflect.TypeFor[proto.Data]() {
			return
		}
		seen[typ] = true
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" && !strings.Contains(doc, "`"+name+"`") && !strings.Contains(doc, `{"`+name+`"`) && !strings.Contains(doc, `"`+name+`":`) {
				t.Errorf("docs/protocol.md does not name %s of %s; want it there", name, typ)
			}
			visit(f.Type)
		}
	}
	for _, m := range messages {
		visit(reflect.TypeOf(m))
	}
	if len(seen) < 25 {
		t.Errorf("visited %d types; want all messages", len(seen))
	}
}

func TestUnknownTypesOfADaemonAreTold(t *testing.T) {
	_, err := proto.DecodeAnswer([]byte(`{"type":"proc/denied/event","id":"x"}`))
	if !errors.Is(err, proto.ErrUnknownType) {
		t.Errorf("DecodeAnswer(proc/denied/event) = %v; want ErrUnknownType", err)
	}
}

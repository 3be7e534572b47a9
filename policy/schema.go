package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Schema returns the JSON Schema (draft 2020-12) of one policy file, made from
// the same tables that read it.
func Schema() ([]byte, error) {
	top := schemaObject(keysOf(fileFields()))
	top.first("title", "Pinfold policy")
	top.first("$id", "https://pinfold.invalid/policy.schema.json")
	top.first("$schema", "https://json-schema.org/draft/2020-12/schema")
	top.add("required", []string{"version"})
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(top); err != nil {
		return nil, fmt.Errorf("cannot print the schema: %w", err)
	}
	return b.Bytes(), nil
}

// ordered is a JSON object that keeps its order.
type ordered []entry

type entry struct {
	name  string
	value any
}

func (o *ordered) add(name string, value any) { *o = append(*o, entry{name, value}) }

func (o *ordered) first(name string, value any) { *o = append(ordered{{name, value}}, *o...) }

// MarshalJSON prints the members in their order.
func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, e := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(e.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(e.value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Patterns of what is read as text with a unit; size and time agree with
// ParseBytes and parseTime.
const (
	sizePattern = `^(0|[0-9]+(B|KiB|MiB|GiB|TiB))$`
	timePattern = `^(0|off|([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+)$`
)

func schemaObject(keys []key) *ordered {
	var properties ordered
	for _, k := range keys {
		one := schemaOf(k.shape)
		text := k.doc
		if k.def != "" {
			text += " Default: " + k.def + "."
		}
		one.first("description", text)
		properties.add(k.name, one)
	}
	return &ordered{{"type", "object"}, {"additionalProperties", false}, {"properties", properties}}
}

func schemaOf(s shape) *ordered {
	one := schemaOne(s)
	var others []any
	if s.single {
		others = append(others, schemaOne(*s.item))
	}
	if s.or != nil {
		others = append(others, schemaOf(*s.or))
	}
	if len(s.enum) > 0 && s.kind != shapeWord {
		others = append(others, ordered{{"enum", s.enum}})
	}
	if len(others) == 0 {
		return one
	}
	return &ordered{{"anyOf", append([]any{one}, others...)}}
}

func schemaOne(s shape) *ordered {
	switch s.kind {
	case shapeWord:
		return schemaWord(s.enum)
	case shapeText:
		return &ordered{{"type", []string{"string", "number", "boolean"}}}
	case shapeSize:
		return &ordered{{"type", []string{"string", "integer"}}, {"pattern", sizePattern}, {"maximum", 0}}
	case shapeTime:
		return &ordered{{"type", []string{"string", "integer"}}, {"pattern", timePattern}, {"maximum", 0}}
	case shapeCount:
		return &ordered{{"type", "integer"}, {"minimum", 0}}
	case shapeNumber:
		return &ordered{{"type", "number"}, {"minimum", 0}}
	case shapeSwitch:
		return &ordered{{"type", "boolean"}}
	case shapeList:
		return &ordered{{"type", "array"}, {"items", schemaOf(*s.item)}}
	case shapeTable:
		return schemaTable(s)
	case shapeObject:
		return schemaObject(s.object())
	}
	return &ordered{}
}

// schemaWord is a closed list of words, open where one of them stands for a name.
func schemaWord(values []string) *ordered {
	var closed []any
	open := len(values) == 0
	for _, v := range values {
		switch v {
		case "NAME", "cache(NAME)":
			open = true
		case "1":
			closed = append(closed, 1)
		default:
			closed = append(closed, v)
		}
	}
	if open {
		return &ordered{{"type", []string{"string", "number", "boolean"}}}
	}
	return &ordered{{"enum", closed}}
}

func schemaTable(s shape) *ordered {
	item := schemaOf(*s.item)
	if len(s.named) == 0 {
		return &ordered{{"type", "object"}, {"additionalProperties", item}}
	}
	var properties ordered
	for _, name := range s.named {
		properties.add(name, item)
	}
	return &ordered{{"type", "object"}, {"additionalProperties", false}, {"properties", properties}}
}

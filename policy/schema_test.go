package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// conforms is as much of a JSON Schema validator as Schema's output needs. It
// takes YAML's plain scalars as an editor does: numbers and booleans where they
// look so.
func conforms(value any, n *node, at string) []string {
	schema, ok := value.(map[string]any)
	if !ok {
		return []string{at + ": the schema is no object"}
	}
	if choices, ok := schema["anyOf"].([]any); ok {
		var all []string
		for _, one := range choices {
			why := conforms(one, n, at)
			if len(why) == 0 {
				return nil
			}
			all = append(all, why...)
		}
		return all
	}
	if enum, ok := schema["enum"].([]any); ok {
		if n.kind != nodeScalar || !slices.ContainsFunc(enum, func(v any) bool { return fmt.Sprint(v) == n.text }) {
			return []string{fmt.Sprintf("%s: %q is not in %v", at, n.text, enum)}
		}
		return nil
	}
	var types []string
	switch v := schema["type"].(type) {
	case string:
		types = []string{v}
	case []any:
		for _, one := range v {
			types = append(types, fmt.Sprint(one))
		}
	}
	got := typeOf(n)
	if !slices.Contains(types, got) && (got != "integer" || !slices.Contains(types, "number")) {
		return []string{fmt.Sprintf("%s: %s is not %v", at, got, types)}
	}
	return conformsIn(schema, n, at, got)
}

func conformsIn(schema map[string]any, n *node, at, got string) []string {
	var out []string
	if pattern, ok := schema["pattern"].(string); ok && got == "string" && !regexp.MustCompile(pattern).MatchString(n.text) {
		out = append(out, fmt.Sprintf("%s: %q does not match %s", at, n.text, pattern))
	}
	if most, ok := schema["maximum"].(float64); ok && got == "integer" {
		if v, err := strconv.ParseFloat(n.text, 64); err != nil || v > most {
			out = append(out, fmt.Sprintf("%s: %s is more than %v", at, n.text, most))
		}
	}
	for i, item := range n.items {
		out = append(out, conforms(schema["items"], item, fmt.Sprintf("%s[%d]", at, i))...)
	}
	properties, _ := schema["properties"].(map[string]any)
	seen := map[string]bool{}
	for _, p := range n.pairs {
		seen[p.key.text] = true
		below, ok := properties[p.key.text].(map[string]any)
		if !ok {
			if below, ok = schema["additionalProperties"].(map[string]any); !ok {
				out = append(out, fmt.Sprintf("%s: unknown key %s", at, p.key.text))
				continue
			}
		}
		out = append(out, conforms(below, p.value, at+"."+p.key.text)...)
	}
	required, _ := schema["required"].([]any)
	for _, r := range required {
		if !seen[fmt.Sprint(r)] {
			out = append(out, fmt.Sprintf("%s: %v is missing", at, r))
		}
	}
	return out
}

func typeOf(n *node) string {
	switch n.kind {
	case nodeMap:
		return "object"
	case nodeList:
		return "array"
	case nodeNull:
		return "null"
	case nodeScalar:
	}
	if !n.quoted {
		if _, err := strconv.ParseInt(n.text, 10, 64); err == nil {
			return "integer"
		}
		if _, err := strconv.ParseFloat(n.text, 64); err == nil {
			return "number"
		}
		if n.text == "true" || n.text == "false" {
			return "boolean"
		}
	}
	return "string"
}

package policy

import (
	"fmt"
	"strings"
)

// Reference returns every key of a policy file as Markdown: path, type, unit,
// default, meaning; then the built-in lists. It is made from the tables that
// read the file and stands in docs/policy.md.
func Reference() string {
	var b strings.Builder
	b.WriteString("| key | type | unit | default | meaning |\n|---|---|---|---|---|\n")
	referenceRows(&b, "", keysOf(fileFields()))
	b.WriteString("\n### Variables that every command gets\n\n" + codeList(presetNames()))
	b.WriteString("\n`PATH` is " + codeList(searchPath()) + "\nBare names of programs are looked up there too, whatever `env.set` says.\n")
	b.WriteString("\n### Variables that a request may not set unless `env.allow` lists them\n\n" + codeList(deniedEnv()))
	b.WriteString("\n### Secret paths: hidden in every view\n\nBelow the caller's home: " + codeList(secretNames()))
	b.WriteString("\nOn the host: " + codeList(secretPaths()))
	b.WriteString("\n### Paths that are never writable, also inside a writable tree\n\nBelow the caller's home: " + codeList(unwritableNames()))
	b.WriteString("\nOn the host: " + codeList(unwritablePaths()))
	return b.String()
}

func codeList(list []string) string {
	return "`" + strings.Join(list, "` `") + "`\n"
}

func referenceRows(b *strings.Builder, prefix string, keys []key) {
	for _, k := range keys {
		at := prefix + k.name
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", at, cell(typeName(k.shape)), cell(k.unit), cell(codeDefault(k.def)), cell(k.doc))
		referenceBelow(b, at, k.shape)
	}
}

func referenceBelow(b *strings.Builder, at string, s shape) {
	if s.kind == shapeObject {
		referenceRows(b, at+".", s.object())
	}
	if s.kind == shapeList {
		referenceBelow(b, at+"[]", *s.item)
	}
	if s.kind == shapeTable && s.item.kind == shapeObject {
		referenceBelow(b, at+".NAME", *s.item)
	}
	if s.or != nil {
		referenceBelow(b, at, *s.or)
	}
}

func codeDefault(def string) string {
	if def == "" || strings.ContainsAny(def, " `") {
		return def
	}
	return "`" + def + "`"
}

func cell(s string) string {
	if s == "" {
		return "–"
	}
	return strings.ReplaceAll(s, "|", `\|`)
}

func typeName(s shape) string {
	name := typeOne(s)
	if len(s.enum) > 0 && s.kind != shapeWord {
		name += " or `" + strings.Join(s.enum, "`, `") + "`"
	}
	if s.or != nil {
		name += " or " + typeName(*s.or)
	}
	return name
}

func typeOne(s shape) string {
	switch s.kind {
	case shapeWord:
		if len(s.enum) > 0 {
			return "`" + strings.Join(s.enum, "` | `") + "`"
		}
		return "name"
	case shapeText:
		return "text"
	case shapeSize:
		return "size"
	case shapeTime:
		return "time"
	case shapeCount:
		return "whole number"
	case shapeNumber:
		return "number"
	case shapeSwitch:
		return "`true` | `false`"
	case shapeList:
		if s.single {
			return typeName(*s.item) + ", one or a list"
		}
		return "list of " + typeName(*s.item)
	case shapeTable:
		if len(s.named) > 0 {
			return "mapping of `" + strings.Join(s.named, "`, `") + "` to " + typeName(*s.item)
		}
		return "mapping of names to " + typeName(*s.item)
	case shapeObject:
		return "mapping"
	}
	return ""
}

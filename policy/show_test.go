package policy

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// resolvedOf is everything that a profile decides, without places.
func resolvedOf(f *profile) map[string]any {
	controls := f.resolvedControls()
	for i := range controls {
		controls[i].Set = false
	}
	var commands []string
	for _, c := range f.commands {
		text := c.name
		for _, p := range c.allow {
			text += " +" + strings.Join(p.tokens, "\x00")
		}
		for _, p := range c.deny {
			text += " -" + strings.Join(p.tokens, "\x00")
		}
		if c.given {
			text += " given"
		}
		commands = append(commands, text)
	}
	set := map[string]string{}
	for _, e := range f.env.set {
		set[e.name] = e.value
	}
	return map[string]any{
		"commands": commands, "run_as": f.runAs.or("caller"), "under": texts(f.resolvedUnder()), "else": f.scratch.or("scratch"), "set": set,
		"allow": texts(f.env.allow), "given": f.env.given, "deny": texts(f.env.deny), "dir": f.env.dir.or(""), "read": texts(f.resolvedRead()), "write": texts(f.resolvedWrite()), "fsdeny": texts(f.fs.deny.v),
		"absent": f.fs.absent.or(AbsentPlaceholder), "missing": f.fs.missing.or(MissingSkip), "size": f.fs.tmpSize.or(defaultTmpSize), "exec": f.fs.tmpExec.or(false), "home": f.fs.home.or(Home{Kind: HomePrivate}),
		"net": f.net.or(NetNone), "execmode": f.exec.or(ExecAnything), "seccomp": f.seccomp.or(Seccomp{Base: "default"}), "rlimits": f.resolvedRlimits(), "userns": f.userns.or(false), "root": f.allowRoot.or(false),
		"cgroup": f.resolvedCgroup(), "timeout": f.resolvedTimeout(), "linger": f.linger.or(0), "output": f.resolvedOutput(), "controls": controls,
	}
}

// sameShown parses what Show prints and compares.
func sameShown(t *testing.T, p *Policy, name string) {
	t.Helper()
	text, err := p.Show(name)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(Source{"shown.yaml", []byte(text)})
	if err != nil {
		t.Fatalf("Parse(Show(%s)):\n%v\n%s", name, err, text)
	}
	if diff := cmp.Diff(resolvedOf(p.profile(name)), resolvedOf(again.profile(name))); diff != "" {
		t.Errorf("Parse(Show(%s)) (-want +got):\n%s\n%s", name, diff, text)
	}
	second, err := again.Show(name)
	if err != nil || second != text {
		t.Errorf("Show(Parse(Show(%s))) differs, %v:\n%s", name, err, cmp.Diff(text, second))
	}
}

func TestShowParsesToTheSame(t *testing.T) {
	sameShown(t, mustParse(t, DefaultSource()), "default")
	p := mustParse(t, read(t, "example.yaml"))
	sameShown(t, p, "python")
	sameShown(t, p, "tools")
	odd := mustParse(t, read(t, "odd.yaml"))
	sameShown(t, odd, "on")
}

func TestSchemaHasEveryKey(t *testing.T) {
	data, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatalf("Schema is not JSON: %v", err)
	}
	if schema["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Errorf("$schema = %v; want draft 2020-12", schema["$schema"])
	}
	d := &decoder{}
	for _, s := range []Source{DefaultSource(), read(t, "example.yaml")} {
		for _, why := range conforms(schema, d.readYAML(s), s.Name) {
			t.Errorf("the schema refuses a good policy: %s", why)
		}
	}
	for _, text := range []string{"profiles: {}\n", "version: 2\n", "version: 1\nx: 1\n", "version: 1\nprofiles: { p: { net: some } }\n", "version: 1\nprofiles: { p: { cgroup: { memory: 5MB } } }\n", "version: 1\nprofiles: { p: { timeout: { wall: 5 } } }\n", "version: 1\nprofiles: { p: { controls: { landlok: off } } }\n"} {
		if len(conforms(schema, d.readYAML(Source{"bad", []byte(text)}), "bad")) == 0 {
			t.Errorf("the schema accepts %q", text)
		}
	}
	golden(t, "schema.golden.json", string(data))
}

// TestReference compares docs/policy.md with the tables: every key of the schema
// is documented with its type, unit, default and meaning.
func TestReference(t *testing.T) {
	const path, begin, end = "../docs/policy.md", "<!-- reference: begin (go test ./policy -update) -->\n", "<!-- reference: end -->\n"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no reference between its marks", path)
	}
	want := before + begin + Reference() + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// TestEveryKeyHasMeaning walks all tables.
func TestEveryKeyHasMeaning(t *testing.T) {
	reference := Reference()
	count := 0
	var walk func(at string, keys []key)
	var below func(at string, s shape)
	below = func(at string, s shape) {
		if s.object != nil {
			walk(at+".", s.object())
		}
		if s.item != nil && s.kind == shapeList {
			below(at+"[]", *s.item)
		}
		if s.item != nil && s.kind == shapeTable && s.item.object != nil {
			below(at+".NAME", *s.item)
		}
		if s.or != nil {
			below(at, *s.or)
		}
	}
	walk = func(at string, keys []key) {
		for _, k := range keys {
			count++
			if k.doc == "" || !strings.HasSuffix(k.doc, ".") {
				t.Errorf("%s%s has no meaning that is a sentence", at, k.name)
			}
			if (k.shape.kind == shapeSize || k.shape.kind == shapeTime || k.shape.kind == shapeCount) && k.unit == "" && !strings.HasSuffix(at, "match.") {
				t.Errorf("%s%s has no unit", at, k.name)
			}
			if !strings.Contains(reference, "| `"+at+k.name+"` |") {
				t.Errorf("%s%s is not in the reference", at, k.name)
			}
			below(at+k.name, k.shape)
		}
	}
	walk("", keysOf(fileFields()))
	if count < 70 {
		t.Errorf("walked %d keys; want all, some 80", count)
	}
}

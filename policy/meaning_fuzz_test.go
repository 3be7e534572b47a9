package policy

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// everybody is a file of its own with callers that may use every profile of another.
func everybody(profiles []string) Source {
	quoted := make([]string, len(profiles))
	for i, name := range profiles {
		quoted[i] = scalar(name)
	}
	return Source{"callers.yaml", []byte("version: 1\ncallers:\n  - name: fuzz\n    match: { uid: 1000 }\n    profiles: [" + strings.Join(quoted, ", ") + "]\n")}
}

// sameMeaning compares what two policies answer to a request, but for the place of the rule.
func sameMeaning(t *testing.T, p, again *Policy, h host, r Request) {
	t.Helper()
	one, oneErr := p.Decide(agent(), r, h.look(p.Candidates(agent(), r)))
	two, twoErr := again.Decide(agent(), r, h.look(again.Candidates(agent(), r)))
	opts := cmp.Options{
		cmp.Comparer(func(a, b Rule) bool { return true }), //nolint:revive // where it stands differs
		cmpopts.IgnoreFields(Need{}, "Set"), cmpopts.EquateEmpty(), cmpopts.EquateNaNs(),
	}
	if d := cmp.Diff(one, two, opts); d != "" {
		t.Fatalf("Decide(%+v) of a policy and of what Show prints (-want +got):\n%s\n%v\n%v", r, d, oneErr, twoErr)
	}
	no, _ := errors.AsType[*Denied](oneErr)
	and, _ := errors.AsType[*Denied](twoErr)
	if (no == nil) != (and == nil) || no != nil && (no.Code != and.Code || no.Op != and.Op || no.Object != and.Object || no.Cause != and.Cause) {
		t.Fatalf("Decide(%+v) = %v; what Show prints says %v", r, oneErr, twoErr)
	}
}

// FuzzMeaning: a policy that loads decides each request as what Show prints of it does.
func FuzzMeaning(f *testing.F) {
	for _, s := range []Source{DefaultSource(), read(f, "example.yaml"), read(f, "odd.yaml"), {"test.yaml", []byte(testPolicy)}} {
		for _, cmd := range []string{"ls", "git\x1fstatus", "python3\x1f-c\x1fx", "git\x1fdiff\x1f--output=x", "/usr/bin/ls"} {
			f.Add(string(s.Data), cmd, "/home/agent/p", "LANG", false)
		}
		f.Add(string(s.Data), "sh", "", "LD_PRELOAD", true)
	}
	f.Add("version: 1\nprofiles: { 'a: b': { commands: ['x y', \"\\u2028\"], env: { set: { A: \"'\" } } } }", "x y", "", "A", true)
	h := testHost()
	f.Fuzz(func(t *testing.T, text, cmd, cwd, name string, pty bool) {
		fuzzed := Source{"fuzz.yaml", []byte(text)}
		alone, err := Parse(fuzzed)
		if err != nil {
			return // FuzzParse looks at problems
		}
		var profiles []string
		for _, profile := range alone.Profiles() {
			if len(alone.profile(profile).commands) > 0 {
				profiles = append(profiles, profile)
			}
		}
		if len(profiles) == 0 {
			return
		}
		for _, profile := range profiles {
			only := everybody([]string{profile})
			p, err := Parse(only, fuzzed)
			if err != nil {
				continue // what is a problem only for a profile that somebody uses, or a name that is taken
			}
			shown, err := alone.Show(profile)
			if err != nil {
				t.Fatal(err)
			}
			again, err := Parse(only, Source{"fuzz.yaml", []byte(shown)})
			if err != nil {
				t.Fatalf("Parse(Show(%q)) = %v:\n%s", profile, err, shown)
			}
			r := Request{Cmd: strings.Split(cmd, "\x1f"), Cwd: cwd, PTY: pty}
			sameMeaning(t, p, again, h, r)
			for _, c := range p.profile(profile).commands {
				sameMeaning(t, p, again, h, Request{Cmd: append([]string{c.name}, r.Cmd[1:]...), Cwd: cwd, Env: map[string]string{name: "v"}, Profile: profile})
			}
		}
	})
}

// FuzzSources reads two files as one policy: every problem names one of the two, the order of the files changes no profile, and what does not load
// leaves nothing.
func FuzzSources(f *testing.F) {
	f.Add("version: 1\nprofiles: { a: { commands: [ls] } }", "version: 1\nprofiles: { b: { extends: a, net: host } }")
	f.Add("version: 1\nprofiles: { a: { extends: b } }", "version: 1\nprofiles: { b: { extends: a } }")
	f.Add("version: 1\ncallers: [{ match: { uid: 0 }, profiles: [b] }]", string(read(f, "example.yaml").Data))
	f.Add("", defaultYAML)
	f.Add("version: 1\naudit: { sync: each }", "version: 1\naudit: { sync: none }")
	f.Fuzz(func(t *testing.T, one, two string) {
		a, b := Source{"a.yaml", []byte(one)}, Source{"b.yaml", []byte(two)}
		p, err := Parse(a, b)
		q, otherErr := Parse(b, a)
		if (err == nil) != (otherErr == nil) {
			t.Fatalf("Parse(a, b) = %v; Parse(b, a) = %v; want the order to make no difference", err, otherErr)
		}
		if err != nil {
			var list *Problems
			if p != nil || !errors.As(err, &list) || len(list.List) == 0 {
				t.Fatalf("Parse = %v, %v; want no policy and its problems", p, err)
			}
			for _, one := range list.List {
				if n := one.Pos.File; n != "a.yaml" && n != "b.yaml" || one.Pos.Line < 1 || one.Pos.Column < 1 || one.Text == "" {
					t.Errorf("problem without a place: %+v", one)
				}
			}
			return
		}
		for _, name := range p.Profiles() {
			if d := cmp.Diff(resolvedOf(p.profile(name)), resolvedOf(q.profile(name))); d != "" {
				t.Errorf("profile %q by the order of the files (-a,b +b,a):\n%s", name, d)
			}
		}
	})
}

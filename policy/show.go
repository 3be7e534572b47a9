package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// Show prints a profile as it is applied, with everything that it inherits and
// every default, as a policy that Parse accepts and reads as the same profile.
// It fails if there is no such profile.
func (p *Policy) Show(name string) (string, error) {
	f := p.profile(name)
	if f == nil {
		return "", fmt.Errorf("cannot show profile %q: the policy has %s", name, strings.Join(p.Profiles(), ", "))
	}
	w := &printer{}
	w.line(0, "version: 1")
	w.line(0, "profiles:")
	w.line(1, scalar(f.name)+":")
	w.commands(f.commands)
	w.line(2, "run_as: "+scalar(f.runAs.or(string(RunAsCaller))))
	w.line(2, "workspace: { under: "+flow(texts(f.resolvedUnder()))+", else: "+f.scratch.or("scratch")+" }")
	w.env(f.env)
	w.files(f)
	w.line(2, "net: "+string(f.net.or(NetNone)))
	w.line(2, "exec: "+string(f.exec.or(ExecAnything)))
	w.seccomp(f.seccomp.or(Seccomp{Base: "default"}))
	w.line(2, "pen: "+string(f.pen.or(PenProcess)))
	w.rlimits(f.resolvedRlimits())
	w.line(2, "userns: "+onOff(f.userns.or(false)))
	w.line(2, "allow_root: "+strconv.FormatBool(f.allowRoot.or(false)))
	w.limits(f)
	w.controls(f.resolvedControls())
	return w.b.String(), nil
}

// printer writes the block style of a policy.
type printer struct{ b strings.Builder }

func (w *printer) line(depth int, text string) {
	w.b.WriteString(strings.Repeat("  ", depth))
	w.b.WriteString(text)
	w.b.WriteByte('\n')
}

func (w *printer) commands(list []command) {
	if len(list) == 0 {
		return // a base that others extend
	}
	w.line(2, "commands:")
	for _, c := range list {
		if !c.given && len(c.deny) == 0 {
			w.line(3, "- "+scalar(c.name))
			continue
		}
		w.line(3, "- path: "+scalar(c.name))
		w.line(4, "args:")
		if c.given {
			w.line(5, "allow: "+flowPatterns(c.allow))
		}
		if len(c.deny) > 0 {
			w.line(5, "deny: "+flowPatterns(c.deny))
		}
	}
}

// flowPatterns prints patterns as lists of tokens where a token holds white space.
func flowPatterns(list []pattern) string {
	out := make([]string, 0, len(list))
	for _, p := range list {
		if strings.Join(p.tokens, " ") != p.text && len(splitTokens(strings.Fields(p.text))) != len(p.tokens) || hasSpace(p.tokens) {
			out = append(out, flow(p.tokens))
			continue
		}
		out = append(out, quoted(strings.Join(p.tokens, " ")))
	}
	return "[ " + strings.Join(out, ", ") + " ]"
}

// hasSpace says whether tokens cannot be told apart once joined by spaces.
func hasSpace(tokens []string) bool {
	joined := strings.Fields(strings.Join(tokens, " "))
	if len(joined) != len(tokens) {
		return true
	}
	for i := range tokens {
		if joined[i] != tokens[i] {
			return true
		}
	}
	return false
}

func (w *printer) env(e envRule) {
	if len(e.set) == 0 && !e.given && len(e.deny) == 0 && !e.dir.set {
		return
	}
	w.line(2, "env:")
	if len(e.set) > 0 {
		w.line(3, "set:")
		for _, s := range e.set {
			w.line(4, quoted(s.name)+": "+quoted(s.value))
		}
	}
	if e.given {
		w.line(3, "allow: "+flow(texts(e.allow)))
	}
	if len(e.deny) > 0 {
		w.line(3, "deny: "+flow(texts(e.deny)))
	}
	if e.dir.set {
		w.line(3, "envdir: "+scalar(e.dir.v))
	}
}

func (w *printer) files(f *profile) {
	w.line(2, "fs:")
	w.line(3, "read: "+flow(texts(f.resolvedRead())))
	w.line(3, "write: "+flow(texts(f.resolvedWrite())))
	w.line(3, "deny: "+flow(texts(f.fs.deny.v)))
	w.line(3, "absent: "+string(f.fs.absent.or(AbsentPlaceholder)))
	w.line(3, "missing: "+string(f.fs.missing.or(MissingSkip)))
	w.line(3, fmt.Sprintf("tmp: { size: %s, exec: %t }", f.fs.tmpSize.or(defaultTmpSize), f.fs.tmpExec.or(false)))
	w.line(3, "home: "+f.fs.home.or(Home{Kind: HomePrivate}).String())
}

// String prints a home as a policy spells it.
func (h Home) String() string {
	if h.Kind == HomeCache {
		return "cache(" + h.Name + ")"
	}
	return string(h.Kind)
}

func (w *printer) seccomp(s Seccomp) {
	if len(s.Allow)+len(s.Deny) == 0 {
		w.line(2, "seccomp: "+s.Base)
		return
	}
	w.line(2, "seccomp: { base: "+s.Base+", allow: "+flow(s.Allow)+", deny: "+flow(s.Deny)+" }")
}

func (w *printer) rlimits(list []Rlimit) {
	out := make([]string, 0, len(list))
	for _, r := range list {
		value := strconv.FormatUint(r.Value, 10)
		if kind := rlimitKinds()[r.Name]; kind == shapeSize {
			value = Bytes(r.Value).String()
		} else if kind == shapeTime {
			value += "s"
		}
		out = append(out, r.Name+": "+value)
	}
	w.line(2, "rlimits: { "+strings.Join(out, ", ")+" }")
}

func (w *printer) limits(f *profile) {
	c := f.resolvedCgroup()
	cpu, io := "off", ""
	if c.CPU > 0 {
		cpu = strconv.FormatFloat(c.CPU, 'f', -1, 64)
	}
	if c.IOWeight > 0 {
		io = fmt.Sprintf(", io: { weight: %d }", c.IOWeight)
	}
	w.line(2, fmt.Sprintf("cgroup: { memory: %s, swap: %s, pids: %s, cpu: %s%s }", offBytes(c.Memory), offBytes(c.Swap), offCount(c.Pids), cpu, io))
	t := f.resolvedTimeout()
	w.line(2, fmt.Sprintf("timeout: { wall: %s, cpu: %s, idle: %s, start: %s, stop: %s }", offTime(t.Wall), offTime(t.CPU), offTime(t.Idle), offTime(t.Start), offTime(t.Stop)))
	w.line(2, "linger: "+offTime(f.linger.or(0)))
	o := f.resolvedOutput()
	w.line(2, fmt.Sprintf("output: { keep: %s, limit: %s, overflow: %s }", o.Keep, offBytes(o.Limit), o.Overflow))
}

// controls prints all controls; those that userns and net decide as comments,
// because saying them again would be a statement of its own.
func (w *printer) controls(list []Need) {
	w.line(2, "controls:")
	for _, n := range list {
		text := fmt.Sprintf("%s: %s", n.Control, n.Level)
		if !n.Set && (n.Control == ControlUserNS || n.Control == ControlNetNS) {
			w.line(3, "# "+text)
			continue
		}
		w.line(3, text)
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func flow(list []string) string {
	if len(list) == 0 {
		return "[]"
	}
	out := make([]string, 0, len(list))
	for _, s := range list {
		out = append(out, scalar(s))
	}
	return "[ " + strings.Join(out, ", ") + " ]"
}

// scalar prints a string plain where YAML reads it back as the same string.
func scalar(s string) string {
	if s == "" || s[0] == '-' || s[0] == '.' || s[0] >= '0' && s[0] <= '9' {
		return quoted(s)
	}
	for _, word := range []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"} {
		if strings.EqualFold(s, word) {
			return quoted(s)
		}
	}
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./()") != "" {
		return quoted(s)
	}
	return s
}

// quoted prints a string in YAML's double quotes.
func quoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

package audit

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Hidden stands where a secret was.
const Hidden = "[redacted]"

// Bounds of what a caller's words may take up in a record.
const (
	maxWord   = 4 << 10  // bytes of one argument or variable
	maxWords  = 512      // arguments or variables
	maxTotal  = 64 << 10 // bytes of all together
	maxDenied = 4 << 10  // bytes of all together where policy said no
)

// RedactArgs takes secrets out of an argument list: values of options and assignments whose name says that they are secret, the operand after
// such an option, headers, tokens of known form, passwords in URLs. The list is bounded too; what was cut is counted in place.
func RedactArgs(args []string) []string { return redactArgs(args, maxTotal) }

// redactArgs is RedactArgs with another bound for all arguments together.
func redactArgs(args []string, most int) []string {
	out := make([]string, 0, min(len(args), maxWords))
	short := shortOptions(args)
	hideNext, script := false, false
	total := 0
	for i, arg := range args {
		if i > maxWords || total > most { // bound cuts here too; what is after it need not be searched
			out = append(out, make([]string, len(args)-i)...)
			break
		}
		word := RedactText(arg)
		whole, isWhole := wholeValue(arg)
		isWhole = isWhole && !script // a shell's script is not one assignment
		script = arg == "-c"
		switch {
		case i == 0:
		case hideNext:
			hideNext, word = false, Hidden
		case short.hides(arg):
			word = arg[:2] + Hidden
		case isWhole:
			word = cut(whole)
		default:
			hideNext = short.takes(arg) || optionTakesSecret(arg)
		}
		total += len(word)
		out = append(out, word)
	}
	return bound(out, most)
}

// RedactEnv takes secrets out of NAME=value pairs: the whole value where the name says so, else as RedactText.
func RedactEnv(env []string) []string { return redactEnv(env, maxTotal) }

// redactEnv is RedactEnv with another bound for all variables together.
func redactEnv(env []string, most int) []string {
	out := make([]string, 0, min(len(env), maxWords))
	total := 0
	for i, pair := range env {
		if i > maxWords || total > most {
			out = append(out, make([]string, len(env)-i)...)
			break
		}
		name, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok:
			out = append(out, RedactText(pair))
		case value != "" && SecretName(name):
			out = append(out, cut(clean(name))+"="+Hidden)
		default:
			out = append(out, cut(clean(name))+"="+RedactText(value))
		}
		total += len(out[i])
	}
	return bound(out, most)
}

// RedactText takes secrets out of free text, such as a shell script or an error. It takes time in proportion to the
// text, and its result is bounded and valid UTF-8 (bytes that are not become U+FFFD).
func RedactText(text string) string {
	text = clean(text)
	lower := strings.ToLower(text)
	for _, p := range patterns {
		if p.near(lower) {
			text = p.re.ReplaceAllString(text, p.with)
		}
	}
	if strings.ContainsAny(text, "=:-") {
		text = hideAssignments(text)
	}
	return cut(text)
}

// pattern is one form of secret.
type pattern struct {
	hints []string // lower case; without one of them the pattern cannot match, and most texts have none
	re    *regexp.Regexp
	with  string
}

// near says whether the pattern may match a text, given in lower case.
func (p pattern) near(lower string) bool {
	for _, h := range p.hints {
		if strings.Contains(lower, h) {
			return true
		}
	}
	return false
}

// patterns are secrets that are known by their form.
var patterns = []pattern{
	{[]string{"private key"}, regexp.MustCompile(`(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|$)`), `$1` + Hidden + `$2`},
	{[]string{"://"}, regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s/?#:@]*):[^\s/?#]*@`), `$1:` + Hidden + `@`},
	{[]string{"://"}, regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[A-Za-z0-9_%.~-]{20,}@`), `$1` + Hidden + `@`},
	{[]string{"bearer"}, regexp.MustCompile(`(?i)\b(bearer)(\s+|%20|\+)[A-Za-z0-9._~+/=:-]+`), `$1$2` + Hidden},
	{[]string{"eyj"}, regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`), Hidden},
	{[]string{"gh", "glpat-", "sk-", "_live_", "xox", "akia", "asia", "aiza", "npm_", "pypi-", "hf_"}, regexp.MustCompile(`\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_.-]{10,}` +
		`|sk-[A-Za-z0-9_-]{16,}|[sr]k_live_[A-Za-z0-9]{10,}|xox[abeoprs]-[A-Za-z0-9-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{16}` +
		`|AIza[A-Za-z0-9_-]{30,}|npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{20,})`), Hidden},
	{[]string{"curl", "sshpass"}, regexp.MustCompile(`(\b(?:curl\b[^|;&\n]*?\s(?:-[uU]|--user|--proxy-user)|sshpass\s+-p))(\s+|=)(?:"[^"]*"?|'[^']*'?|[^\s"']+)`), `$1$2` + Hidden},
	{[]string{"mysql", "mariadb"}, regexp.MustCompile(`(\b(?:mysql|mysqldump|mysqladmin|mariadb)\b[^|;&\n]*?\s-p)(?:"[^"]*"?|'[^']*'?|[^\s"']+)`), `$1` + Hidden},
}

// assignment is a name and what stands between it and its value: NAME=, "name": , --name and a blank, or a header's colon. The value is
// found by hand, so that a name inside the value of another is seen too.
var assignment = regexp.MustCompile(`(--?)?([A-Za-z_][A-Za-z0-9_.-]*)(["']?\s*[:=]\s*|\s+)`)

// hideAssignments hides the values of names that are secret.
func hideAssignments(text string) string {
	var out strings.Builder
	done := 0
	for _, m := range assignment.FindAllStringSubmatchIndex(text, -1) {
		begin := m[1]
		option, name, between := m[2] >= 0, text[m[4]:m[5]], text[m[6]:m[7]]
		blank := strings.TrimSpace(between) == ""
		if m[0] < done || begin >= len(text) || blank && (!option || text[begin] == '-') || !SecretName(name) {
			continue
		}
		stop := begin + valueLen(text[begin:], between)
		out.WriteString(text[done:begin])
		if q := text[begin]; q == '"' || q == '\'' {
			out.WriteByte(q)
			out.WriteString(Hidden)
			out.WriteByte(q)
		} else {
			out.WriteString(Hidden)
		}
		done = stop
	}
	out.WriteString(text[done:])
	return out.String()
}

// valueLen is how far a value goes: a quoted one to its closing quote, a header's to the end of its line or of the quote around it, any
// other to the next blank or shell separator.
func valueLen(text, between string) int {
	switch q := text[0]; {
	case q == '"' || q == '\'':
		for i := 1; i < len(text); i++ {
			if text[i] == '\\' && q == '"' {
				i++
				continue
			}
			if text[i] == q {
				return i + 1
			}
		}
		return len(text)
	case strings.Contains(between, ":"):
		return until(text, "\"'\r\n")
	default:
		return until(text, " \t\r\n\"'&;|<>")
	}
}

func until(text, stops string) int {
	if i := strings.IndexAny(text, stops); i >= 0 {
		return i
	}
	return len(text)
}

// SecretName says whether a variable, option, header or key of this name holds a secret.
func SecretName(name string) bool {
	words := nameWords(name)
	if len(words) == 0 {
		return false
	}
	for _, w := range words {
		if secretWords[w] == anywhere || strings.Contains(w, "token") && !strings.Contains(w, "tokeniz") {
			return true
		}
		for _, part := range secretParts {
			if strings.Contains(w, part) {
				return true
			}
		}
	}
	last := words[len(words)-1]
	return secretWords[last] == atEnd || len(words) > 1 && (last == "pwd" || last == "key" && !plainKeys[words[len(words)-2]])
}

// place says where in a name a word makes it secret.
type place int

const (
	nowhere place = iota
	anywhere
	atEnd
)

// secretWords are whole words of a name; secretParts may be parts of a word; plainKeys stand before "key" in names of what is public.
var (
	secretWords = map[string]place{
		"authorization": anywhere, "cookie": anywhere, "jwt": anywhere, "otp": anywhere,
		"auth": atEnd, "pass": atEnd, "pat": atEnd, "dsn": atEnd, "sig": atEnd, "signature": atEnd, "bearer": atEnd,
	}
	secretParts = []string{"password", "passwd", "passphrase", "passin", "passout", "secret", "apikey", "credential", "privatekey", "accesskey"}
	plainKeys   = map[string]bool{"public": true, "pub": true, "primary": true, "foreign": true, "sort": true, "host": true}
)

// nameWords splits a name at everything that is no letter or digit and where a lower-case letter meets an upper-case one.
func nameWords(name string) []string {
	var split strings.Builder
	lower := false
	for _, r := range name {
		if lower && unicode.IsUpper(r) {
			split.WriteByte(' ')
		}
		lower = unicode.IsLower(r)
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			r = ' '
		}
		split.WriteRune(unicode.ToLower(r))
	}
	return strings.Fields(split.String())
}

// shorts are the one-letter options of one program that carry secrets.
type shorts struct {
	next     string // letters whose secret may be the next argument
	attached string // letters whose secret is attached
}

// shortTable knows the common programs; a secret in another program's one-letter option is not seen.
var shortTable = map[string]shorts{
	"curl":       {next: "uUb", attached: "uUb"},
	"sshpass":    {next: "p", attached: "p"},
	"mysql":      {attached: "p"},
	"mysqldump":  {attached: "p"},
	"mysqladmin": {attached: "p"},
	"mariadb":    {attached: "p"},
	"redis-cli":  {next: "a", attached: "a"},
	"docker":     {next: "p"},
	"podman":     {next: "p"},
	"ldapsearch": {next: "w", attached: "w"},
	"zip":        {next: "P", attached: "P"},
	"unzip":      {next: "P", attached: "P"},
	"7z":         {attached: "p"},
}

// shortOptions finds the first known program in an argument list.
func shortOptions(args []string) shorts {
	for _, arg := range args {
		if s, ok := shortTable[path.Base(arg)]; ok {
			return s
		}
	}
	return shorts{}
}

// takes says whether the next argument is the secret of this one.
func (s shorts) takes(arg string) bool {
	return len(arg) == 2 && arg[0] == '-' && strings.IndexByte(s.next, arg[1]) >= 0
}

// hides says whether a secret is attached to this argument.
func (s shorts) hides(arg string) bool {
	return len(arg) > 2 && arg[0] == '-' && strings.IndexByte(s.attached, arg[1]) >= 0
}

// option is an argument that is an option and nothing else.
var option = regexp.MustCompile(`^--?[A-Za-z][A-Za-z0-9_.-]*$`)

// optionTakesSecret says whether the next argument is the secret of an option with this name.
func optionTakesSecret(arg string) bool {
	return len(arg) > 2 && option.MatchString(arg) && SecretName(arg)
}

// wholeValue hides all of the value where an argument is one assignment: no shell splits it at & or a blank.
func wholeValue(arg string) (string, bool) {
	name, value, ok := strings.Cut(arg, "=")
	if !ok || value == "" || !wholeName.MatchString(name) || !SecretName(name) {
		return "", false
	}
	return name + "=" + Hidden, true
}

// wholeName is the left side of an argument that is one assignment.
var wholeName = regexp.MustCompile(`^-{0,2}[A-Za-z_][A-Za-z0-9_.-]*$`)

// maxRead bounds what is searched for secrets; the rest of a longer text is dropped, and the word that would be cut in two with it.
const maxRead = 2 * maxWord

// clean makes text valid UTF-8 and bounds it.
func clean(text string) string {
	if len(text) > maxRead {
		n := len(text)
		text = text[:maxRead]
		text = text[:max(strings.LastIndexAny(text, " \t\r\n"), 0)] + dropped(n-maxRead)
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// cut shortens text to at most maxWord bytes and says by how many.
func cut(text string) string {
	if len(text) <= maxWord {
		return text
	}
	keep := maxWord - len(dropped(len(text)))
	for keep > 0 && !utf8.RuneStart(text[keep]) {
		keep--
	}
	return text[:keep] + dropped(len(text)-keep)
}

func dropped(n int) string {
	return fmt.Sprintf(" [+%d bytes]", n)
}

// bound limits the number of words and their total length.
func bound(words []string, most int) []string {
	total := 0
	for i, w := range words {
		total += len(w)
		if i == maxWords || total > most {
			return append(words[:i:i], fmt.Sprintf("[+%d words]", len(words)-i))
		}
	}
	return words
}

package policy

import (
	"fmt"
	"strings"
)

// Code is the stable name of a refusal.
type Code string

// Codes of a Denied.
const (
	CodeUnauthorized   Code = "unauthorized"    // no caller rule matches
	CodeDenied         Code = "denied"          // a rule says no
	CodeNotFound       Code = "not_found"       // the program is not there
	CodeNotExecutable  Code = "not_executable"  // it is there, but the caller may not execute it
	CodeInvalid        Code = "invalid_request" // the request cannot be carried out whatever the policy says
	CodeUnknownProfile Code = "unknown_profile" // not one of the caller's profiles
)

// Rule names the place in a policy that decided.
type Rule struct {
	File string
	Line int
	Text string // the rule in words, such as `profile "python": commands`
}

func (r Rule) String() string {
	if r.File == "" {
		return r.Text
	}
	return fmt.Sprintf("%s:%d (%s)", r.File, r.Line, r.Text)
}

// Denied is a refusal with everything that a person or an agent needs to go on.
type Denied struct { //nolint:errname // the answer "no", and an error: every reader of a decision calls it so
	Code    Code
	Op      string // the operation: connect, execute, work in, set, use profile
	Object  string // what it was to be done to
	Cause   string // why not
	Rule    Rule
	Nearest string // the nearest allowed thing; empty: none is near
	Hint    string // what would pass, or what to look at
	Who     string // who can change it
	Final   bool   // true: depends on the policy alone, so that asking again gives the same answer
}

func (d *Denied) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cannot %s %s: %s", d.Op, quoteObject(d.Object), d.Cause)
	if d.Rule.Text != "" {
		fmt.Fprintf(&b, " [%s]", d.Rule)
	}
	return b.String()
}

// Advice returns the nearest allowed thing, the hint and who can change the
// policy as one line; empty if there is nothing to say.
func (d *Denied) Advice() string {
	var parts []string
	if d.Nearest != "" {
		parts = append(parts, "nearest allowed: "+d.Nearest)
	}
	if d.Hint != "" {
		parts = append(parts, d.Hint)
	}
	if d.Who != "" {
		parts = append(parts, d.Who)
	}
	return strings.Join(parts, "; ")
}

// maxObject is how many bytes of an untrusted object a message repeats.
const maxObject = 200

func quoteObject(s string) string {
	if len(s) > maxObject {
		return fmt.Sprintf("%q… (%d bytes)", s[:maxObject], len(s))
	}
	return fmt.Sprintf("%q", s)
}

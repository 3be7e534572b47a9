package policy

// Step is one question of a decision and its answer.
type Step struct {
	Question string
	Answer   string
	Passed   bool
	Rule     Rule
}

// Explanation is a decision with every step that led to it. Exactly one of
// Grant and Denied is set.
type Explanation struct {
	Steps  []Step
	Grant  *Grant
	Denied *Denied
}

// Allowed says whether the answer is yes.
func (e Explanation) Allowed() bool { return e.Denied == nil }

// Severity of a Finding.
type Severity string

// Severities.
const (
	SeverityInfo    Severity = "info"
	SeverityWarning Severity = "warning"
)

// Finding is something in a policy that loads but deserves a look.
type Finding struct {
	Pos      Pos
	Severity Severity
	Text     string
}

func (f Finding) String() string { return f.Pos.String() + ": " + string(f.Severity) + ": " + f.Text }

// Exposure says how much of the host a profile opens: 0 is nothing, 10 is all.
type Exposure struct {
	Profile string
	Score   float64
	Reasons []string
}

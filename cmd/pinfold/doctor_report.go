package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"strings"

	"pinfold/attack"
)

// attackOutcome is what became of one attack.
type attackOutcome struct {
	ID     string         `json:"id"`
	Class  attack.Class   `json:"class"`
	Layer  attack.Layer   `json:"layer"`
	Result attack.Verdict `json:"result"`
	Reason string         `json:"reason"`
}

// attackReport is everything that doctor --attack says.
type attackReport struct {
	Attacks []attackOutcome `json:"attacks"`
	Profile string          `json:"profile"`
	Daemon  string          `json:"daemon"`          // its socket, or private
	Added   []string        `json:"added,omitempty"` // what the policy of a private daemon has besides
	Seconds float64         `json:"seconds"`
	Spawns  int             `json:"spawns"`
	End     string          `json:"end,omitempty"` // how the attacker ended, where it did not end well
}

// reportFormats are the ways to print a report, by the names of --format.
func reportFormats() map[string]func(attackReport, style) (string, error) {
	return map[string]func(attackReport, style) (string, error){
		formatText: func(r attackReport, s style) (string, error) { return r.text(s), nil },
		formatJSON: func(r attackReport, _ style) (string, error) {
			data, err := json.MarshalIndent(r, "", "  ")
			return string(data) + "\n", err
		},
		formatJUnit: func(r attackReport, _ style) (string, error) { return r.junit() },
	}
}

func (r attackReport) count(v attack.Verdict) int {
	n := 0
	for _, o := range r.Attacks {
		if o.Result == v {
			n++
		}
	}
	return n
}

// text is a line for each attack, and what they come to.
func (r attackReport) text(s style) string {
	var b strings.Builder
	for _, line := range r.Added {
		fmt.Fprintf(&b, "added to the policy: %s\n", line)
	}
	rows := make([][]string, 0, len(r.Attacks))
	for _, o := range r.Attacks {
		rows = append(rows, []string{o.ID, string(o.Layer), plain(o.Reason)})
	}
	words := map[attack.Verdict]string{attack.Held: s.green("held"), attack.Broken: s.red("BROKEN"), attack.NotApplicable: s.yellow("n/a")}
	for i, line := range strings.Split(strings.TrimSuffix(table(rows), "\n"), "\n") {
		if i < len(r.Attacks) {
			fmt.Fprintf(&b, "%-6s  %s\n", words[r.Attacks[i].Result], line)
		}
	}
	fmt.Fprintf(&b, "profile %s, daemon %s: %d attacks held, %d broken, %d not applicable, in %.1f s\n",
		plain(r.Profile), plain(r.Daemon), r.count(attack.Held), r.count(attack.Broken), r.count(attack.NotApplicable), r.Seconds)
	if r.End != "" {
		b.WriteString(legible(r.End) + "\n")
	}
	return b.String()
}

// The elements of a JUnit report.
type (
	junitSuite struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Time     float64     `xml:"time,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string     `xml:"classname,attr"`
		Name    string     `xml:"name,attr"`
		Failure *junitNote `xml:"failure,omitempty"`
		Skipped *junitNote `xml:"skipped,omitempty"`
	}
	junitNote struct {
		Message string `xml:"message,attr"`
	}
)

// junit is one test case for each attack.
func (r attackReport) junit() (string, error) {
	suite := junitSuite{
		Name: "pinfold doctor --attack, profile " + r.Profile, Tests: len(r.Attacks), Failures: r.count(attack.Broken), Skipped: r.count(attack.NotApplicable), Time: r.Seconds,
	}
	for _, o := range r.Attacks {
		c := junitCase{Class: string(o.Class), Name: o.ID}
		note := &junitNote{Message: string(o.Layer) + ": " + o.Reason}
		switch o.Result {
		case attack.Broken:
			c.Failure = note
		case attack.NotApplicable:
			c.Skipped = note
		case attack.Held:
		}
		suite.Cases = append(suite.Cases, c)
	}
	data, err := xml.MarshalIndent(suite, "", "  ")
	return xml.Header + string(data) + "\n", err
}

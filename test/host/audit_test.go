package host

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
)

// auditLine is what tests look at of one line of the audit log.
type auditLine struct {
	Kind    string   `json:"kind"`
	UID     *int     `json:"uid"`
	Session string   `json:"session"`
	Process string   `json:"process"`
	Action  string   `json:"action"`
	Allowed bool     `json:"allowed"`
	Code    string   `json:"code"`
	Argv    []string `json:"argv"`
	Env     []string `json:"env"`
	Rule    string   `json:"rule"`
	Step    string   `json:"step"`
	Program struct{ Path, SHA256 string }
	Verdict json.RawMessage `json:"verdict"`
	raw     string
}

// auditLines are the lines of the daemon's audit log up to now.
func (d *daemon) auditLines() []auditLine {
	d.t.Helper()
	data, err := os.ReadFile(filepath.Join(d.state, "audit.log"))
	if err != nil {
		d.t.Fatal(err)
	}
	var out []auditLine
	for line := range strings.Lines(string(data)) {
		e := auditLine{raw: strings.TrimSpace(line)}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			d.t.Fatalf("audit line %q = %v; want JSON", line, err)
		}
		out = append(out, e)
	}
	return out
}

// audited says whether a line fits, now or soon.
func (d *daemon) audited(fits func(auditLine) bool) bool {
	d.t.Helper()
	found := false
	eventuallyOrNot(func() bool {
		for _, e := range d.auditLines() {
			found = found || fits(e)
		}
		return found
	})
	return found
}

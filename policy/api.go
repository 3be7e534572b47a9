package policy

import "errors"

// Parse reads all sources, in order, as one policy.
func Parse(sources ...Source) (*Policy, error) { return nil, errors.New("not there yet") }

// DefaultSource returns the embedded policy.
func DefaultSource() Source { return Source{} }

// Names returns the user and group names whose ids Bind needs.
func (p *Policy) Names() Names { return Names{} }

// Bind gives the names of the policy their ids.
func (p *Policy) Bind(ids IDs) []Warning { return nil }

// Admit finds the caller rule for c; the error is a *Denied.
func (p *Policy) Admit(c Caller) (*Admission, error) { return nil, nil }

// Candidates says what has to be looked at before Decide.
func (p *Policy) Candidates(c Caller, r Request) Candidates { return Candidates{} }

// Decide answers a request; the error is a *Denied.
func (p *Policy) Decide(c Caller, r Request, f Facts) (*Grant, error) { return nil, nil }

// Explain answers a request and tells every step.
func (p *Policy) Explain(c Caller, r Request, f Facts) Explanation { return Explanation{} }

// Show prints a resolved profile as a policy that Parse accepts.
func (p *Policy) Show(name string) (string, error) { return "", nil }

// Schema returns the JSON Schema (draft 2020-12) of a policy file.
func Schema() ([]byte, error) { return nil, nil }

// Check looks for things that load but deserve a look.
func (p *Policy) Check() []Finding { return nil }

// Exposures scores every profile.
func (p *Policy) Exposures() []Exposure { return nil }

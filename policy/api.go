package policy

// Show prints a resolved profile as a policy that Parse accepts.
func (p *Policy) Show(name string) (string, error) { return "", nil }

// Schema returns the JSON Schema (draft 2020-12) of a policy file.
func Schema() ([]byte, error) { return nil, nil }

// Check looks for things that load but deserve a look.
func (p *Policy) Check() []Finding { return nil }

// Exposures scores every profile.
func (p *Policy) Exposures() []Exposure { return nil }

//go:build !pinfold_skip

package image

// skip leaves the Program as it is. The tag pinfold_skip builds a stage that leaves out
// a step, for the test that each missing one is noticed.
func (*Program) skip() {}

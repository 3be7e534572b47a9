// Package attack holds programs that try to break out of real pens. It owns the
// attacks and, for each, the layer that must refuse it; it never weakens the host
// and never tests what a pen is good for.
package attack

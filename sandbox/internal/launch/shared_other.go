//go:build !amd64

package launch

// sharing reports whether runShared may start s: it is written for amd64 alone,
// and elsewhere ForkExec does it by a copy of our memory.
func sharing(Start) bool { return false }

// runShared is never called.
func runShared(Start, int) (pid, pidfd int, err error) {
	panic("launch: not on this machine (this is a bug in pinfold, please report)")
}

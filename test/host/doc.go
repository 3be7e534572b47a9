// Package host owns the tests of the whole host: each starts a daemon of its own
// from the real binaries, speaks to it over its real socket and, at the end, checks
// that nothing of it is left: no process, cgroup, mount or file. It never reaches
// into the daemon and never replaces a part of it; what it says of the daemon's
// inside it reads from the kernel.
package host

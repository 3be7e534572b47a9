package cgroup

import "path/filepath"

// Outside names what Close changes outside of the base: directories from which it
// removes the base, or has it removed, and files to which it writes.
func (b *Base) Outside() (remove, write []string) {
	for _, h := range b.hiers {
		if h.made {
			remove = append(remove, filepath.Dir(h.Dir))
		}
	}
	if b.back != "" {
		write = append(write, filepath.Join(b.back, "cgroup.procs"))
	}
	if b.toggled != "" {
		write = append(write, b.toggled)
	}
	return remove, write
}

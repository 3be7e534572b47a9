package attack

import "unsafe"

// code is the function whose machine code a page begins with.
func code(page []byte) func() {
	p := unsafe.Pointer(unsafe.SliceData(page))
	f := unsafe.Pointer(&p)
	return *(*func())(unsafe.Pointer(&f))
}

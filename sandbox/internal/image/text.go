package image

import (
	"bytes"
	"unsafe"
)

// text returns where start and interp begin in this program's own text.
func text() (start, interp uintptr)

// maxText bounds each part of the interpreter; in bytes.
const maxText = 512

// machineCode returns the two parts of the interpreter, one behind the other.
func machineCode() []byte {
	start, interp := text()
	return append(bytes.Clone(part(start)), part(interp)...)
}

// part returns the machine code at pc up to its end mark.
func part(pc uintptr) []byte {
	// pc is an address in this program's text, which nothing moves.
	p := *(*unsafe.Pointer)(unsafe.Pointer(&pc))
	for n := range maxText {
		at := unsafe.Slice((*byte)(unsafe.Add(p, n)), len(endOfText))
		if string(at) == endOfText {
			return unsafe.Slice((*byte)(p), n)
		}
	}
	panic("image: no end of the interpreter (this is a bug in pinfold, please report)")
}

// dataAddr is where the constants of every Program begin.
func dataAddr() uint64 {
	return (baseAddr + headerSize + uint64(len(machineCode())) + 15) &^ 15
}

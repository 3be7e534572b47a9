package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// Image returns the Program as a static ELF executable: one segment that can be
// read and executed (interpreter, constants, steps) and one writable page
// (registers and records). elf(5).
func (p *Program) Image() ([]byte, error) {
	code := machineCode()
	steps, err := binary.Append(nil, binary.LittleEndian, p.steps)
	if err != nil {
		return nil, bug("cannot encode steps", err)
	}
	data := p.data
	for len(data)%stepSize != 0 {
		data = append(slices.Clip(data), 0)
	}
	stepsAt := p.dataAt + uint64(len(data))
	size := stepsAt + uint64(len(steps)) - baseAddr
	rwAt := (size + segment - 1) &^ (segment - 1)
	b, err := headers(size, rwAt)
	if err != nil {
		return nil, bug("cannot encode headers", err)
	}
	b = append(b, code...)
	b = append(b, make([]byte, int(p.dataAt-baseAddr)-len(b))...)
	b = append(b, data...)
	b = append(b, steps...)
	b = append(b, make([]byte, int(rwAt)-len(b))...)
	return append(b, writable(stepsAt)...), nil
}

// headers returns the ELF header and the program headers for a first segment of
// size bytes and a second one at offset rwAt of the file.
func headers(size, rwAt uint64) ([]byte, error) {
	var b bytes.Buffer
	h := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Entry: baseAddr + headerSize, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 3,
	}
	if err := binary.Write(&b, binary.LittleEndian, h); err != nil {
		return nil, err
	}
	rx, rw := uint32(elf.PF_R|elf.PF_X), uint32(elf.PF_R|elf.PF_W)
	load := uint32(elf.PT_LOAD)
	err := binary.Write(&b, binary.LittleEndian, []elf.Prog64{
		{Type: load, Flags: rx, Vaddr: baseAddr, Paddr: baseAddr, Filesz: size, Memsz: size, Align: segment},
		{Type: load, Flags: rw, Off: rwAt, Vaddr: regsAddr, Paddr: regsAddr, Filesz: rwSize, Memsz: rwSize, Align: segment},
		{Type: uint32(elf.PT_GNU_STACK), Flags: rw, Align: 16},
	})
	return b.Bytes(), err
}

// writable returns the first content of the writable page.
func writable(stepsAt uint64) []byte {
	le := binary.LittleEndian
	b := make([]byte, rwSize)
	le.PutUint64(b[8*RegSink:], stepsAt)
	le.PutUint64(b[8*RegStatus:], FDStatus)
	le.PutUint32(b[startAddr-regsAddr:], RecordStarted)
	le.PutUint32(b[endAddr-regsAddr:], RecordEnded)
	for i, fd := range []uint32{FDStatus, FDSignals} { // struct pollfd: poll(2)
		at := pollAddr - regsAddr + 8*i
		le.PutUint32(b[at:], fd)
		le.PutUint16(b[at+4:], unix.POLLIN)
	}
	return b
}

package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"pinfold/sandbox/internal/image"
)

// Command is what a target becomes by its exec.
type Command struct {
	Program string // path inside the view
	Dir     string // working directory inside the view
	Argv    []string
	Env     []string
	Script  bool // execute the program by its path: it starts with #!
}

// Encoded is a command as the target reads it. Area is what it finds at image.CommandAt, to
// be written to the file of image.FDCommand before any words, which go through the first
// gate: Open for what it has to open, Exec for what it does once the last gate is open.
type Encoded struct{ Area, Open, Exec []byte }

// Encode returns c as the target reads it.
func (c Command) Encode() (Encoded, error) {
	if len(c.Argv) == 0 {
		return Encoded{}, errors.New("cannot pass on a command: argv is empty")
	}
	le := binary.LittleEndian
	pointers := 8 * (len(c.Argv) + 1 + len(c.Env) + 1)
	area := make([]byte, pointers, pointers+c.size())
	put := func(s string) uint64 {
		at := uint64(image.CommandAt + len(area))
		area = append(append(area, s...), 0)
		return at
	}
	next := 0
	list := func(all []string) uint64 {
		first := uint64(image.CommandAt + next)
		for _, s := range all {
			le.PutUint64(area[next:], put(s))
			next += 8
		}
		next += 8 // NULL
		return first
	}
	r := [image.Commanded]uint64{put(c.Program), put(c.Dir), list(c.Argv), list(c.Env)}
	if len(area) > image.MaxCommand {
		return Encoded{}, fmt.Errorf("cannot pass on a command of %d bytes: at most %d", len(area), image.MaxCommand)
	}
	for _, s := range append([]string{c.Program, c.Dir}, append(c.Argv, c.Env...)...) {
		if strings.ContainsRune(s, 0) {
			return Encoded{}, errors.New("cannot pass on a string with a zero byte")
		}
	}
	act := uint64(image.ActExec)
	if c.Script {
		act = image.ActScript
	}
	return Encoded{Area: area, Open: wordsOf(r, image.ActOpen), Exec: wordsOf(r, act)}, nil
}

func wordsOf(r [image.Commanded]uint64, act uint64) (b []byte) {
	r[image.RegAct-image.RegPath] = act
	for _, v := range r {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// size is that of all strings.
func (c Command) size() int {
	n := len(c.Program) + len(c.Dir) + 2
	for _, s := range c.Argv {
		n += len(s) + 1
	}
	for _, s := range c.Env {
		n += len(s) + 1
	}
	return n
}

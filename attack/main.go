package attack

import (
	"errors"
	"io"
)

// InsideArg is the first argument with which this program makes attacks; the scene
// follows.
const InsideArg = "attack-inside"

// Main carries out a command line that is about attacks, and reports whether it was one.
func Main(args []string, in io.Reader, out io.Writer) (bool, error) {
	if len(args) == 0 {
		return false, nil
	}
	switch {
	case args[0] == Harmless:
		return true, nil
	case args[0] == InsideArg && len(args) == 2:
		return true, Inside(args[1], out)
	case args[0] == LingerArg && len(args) > 2:
		return true, Linger(args[1], args[2], len(args) > 3)
	case args[0] == VictimArg:
		return true, Victim(in)
	case args[0] == NeighbourArg:
		return true, Neighbour(in, out)
	case args[0] == InsideArg, args[0] == LingerArg:
		return true, errors.New("cannot attack: arguments are missing")
	}
	return false, nil
}

package session

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"pinfold/proto"
)

const (
	maxShown = 2 << 10  // bytes of a command that answers show and finished processes keep
	maxProcs = 15 << 16 // bytes of all processes in one answer: with what is around them a frame
	fewProcs = 32       // so many fit whatever they are
)

// brief is a command as answers show it: the first maxShown bytes of its arguments,
// and how much is left out.
func brief(cmd []string) []string {
	room := maxShown
	for i, arg := range cmd {
		if cost := len(arg) + 3; cost <= room { // with its quotes and comma
			room -= cost
			continue
		}
		room = min(room, len(arg))
		for room > 0 && room < len(arg) && !utf8.RuneStart(arg[room]) {
			room--
		}
		out := append(slices.Clone(cmd[:i]), fmt.Sprintf("%s… (+%d bytes)", arg[:room], len(arg)-room))
		if rest := len(cmd) - i - 1; rest > 0 {
			out = append(out, fmt.Sprintf("… (+%d arguments)", rest))
		}
		return out
	}
	return cmd
}

// fit leaves out what a frame does not hold, finished processes first and of each kind
// the oldest first, and says how many those are. all is in order of age.
func fit(all []proto.ProcStatus) (shown []proto.ProcStatus, omitted int) {
	if len(all) <= fewProcs {
		return all, 0
	}
	sizes, total := make([]int, len(all)), 0
	for i := range all {
		b, err := json.Marshal(&all[i], jsontext.AllowInvalidUTF8(true))
		if err != nil {
			return all, 0 // the whole cannot be encoded either, and says so
		}
		sizes[i] = len(b) + 1
		total += sizes[i]
	}
	drop := make([]bool, len(all))
	for _, running := range []bool{false, true} {
		for i := range all {
			if total <= maxProcs {
				break
			}
			if (all[i].State == proto.StateRunning) == running {
				drop[i] = true
				total -= sizes[i]
				omitted++
			}
		}
	}
	for i := range all {
		if !drop[i] {
			shown = append(shown, all[i])
		}
	}
	return shown, omitted
}

package linux

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// IgnoredSignals returns the signals that this process ignores, and so whatever it
// executes: SigIgn of status in proc(5), signal(7).
func IgnoredSignals() ([]int, error) {
	b, err := ReadProc("/proc/self/status", 1<<16)
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(string(b), "\nSigIgn:")
	line, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		return nil, fmt.Errorf("cannot read the ignored signals: %w", err)
	}
	var all []int
	for ; set != 0; set &= set - 1 {
		all = append(all, bits.TrailingZeros64(set)+1)
	}
	return all, nil
}

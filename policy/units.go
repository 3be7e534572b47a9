package policy

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// sizeUnits are the units of sizes, largest first.
func sizeUnits() []struct {
	name string
	size Bytes
} {
	return []struct {
		name string
		size Bytes
	}{{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", 1}}
}

var (
	errSize     = errors.New("not a size with a unit")
	errTooBig   = errors.New("too large")
	errDuration = errors.New("not a time with a unit")
)

// ParseBytes reads a size such as 512MiB. Units are B, KiB, MiB, GiB and TiB; 0
// needs none.
func ParseBytes(s string) (Bytes, error) {
	if s == "0" {
		return 0, nil
	}
	for _, u := range sizeUnits() {
		digits, found := strings.CutSuffix(s, u.name)
		if !found {
			continue
		}
		if digits == "" || strings.Trim(digits, "0123456789") != "" {
			return 0, errSize
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n > math.MaxInt64/int64(u.size) {
			return 0, errTooBig
		}
		return Bytes(n) * u.size, nil
	}
	return 0, errSize
}

// String prints a size in the largest unit that divides it.
func (b Bytes) String() string {
	if b == 0 {
		return "0"
	}
	for _, u := range sizeUnits() {
		if b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// parseTime reads a time such as 10s or 1h30m; off and 0 are no time.
func parseTime(s string) (time.Duration, error) {
	if s == "off" || s == "0" {
		return 0, nil
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 || strings.HasPrefix(s, "+") {
		return 0, errDuration
	}
	return v, nil
}

// formatTime prints a time as parseTime reads it, without empty parts.
func formatTime(v time.Duration) string {
	s := v.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

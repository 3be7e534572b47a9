package policy

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// defaultWords gives default paths the place of the profile that left them out.
func (f *profile) defaultWords(texts []string) []word {
	out := make([]word, 0, len(texts))
	for _, t := range texts {
		out = append(out, word{t, f.pos})
	}
	return out
}

func (f *profile) resolvedUnder() []word {
	if f.under.set {
		return f.under.v
	}
	return f.defaultWords(defaultUnder())
}

func (f *profile) resolvedRead() []word {
	if f.fs.read.set {
		return f.fs.read.v
	}
	return f.defaultWords(defaultRead())
}

func (f *profile) resolvedWrite() []word {
	if f.fs.write.set {
		return f.fs.write.v
	}
	return f.defaultWords(defaultWrite())
}

// resolvedRlimits are the profile's over the defaults, by name.
func (f *profile) resolvedRlimits() []Rlimit {
	var out []Rlimit
	for _, def := range defaultRlimits() {
		if !hasRlimit(f.rlimits, def.Name) {
			out = append(out, def)
		}
	}
	for _, r := range f.rlimits {
		out = append(out, r.Rlimit)
	}
	slices.SortFunc(out, func(a, b Rlimit) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (f *profile) resolvedCgroup() Cgroup {
	return Cgroup{
		Memory:   f.cgroup.memory.or(defaultMemory),
		Swap:     f.cgroup.swap.or(0),
		Pids:     f.cgroup.pids.or(defaultPids),
		CPU:      f.cgroup.cpu.or(0),
		IOWeight: int(f.cgroup.ioWeight.or(0)),
	}
}

func (f *profile) resolvedTimeout() Timeout {
	return Timeout{
		Wall:  f.timeout.wall.or(0),
		CPU:   f.timeout.cpu.or(0),
		Idle:  f.timeout.idle.or(0),
		Start: f.timeout.start.or(defaultStart),
		Stop:  f.timeout.stop.or(defaultStop),
	}
}

func (f *profile) resolvedOutput() Output {
	return Output{f.output.keep.or(defaultKeep), f.output.limit.or(Unset), f.output.overflow.or(OverflowBlock)}
}

// resolvedControls are all controls once. Those that userns and net decide
// follow them.
func (f *profile) resolvedControls() []Need {
	out := make([]Need, 0, len(Controls()))
	for _, c := range Controls() {
		need := Need{Control: c, Level: defaultLevel(c)}
		if c == ControlUserNS && f.userns.or(false) {
			need.Level = LevelRequired
		}
		if c == ControlNetNS && f.net.or(NetNone) == NetHost {
			need.Level = LevelOff
		}
		for _, r := range f.controls {
			if r.control == c {
				need.Level, need.Set = r.level, true
			}
		}
		out = append(out, need)
	}
	return out
}

func offBytes(b Bytes) string {
	if b == Unset {
		return "off"
	}
	return b.String()
}

func offCount(n int64) string {
	if n == Unset {
		return "off"
	}
	return strconv.FormatInt(n, 10)
}

func offTime(t time.Duration) string {
	if t == 0 {
		return "off"
	}
	return formatTime(t)
}

package policy

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

func fsKeys() []key { return keysOf(fsFields()) }

func fsFields() []field[fsRule] {
	return []field[fsRule]{
		{key{"read", listOf(plain(shapeText)), "", "the base view", "Paths that are visible and read-only."}, func(d *decoder, n *node, t *fsRule) {
			keep(n, &t.read)(d.paths(n, "${home}", "${workspace}"))
		}},
		{key{"write", listOf(plain(shapeText)), "", "[${workspace}]", "Paths that are visible and writable."}, func(d *decoder, n *node, t *fsRule) {
			keep(n, &t.write)(d.paths(n, "${home}", "${workspace}"))
		}},
		{key{"deny", listOf(plain(shapeText)), "", "[]", "Paths inside of these that are neither readable nor writable. Every directory above one is pinned: it cannot be renamed or removed, and renames and links across it give EXDEV."}, func(d *decoder, n *node, t *fsRule) {
			keep(n, &t.deny)(d.paths(n, "${home}", "${workspace}"))
		}},
		{key{"absent", wordOf("placeholder", "refuse", "check"), "", "placeholder", "A denied path that is not there: hold its place with an empty directory while the pen lives, refuse the spawn, or look after the end and tell."}, func(d *decoder, n *node, t *fsRule) {
			keep(n, &t.absent)(enumOf(d, n, "answer", AbsentPlaceholder, AbsentRefuse, AbsentCheck))
		}},
		{key{"missing", wordOf("skip", "fail", "create"), "", "skip", "A path of `read` or `write` that is not there: leave it out, refuse the spawn, or make a directory with the caller's rights."}, func(d *decoder, n *node, t *fsRule) {
			keep(n, &t.missing)(enumOf(d, n, "answer", MissingSkip, MissingFail, MissingCreate))
		}},
		{key{"tmp", objectOf(tmpKeys), "", "", "The private /tmp."}, func(d *decoder, n *node, t *fsRule) {
			decodeMap(d, n, "tmp", tmpFields(), t)
		}},
		{key{"home", wordOf("private", "cache(NAME)", "none"), "", "private", "The home directory inside: empty and the session's own; kept for the caller under NAME; or none."}, func(d *decoder, n *node, t *fsRule) {
			keep(n, &t.home)(d.home(n))
		}},
	}
}

func tmpKeys() []key { return keysOf(tmpFields()) }

func tmpFields() []field[fsRule] {
	return []field[fsRule]{
		{key{"size", plain(shapeSize), "size", defaultTmpSize.String(), "Its size, in memory."}, func(d *decoder, n *node, t *fsRule) {
			keep(n, &t.tmpSize)(d.size(n, 64*KiB, neverOff))
		}},
		{key{"exec", plain(shapeSwitch), "", "false", "Whether files in it may be executed. Needs `exec: anything`. Build tools want it; the embedded default policy has it."}, func(d *decoder, n *node, t *fsRule) {
			keep(n, &t.tmpExec)(d.boolean(n))
		}},
	}
}

// home reads private, cache(NAME) or none.
func (d *decoder) home(n *node) (Home, bool) {
	text, ok := d.word(n)
	if !ok {
		return Home{}, false
	}
	if rest, found := strings.CutPrefix(text, "cache("); found {
		name, closed := strings.CutSuffix(rest, ")")
		if !closed || !goodName(name) {
			d.problem(n.pos, fmt.Sprintf("%q is not a home", text), "such as cache(build)")
			return Home{}, false
		}
		return Home{Kind: HomeCache, Name: name}, true
	}
	kind, ok := enumOf(d, n, "home", HomePrivate, HomeNone, HomeCache)
	if kind == HomeCache {
		d.problem(n.pos, "a cache needs a name", "such as cache(build)")
		return Home{}, false
	}
	return Home{Kind: kind}, ok
}

func cgroupKeys() []key { return keysOf(cgroupFields()) }

func cgroupFields() []field[cgroupRule] {
	return []field[cgroupRule]{
		{key{"memory", plain(shapeSize).orWords("off"), "size", defaultMemory.String(), "Memory; beyond it the process is ended and the verdict says so."}, func(d *decoder, n *node, t *cgroupRule) {
			keep(n, &t.memory)(d.size(n, MiB, mayBeOff))
		}},
		{key{"swap", plain(shapeSize).orWords("off"), "size", "0", "Swap besides, where the host counts it."}, func(d *decoder, n *node, t *cgroupRule) {
			keep(n, &t.swap)(d.size(n, 0, mayBeOff))
		}},
		{key{"pids", plain(shapeCount).orWords("off"), "tasks", fmt.Sprint(defaultPids), "Tasks: processes and threads."}, func(d *decoder, n *node, t *cgroupRule) {
			keep(n, &t.pids)(d.count(n, 1, math.MaxInt32, mayBeOff))
		}},
		{key{"cpu", plain(shapeNumber).orWords("off"), "cores", "off", "Processor time per time that passes."}, func(d *decoder, n *node, t *cgroupRule) {
			keep(n, &t.cpu)(d.cores(n))
		}},
		{key{"io", objectOf(ioKeys), "", "", "Access to disks."}, func(d *decoder, n *node, t *cgroupRule) {
			decodeMap(d, n, "io", ioFields(), t)
		}},
	}
}

func ioKeys() []key { return keysOf(ioFields()) }

func ioFields() []field[cgroupRule] {
	return []field[cgroupRule]{
		{key{"weight", plain(shapeCount), "1 to 10000", "not set", "Share of a disk that others want too."}, func(d *decoder, n *node, t *cgroupRule) {
			keep(n, &t.ioWeight)(d.count(n, 1, 10000, neverOff))
		}},
	}
}

func timeoutKeys() []key { return keysOf(timeoutFields()) }

func timeoutFields() []field[timeoutRule] {
	return []field[timeoutRule]{
		{key{"wall", plain(shapeTime), "time", "off", "Time that passes. A request may ask for less."}, func(d *decoder, n *node, t *timeoutRule) {
			keep(n, &t.wall)(d.time(n))
		}},
		{key{"cpu", plain(shapeTime), "time", "off", "Processor time of the process and all that it starts."}, func(d *decoder, n *node, t *timeoutRule) {
			keep(n, &t.cpu)(d.time(n))
		}},
		{key{"idle", plain(shapeTime), "time", "off", "Silence in both directions: nothing written, nothing read."}, func(d *decoder, n *node, t *timeoutRule) {
			keep(n, &t.idle)(d.time(n))
		}},
		{key{"start", plain(shapeTime), "time", formatTime(defaultStart), "From the request to the command's first instruction."}, func(d *decoder, n *node, t *timeoutRule) {
			v, ok := d.time(n)
			if ok && v == 0 {
				d.problem(n.pos, "a start without a limit", "at least 100ms")
				return
			}
			keep(n, &t.start)(v, ok)
		}},
		{key{"stop", plain(shapeTime), "time", formatTime(defaultStop), "From SIGTERM to SIGKILL; off is at once."}, func(d *decoder, n *node, t *timeoutRule) {
			keep(n, &t.stop)(d.time(n))
		}},
	}
}

func outputKeys() []key { return keysOf(outputFields()) }

func outputFields() []field[outputRule] {
	return []field[outputRule]{
		{key{"keep", plain(shapeSize), "size", defaultKeep.String(), "How much of each stream stays readable, and how far its owner may fall behind."}, func(d *decoder, n *node, t *outputRule) {
			keep(n, &t.keep)(d.size(n, 64*KiB, neverOff))
		}},
		{key{"limit", plain(shapeSize).orWords("off"), "size", "off", "How much a stream may have in all; beyond it the process is ended."}, func(d *decoder, n *node, t *outputRule) {
			keep(n, &t.limit)(d.size(n, 1, mayBeOff))
		}},
		{key{"overflow", wordOf("block", "drop"), "", "block", "When the owner is `keep` behind: the process waits, or the oldest output is dropped and the gap told."}, func(d *decoder, n *node, t *outputRule) {
			keep(n, &t.overflow)(enumOf(d, n, "answer", OverflowBlock, OverflowDrop))
		}},
	}
}

// rlimitKinds say which unit each resource limit has: setrlimit(2).
func rlimitKinds() map[string]shapeKind {
	return map[string]shapeKind{
		"as": shapeSize, "core": shapeSize, "data": shapeSize, "fsize": shapeSize, "memlock": shapeSize,
		"msgqueue": shapeSize, "stack": shapeSize, "cpu": shapeTime,
		"nice": shapeCount, "nofile": shapeCount, "nproc": shapeCount, "rtprio": shapeCount, "sigpending": shapeCount,
	}
}

func rlimitNames() []string {
	out := make([]string, 0, len(rlimitKinds()))
	for name := range rlimitKinds() {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func readRlimits(d *decoder, n *node, t *profile) {
	if !d.want(n, nodeMap, "rlimits") {
		return
	}
	seen := make(map[string]Pos, len(n.pairs))
	for _, p := range n.pairs {
		if d.repeated(seen, p.key) {
			continue
		}
		kind, known := rlimitKinds()[p.key.text]
		if !known {
			d.problem(p.key.pos, fmt.Sprintf("unknown resource limit %q", p.key.text), nearestHint(p.key.text, rlimitNames()))
			continue
		}
		if v, ok := d.rlimit(p, kind); ok {
			t.rlimits = append(t.rlimits, rlimitRule{Rlimit{p.key.text, v}, p.key.pos})
		}
	}
}

func (d *decoder) rlimit(p pair, kind shapeKind) (uint64, bool) {
	if kind == shapeSize {
		v, ok := d.size(p.value, 0, neverOff)
		return uint64(v), ok
	}
	if kind == shapeTime {
		v, ok := d.time(p.value)
		if ok && (v < time.Second || v%time.Second != 0) {
			d.problem(p.value.pos, fmt.Sprintf("%s takes whole seconds, at least one", p.key.text), "")
			return 0, false
		}
		return uint64(v / time.Second), ok
	}
	least := int64(0)
	if p.key.text == "nofile" {
		least = 16 // fewer, and no program can even load its libraries
	}
	v, ok := d.count(p.value, least, 1<<30, neverOff)
	return uint64(v), ok
}

func controlNames() []string {
	out := make([]string, 0, len(Controls()))
	for _, c := range Controls() {
		out = append(out, string(c))
	}
	return out
}

// neverOffControls are those without which nothing of a pen is left.
func neverOffControls() []Control {
	return []Control{ControlCaps, ControlIPCNS, ControlMounts, ControlPidNS, ControlSeccomp}
}

func readControls(d *decoder, n *node, t *profile) {
	if !d.want(n, nodeMap, "controls") {
		return
	}
	seen := make(map[string]Pos, len(n.pairs))
	for _, p := range n.pairs {
		if d.repeated(seen, p.key) {
			continue
		}
		c := Control(p.key.text)
		if !slices.Contains(Controls(), c) {
			d.problem(p.key.pos, fmt.Sprintf("unknown control %q", p.key.text), nearestHint(p.key.text, controlNames()))
			continue
		}
		level, ok := enumOf(d, p.value, "level", LevelRequired, LevelBestEffort, LevelOff)
		if !ok {
			continue
		}
		if level == LevelOff && slices.Contains(neverOffControls(), c) {
			d.problem(p.value.pos, fmt.Sprintf("%s cannot be off", c), "required or best_effort")
			continue
		}
		t.controls = append(t.controls, controlRule{c, level, p.value.pos})
	}
}

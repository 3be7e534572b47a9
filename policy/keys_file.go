package policy

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// document is one source before it is joined with the others.
type document struct {
	version  opt[int64]
	callers  []callerRule
	profiles []*profile
	audit    opt[AuditSettings]
	dynamic  opt[DynamicRange]
}

func fileFields() []field[document] {
	return []field[document]{
		{key{"version", wordOf("1"), "", "", "Version of this format. Every file says it."}, func(d *decoder, n *node, t *document) {
			if text, ok := d.word(n); ok && text != "1" {
				d.problem(n.pos, fmt.Sprintf("unknown version %q", text), "this program reads version 1")
			}
			t.version = opt[int64]{1, true, n.pos}
		}},
		{key{"callers", listOf(objectOf(callerKeys)), "", "[]", "Who may ask. The first entry that matches wins; who matches none is refused. Entries of several files stand one after another in the order of the files."}, readCallers},
		{key{"profiles", tableOf(objectOf(profileKeys)), "", "{}", "What may be done, by name. A name is given once over all files."}, readProfiles},
		{key{"audit", objectOf(auditKeys), "", "", "How decisions are recorded. In one file only."}, readAudit},
		{key{"dynamic", objectOf(dynamicKeys), "", "", "The uids of `run_as: dynamic`. In one file only."}, readDynamic},
	}
}

func readCallers(d *decoder, n *node, t *document) {
	if !d.want(n, nodeList, "callers") {
		return
	}
	for _, item := range n.items {
		c := callerRule{pos: item.pos}
		decodeMap(d, item, "a caller", callerFields(), &c)
		if c.match.pos.Line == 0 {
			d.problem(item.pos, "a caller without match", `for everybody write match: { users: ["*"] }`)
		}
		if len(c.profiles) == 0 {
			d.problem(item.pos, "a caller without profiles", "profiles: [NAME]")
		}
		t.callers = append(t.callers, c)
	}
}

func readProfiles(d *decoder, n *node, t *document) {
	if !d.want(n, nodeMap, "profiles") {
		return
	}
	seen := make(map[string]Pos, len(n.pairs))
	for _, p := range n.pairs {
		if d.repeated(seen, p.key) {
			continue
		}
		if !goodName(p.key.text) {
			d.problem(p.key.pos, fmt.Sprintf("%q is not a name", p.key.text), "letters, digits, - _ and . and at most 64 of them")
		}
		f := &profile{pos: p.key.pos, name: p.key.text}
		if p.value.kind == nodeNull {
			d.problem(p.key.pos, fmt.Sprintf("profile %q is empty", f.name), "it needs at least commands or extends")
		} else {
			decodeMap(d, p.value, fmt.Sprintf("profile %q", f.name), profileFields(), f)
		}
		t.profiles = append(t.profiles, f)
	}
}

// goodName is the form of the names of profiles, caches and callers' users.
func goodName(s string) bool {
	if s == "" || len(s) > 64 || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
		default:
			return false
		}
	}
	return true
}

func callerKeys() []key { return keysOf(callerFields()) }

func callerFields() []field[callerRule] {
	return []field[callerRule]{
		{key{"name", plain(shapeText), "", "`caller N`", "What records and explanations call this entry."}, func(d *decoder, n *node, t *callerRule) {
			t.name, _ = d.word(n)
		}},
		{key{"match", objectOf(matchKeys), "", "", "Whom the entry is for. Every key given must match; within a key one value is enough. The facts come from the kernel, never from a message."}, func(d *decoder, n *node, t *callerRule) {
			t.match.pos = n.pos
			t.match.given = make(map[string]bool)
			decodeMap(d, n, "match", matchFields(), &t.match)
			if n.kind == nodeMap && len(n.pairs) == 0 {
				d.problem(n.pos, "an empty match", `for everybody write users: ["*"]`)
			}
		}},
		{key{"profiles", listOf(plain(shapeWord)), "", "", "Names of profiles, tried in this order: the first whose commands hold the resolved file decides. A request may name one of them."}, func(d *decoder, n *node, t *callerRule) {
			t.profiles, _ = d.words(n)
		}},
		{key{"quota", objectOf(quotaKeys), "", "", "What all sessions of the caller may use together."}, func(d *decoder, n *node, t *callerRule) {
			decodeMap(d, n, "quota", quotaFields(), &t.quota)
		}},
		{key{"detach_ttl", plain(shapeTime), "time", "30s", "How long a session whose client went away is kept for it."}, func(d *decoder, n *node, t *callerRule) {
			keep(n, &t.detachTTL)(d.time(n))
		}},
		{key{"retention", plain(shapeTime), "time", "1h", "How long after its end a process can be asked about and its output read, within its session, whether anybody has read it or not; `off`: not at all. Where it is less than detach_ttl, a client that comes back may find nothing of what ended meanwhile."}, func(d *decoder, n *node, t *callerRule) {
			keep(n, &t.retention)(d.time(n))
		}},
		{key{"manage", wordOf("none", "own", "all"), "", "own", "What an operator's connection of this caller may see and end: nothing, the processes of its own uid, or all."}, func(d *decoder, n *node, t *callerRule) {
			keep(n, &t.manage)(enumOf(d, n, "reach", ManageNone, ManageOwn, ManageAll))
		}},
		{key{"auth_token_file", plain(shapeText), "", "none", "Absolute path of a file whose first line a handshake must present, on top of the credentials of the peer, never in their place. The file is read by the daemon."}, func(d *decoder, n *node, t *callerRule) {
			if text, ok := d.absolute(n); ok {
				t.token = opt[string]{text, true, n.pos}
			}
		}},
		{key{"run_as", plain(shapeWord), "", "the profile's", "As `run_as` of a profile, and before it."}, func(d *decoder, n *node, t *callerRule) {
			keep(n, &t.runAs)(d.runAs(n))
		}},
	}
}

func matchKeys() []key { return keysOf(matchFields()) }

func matchFields() []field[matchRule] {
	ids := shape{kind: shapeList, item: &shape{kind: shapeCount}, single: true}
	return []field[matchRule]{
		{key{"users", listOf(plain(shapeWord)), "", "", "Login names; `\"*\"` is everybody. An unknown name warns and matches nobody."}, func(d *decoder, n *node, t *matchRule) {
			t.given["users"] = true
			t.users = d.matchWords(n)
			for _, w := range t.users {
				t.any = t.any || w.text == "*"
			}
		}},
		{key{"groups", listOf(plain(shapeWord)), "", "", "Group names: of the primary or a supplementary group (SO_PEERGROUPS)."}, func(d *decoder, n *node, t *matchRule) {
			t.given["groups"] = true
			t.groups = d.matchWords(n)
		}},
		{key{"units", listOf(plain(shapeWord)), "", "", "System units, as sd_pid_get_unit(3) finds them; `*` and `?` match within a name. Where the unit cannot be found out the entry does not match."}, func(d *decoder, n *node, t *matchRule) {
			t.given["units"] = true
			t.units = d.matchWords(n)
			for _, w := range t.units {
				if !goodGlob(w.text) {
					d.problem(w.pos, fmt.Sprintf("%q is not a pattern for units", w.text), "such as agent@*.service")
				}
			}
		}},
		{key{"uid", ids, "", "", "Numbers of users, one or a list."}, func(d *decoder, n *node, t *matchRule) {
			t.given["uid"] = true
			t.uids = d.numbers(n)
		}},
		{key{"gid", ids, "", "", "Numbers of groups, one or a list."}, func(d *decoder, n *node, t *matchRule) {
			t.given["gid"] = true
			t.gids = d.numbers(n)
		}},
	}
}

// matchWords reads names; an empty list would match nobody and is a slip.
func (d *decoder) matchWords(n *node) []word {
	out, ok := d.words(n)
	if ok && len(out) == 0 {
		d.problem(n.pos, "an empty list matches nobody", "leave the key out")
	}
	for _, w := range out {
		if w.text == "" {
			d.problem(w.pos, "an empty name", "")
		}
	}
	return out
}

func (d *decoder) numbers(n *node) []uint32 {
	items := []*node{n}
	if n.kind == nodeList {
		items = n.items
	}
	if len(items) == 0 {
		d.problem(n.pos, "an empty list matches nobody", "leave the key out")
	}
	var out []uint32
	for _, item := range items {
		// The largest number is not an id: (uid_t)-1 means "leave it", chown(2).
		if v, ok := d.count(item, 0, math.MaxUint32-1, neverOff); ok {
			out = append(out, uint32(v))
		}
	}
	return out
}

func quotaKeys() []key { return keysOf(quotaFields()) }

func quotaFields() []field[quotaRule] {
	return []field[quotaRule]{
		{key{"sessions", plain(shapeCount), "sessions", strconv.Itoa(defaultSessions), "Open sessions."}, func(d *decoder, n *node, t *quotaRule) {
			keep(n, &t.sessions)(d.count(n, 1, math.MaxInt32, neverOff))
		}},
		{key{"processes", plain(shapeCount), "processes", strconv.Itoa(defaultProcesses), "Live processes over all sessions."}, func(d *decoder, n *node, t *quotaRule) {
			keep(n, &t.processes)(d.count(n, 1, math.MaxInt32, neverOff))
		}},
		{key{"memory", plain(shapeSize).orWords("off"), "size", "off", "Memory of the caller's cgroup."}, func(d *decoder, n *node, t *quotaRule) {
			keep(n, &t.memory)(d.size(n, MiB, mayBeOff))
		}},
		{key{"cpu", plain(shapeNumber).orWords("off"), "cores", "off", "Processor time of the caller's cgroup per time that passes."}, func(d *decoder, n *node, t *quotaRule) {
			keep(n, &t.cpu)(d.cores(n))
		}},
		{key{"pids", plain(shapeCount).orWords("off"), "tasks", "off", "Tasks (processes and threads) of the caller's cgroup."}, func(d *decoder, n *node, t *quotaRule) {
			keep(n, &t.pids)(d.count(n, 2, math.MaxInt32, mayBeOff))
		}},
		{key{"output", plain(shapeSize).orWords("off"), "size", defaultOutput.String(), "Output kept in spools. At the limit what was delivered is given up first, then processes wait until their owners read."}, func(d *decoder, n *node, t *quotaRule) {
			keep(n, &t.output)(d.size(n, 64*KiB, mayBeOff))
		}},
	}
}

func auditKeys() []key { return keysOf(auditFields()) }

func auditFields() []field[AuditSettings] {
	return []field[AuditSettings]{
		{key{"sync", wordOf("none", "interval", "each"), "", "interval", "When records are flushed to the disk: when the kernel does it, every `interval`, or after each record."}, func(d *decoder, n *node, t *AuditSettings) {
			if v, ok := enumOf(d, n, "sync", SyncNone, SyncInterval, SyncEach); ok {
				t.Sync = v
			}
		}},
		{key{"interval", plain(shapeTime), "time", formatTime(defaultAudit().Interval), "Time between flushes with `sync: interval`."}, func(d *decoder, n *node, t *AuditSettings) {
			v, ok := d.time(n)
			if ok && (v < 10*time.Millisecond || v > time.Hour) {
				d.problem(n.pos, fmt.Sprintf("%q is not between 10ms and 1h", n.text), "for no flush write sync: none")
				return
			}
			if ok {
				t.Interval = v
			}
		}},
		{key{"on_failure", wordOf("refuse", "continue"), "", "refuse", "What a record that cannot be written does to new spawns: refuse them, or go on and say so loudly."}, func(d *decoder, n *node, t *AuditSettings) {
			if v, ok := enumOf(d, n, "answer", FailureRefuse, FailureContinue); ok {
				t.OnFailure = v
			}
		}},
	}
}

func readAudit(d *decoder, n *node, t *document) {
	v := defaultAudit()
	decodeMap(d, n, "audit", auditFields(), &v)
	t.audit = opt[AuditSettings]{v, true, n.pos}
}

func dynamicKeys() []key { return keysOf(dynamicFields()) }

func dynamicFields() []field[DynamicRange] {
	def := defaultDynamic()
	return []field[DynamicRange]{
		{key{"first", plain(shapeCount), "uid", strconv.FormatUint(uint64(def.First), 10), "First uid of the range. It is the one of every pen's PID 1."}, func(d *decoder, n *node, t *DynamicRange) {
			// Below 1000 are the host's own users, login.defs(5).
			if v, ok := d.count(n, 1000, math.MaxUint32-2, neverOff); ok {
				t.First = uint32(v)
			}
		}},
		{key{"count", plain(shapeCount), "uids", strconv.FormatUint(uint64(def.Count), 10), "How many uids the range has."}, func(d *decoder, n *node, t *DynamicRange) {
			if v, ok := d.count(n, 2, math.MaxInt32, neverOff); ok {
				t.Count = uint32(v)
			}
		}},
	}
}

func readDynamic(d *decoder, n *node, t *document) {
	v := defaultDynamic()
	decodeMap(d, n, "dynamic", dynamicFields(), &v)
	if uint64(v.First)+uint64(v.Count) > math.MaxUint32 {
		d.problem(n.pos, "the range of dynamic uids goes beyond the last uid", "")
	}
	t.dynamic = opt[DynamicRange]{v, true, n.pos}
}

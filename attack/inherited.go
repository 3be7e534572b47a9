package attack

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// inherited: three descriptors, no capability, no way to get one.
func inherited() []Attack {
	none, perm := []string{"none"}, []string{"EPERM"}
	ids := []string{"EPERM", "EINVAL"}
	return class(
		Inherited,
		Attack{ID: "stray-descriptor", Layer: IDs, Tries: "find a descriptor above 2 that was left open", Want: none, Control: user(), try: strayDescriptor},
		Attack{ID: "permitted-capability", Layer: IDs, Tries: "have a permitted capability", Want: none, Control: root(), try: status("CapPrm:", isZero)},
		Attack{ID: "effective-capability", Layer: IDs, Tries: "have an effective capability", Want: none, Control: root(), try: status("CapEff:", isZero)},
		Attack{ID: "bounding-capability", Layer: IDs, Tries: "have a capability in the bounding set", Want: none, Control: root(), try: status("CapBnd:", isZero)},
		Attack{ID: "inheritable-capability", Layer: IDs, Tries: "have an inheritable capability", Want: none, Control: no("no ordinary process has one"), try: status("CapInh:", isZero)},
		Attack{ID: "ambient-capability", Layer: IDs, Tries: "have an ambient capability", Want: none, Control: no("no ordinary process has one"), try: status("CapAmb:", isZero)},
		Attack{ID: "new-privileges", Layer: IDs, Tries: "run without no_new_privs", Want: none, Control: user(), try: status("NoNewPrivs:", func(v string) bool { return v == "1" })},
		Attack{ID: "no-filter", Layer: Seccomp, Tries: "run without a seccomp filter", Want: none, Control: user(), try: status("Seccomp:", func(v string) bool { return v == "2" })},
		Attack{ID: "take-capability", Layer: IDs, Tries: "capset", Want: perm, Control: root(), try: takeCapability},
		Attack{ID: "raise-ambient", Layer: IDs, Tries: "PR_CAP_AMBIENT_RAISE", Want: perm, Control: root(), try: raiseAmbient},
		Attack{ID: "secure-bits", Layer: IDs, Tries: "PR_SET_SECUREBITS", Want: perm, Control: root(), try: calling(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, 1)},
		Attack{ID: "become-root", Layer: IDs, Tries: "setresuid to 0", Want: ids, Needs: []Need{NotRoot}, Control: root(), try: rawIDs(unix.SYS_SETRESUID, 0)},
		Attack{ID: "become-another", Layer: IDs, Tries: "setresuid to 1", Want: ids, Control: root(), try: rawIDs(unix.SYS_SETRESUID, 1)},
		Attack{ID: "become-group-root", Layer: IDs, Tries: "setresgid to 0", Want: ids, Needs: []Need{NotRoot}, Control: root(), try: rawIDs(unix.SYS_SETRESGID, 0)},
		Attack{ID: "join-groups", Layer: IDs, Tries: "setgroups", Want: perm, Control: root(), try: func(*Scene) error { return call(unix.SYS_SETGROUPS, 1, pointer(new(uint32))) }},
		Attack{ID: "fake-command-line", Layer: Seccomp, Tries: "PR_SET_MM", Want: perm, Control: Control{Room: AsRoot, Past: true, Cap: unix.CAP_SYS_RESOURCE}, try: calling(unix.SYS_PRCTL, unix.PR_SET_MM, 0, 0, 0, 0)},
		Attack{ID: "set-id-on-usr", Layer: Mounts, Tries: "find /usr mounted without nosuid", Want: []string{"nosuid"}, Control: no("a host may mount /usr nosuid"), try: noSuid("/usr")},
		Attack{ID: "set-id-on-workspace", Layer: Mounts, Tries: "find the workspace mounted without nosuid", Want: []string{"nosuid"}, Control: no("a host may mount it nosuid"), try: noSuid(".")},
		Attack{ID: "devices-on-workspace", Layer: Mounts, Tries: "find the workspace mounted without nodev", Want: []string{"nodev"}, Control: no("a host may mount it nodev"), try: flagged(".", unix.MS_NODEV, "nodev")},
		Attack{ID: "write-own-program", Layer: Mounts, Tries: "open /proc/self/exe for writing", Want: []string{"EROFS", "EACCES"}, Control: past(AsRoot), try: opens("/proc/self/exe", unix.O_RDWR)},
	)
}

// strayDescriptor looks for descriptors beyond the standard streams; the runtime's
// own are of no file.
func strayDescriptor(*Scene) error {
	for n := 3; n < 4096; n++ {
		to, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(n))
		if err == nil && !strings.HasPrefix(to, "anon_inode:") {
			return nil
		}
	}
	return errors.New("none")
}

func isZero(v string) bool { return strings.Trim(v, "0") == "" }

// status succeeds where a line of /proc/self/status does not show what it should.
func status(name string, good func(string) bool) try {
	return func(*Scene) error {
		b, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == name && good(f[1]) {
				return errors.New("none")
			}
		}
		return nil
	}
}

// capabilities of capset(2), version 3.
type capabilities struct {
	header [2]uint32
	data   [2][3]uint32 // effective, permitted, inheritable
}

func capSet(data [2][3]uint32) error {
	c := &capabilities{header: [2]uint32{unix.LINUX_CAPABILITY_VERSION_3}, data: data}
	return call(unix.SYS_CAPSET, pointer(&c.header), pointer(&c.data))
}

func takeCapability(*Scene) error {
	const admin = 1 << unix.CAP_SYS_ADMIN
	return capSet([2][3]uint32{{admin, admin, 0}})
}

// raiseAmbient needs the capability in two other sets; in a pen they stay empty.
func raiseAmbient(*Scene) error {
	const admin = 1 << unix.CAP_SYS_ADMIN
	if err := capSet([2][3]uint32{{admin, admin, admin}}); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	return call(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0)
}

// rawIDs sets all three ids of this thread alone.
func rawIDs(nr, id uintptr) try { return calling(nr, id, id, id) }

func noSuid(path string) try { return flagged(path, unix.MS_NOSUID, "nosuid") }

// flagged succeeds where the mount of a path lacks a flag.
func flagged(path string, flag int64, name string) try {
	return func(*Scene) error {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err != nil {
			return err
		}
		if st.Flags&flag == 0 {
			return nil
		}
		return errors.New(name)
	}
}

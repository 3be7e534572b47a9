package stage

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
)

// mountTable is the target's mountinfo: proc(5).
type mountTable struct {
	hash string
	at   map[string]mountLine // the last mount at each point
}

type mountLine struct {
	dev     string // major:minor
	options options
	fstype  string
	super   options // of the file system itself
}

// options are a list with commas.
type options string

func (o options) has(name string) bool {
	for p := range strings.SplitSeq(string(o), ",") {
		if p == name {
			return true
		}
	}
	return false
}

func readMounts(pid int) (*mountTable, error) {
	b, err := linux.ReadProc(procPath(pid, "mountinfo"), maxProcFile)
	if err != nil {
		return nil, err
	}
	t := &mountTable{at: map[string]mountLine{}}
	h := sha256.New()
	var seen []byte
	for line := range strings.SplitSeq(strings.TrimSuffix(string(b), "\n"), "\n") {
		f := strings.Fields(line)
		dash := slices.Index(f, "-")
		if dash < 6 || len(f) < dash+2 {
			return nil, fmt.Errorf("bad line %q in mountinfo", line)
		}
		if slices.ContainsFunc(f[6:dash], func(o string) bool { return strings.HasPrefix(o, "shared:") }) {
			return nil, fmt.Errorf("the mount %s is shared with others", f[4])
		}
		point := unescape(f[4])
		if first, again := t.at[point]; again && point == "/" {
			return nil, fmt.Errorf("the root that PID 1 began in is still mounted: %s of %s beside %s of %s", f[3], f[dash+1], first.fstype, first.dev)
		}
		t.at[point] = mountLine{dev: f[2], options: options(f[5]), fstype: f[dash+1], super: options(f[len(f)-1])}
		seen = append(seen[:0], f[3]...)
		for _, s := range []string{f[4], f[5], f[dash+1]} {
			seen = append(append(seen, ' '), s...)
		}
		h.Write(append(seen, '\n'))
	}
	t.hash = hex.EncodeToString(h.Sum(nil))
	return t, nil
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// check proves the mount layer: a read-only root of our own, everything nosuid, all
// that the profile mounts with what it asks for, nothing of the host's writable that it
// does not name so, and a mask on every denied path.
func (t *mountTable) check(l *launcher) error {
	root, ok := t.at["/"]
	if !ok || root.fstype != "tmpfs" || !root.options.has("ro") {
		return errors.New("its root is not the view")
	}
	for point, m := range t.at {
		if !m.options.has("nosuid") {
			return fmt.Errorf("the mount %s has no nosuid", point)
		}
	}
	if err := errors.Join(t.checkProc(l), t.checkOwn(&l.p.Profile), t.checkView(&l.p.Profile)); err != nil {
		return err
	}
	mask := fmt.Sprintf("%d:%d", unix.Major(l.s.masks.dev), unix.Minor(l.s.masks.dev))
	for p, c := range l.m.masked {
		if m := t.at[p]; c == coverMask && m.dev != mask || c == coverReadOnly && !m.options.has("ro") {
			return fmt.Errorf("the denied path %s is not held", p)
		}
	}
	for _, p := range l.m.pinned {
		if err := t.has(p, ""); err != nil {
			return fmt.Errorf("the way to a denied path is not held: %w", err)
		}
	}
	st, err := os.Stat(procPath(l.target, "root"))
	if err != nil || !st.IsDir() {
		return errors.Join(errors.New("its root cannot be looked at"), err)
	}
	return nil
}

// has says what a mount lacks.
func (t *mountTable) has(point, fstype string, options ...string) error {
	m, ok := t.at[point]
	switch {
	case !ok:
		return fmt.Errorf("nothing is mounted on %s", point)
	case fstype != "" && m.fstype != fstype:
		return fmt.Errorf("on %s is %s, not %s", point, m.fstype, fstype)
	}
	for _, o := range options {
		if !m.options.has(o) {
			return fmt.Errorf("the mount %s is not %s", point, o)
		}
	}
	return nil
}

// checkProc looks for what keeps a pen from the host's part of /proc.
func (t *mountTable) checkProc(l *launcher) error {
	if err := errors.Join(t.has("/proc", "proc", "nosuid", "nodev", "noexec"), t.has("/dev/pts", "devpts", "nosuid", "noexec")); err != nil {
		return err
	}
	if l.p.Proc == sandbox.ProcPids {
		if !t.at["/proc"].super.has("subset=pid") {
			return errors.New("/proc shows more than processes")
		}
		return nil
	}
	for _, p := range l.s.host.masked {
		if err := t.has(p, ""); err != nil {
			return err
		}
	}
	for _, p := range l.s.host.readOnly {
		if err := t.has(p, "proc", "ro", "noexec"); err != nil {
			return err
		}
	}
	return nil
}

// checkOwn looks for what the pen alone has.
func (t *mountTable) checkOwn(f *sandbox.Profile) error {
	for _, p := range f.Private {
		want := []string{"nosuid", "nodev"}
		if p.NoExec {
			want = append(want, "noexec")
		}
		if err := t.has(p.Path, "tmpfs", want...); err != nil {
			return err
		}
		page := int64(os.Getpagesize())
		size := (int64(p.Size) + page - 1) / page * page
		for _, o := range []string{fmt.Sprintf("size=%dk", size>>10), fmt.Sprintf("nr_inodes=%d", p.Inodes)} {
			if !t.at[p.Path].super.has(o) {
				return fmt.Errorf("the memory file system %s is not %s", p.Path, o)
			}
		}
	}
	for _, a := range f.Attach {
		want := []string{"nosuid", "nodev"}
		if !a.Writable {
			want = append(want, "ro")
		}
		if a.NoExec {
			want = append(want, "noexec")
		}
		if err := t.has(a.Path, "", want...); err != nil {
			return err
		}
	}
	return nil
}

// checkView looks at what is mounted of the host: what is absent is hidden.
func (t *mountTable) checkView(f *sandbox.Profile) error {
	for _, e := range f.View {
		if _, ok := t.at[e.Path]; !ok || e.Kind != sandbox.EntryBind {
			continue
		}
		var want []string
		if !e.Writable {
			want = append(want, "ro")
		}
		if e.NoExec {
			want = append(want, "noexec")
		}
		if err := t.has(e.Path, "", want...); err != nil {
			return err
		}
	}
	return nil
}

package stage

import (
	"bytes"
	"os"
	"testing"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
	"pinfold/test/testkit"
)

// hostile is a stage in this process with the daemon's end of its socket.
type hostile struct {
	conn *os.File
	peer *os.File // a connection of this process's own: of root
	buf  []byte

	files int // that came with the last answer
}

func newHostile(tb testing.TB) *hostile {
	tb.Helper()
	return newHostileAt(tb, "/sys/fs/cgroup/none")
}

// newHostileAt gives the stage a cgroup v2 directory.
func newHostileAt(tb testing.TB, base string) *hostile {
	tb.Helper()
	return newHostileWith(tb, base, func(*Config) {})
}

// newHostileWith is newHostileAt of a stage that was started in another way too.
func newHostileWith(tb testing.TB, base string, also func(*Config)) *hostile {
	tb.Helper()
	testkit.NeedRoot(tb)
	a, b, err := linux.SocketPair("hostile")
	if err != nil {
		tb.Fatal(err)
	}
	ours, err := linux.Pollable(a)
	if err != nil {
		tb.Fatal(err)
	}
	theirs, err := linux.Pollable(b)
	if err != nil {
		tb.Fatal(err)
	}
	peer, other, err := linux.SocketPair("peer")
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan error, 1)
	c := Config{State: tb.TempDir(), Cgroups: []sandbox.CgroupHier{{Dir: base}}, DynamicFirst: 1900000000, DynamicCount: 10}
	also(&c)
	go func() { done <- Serve(tb.Context(), theirs, c) }()
	h := &hostile{conn: ours, peer: peer, buf: make([]byte, stagewire.MaxInline)}
	tb.Cleanup(func() {
		linux.CloseAll(ours, peer, other)
		if err := <-done; err != nil {
			tb.Errorf("Serve() = %v; want nil", err)
		}
	})
	if m, _, err := stagewire.Receive(ours, h.buf); err != nil || m.ID != 0 {
		tb.Fatalf("hello = %+v, %v", m, err)
	}
	return h
}

// send sends bytes and wants exactly one answer that is a no, or the empty yes of
// a request that asks for nothing.
func (h *hostile) send(tb testing.TB, data []byte) stagewire.Message {
	tb.Helper()
	if err := linux.Send(h.conn, data, h.peer); err != nil {
		tb.Fatal(err)
	}
	m, files, err := stagewire.Receive(h.conn, h.buf)
	h.files = len(files)
	linux.CloseNumbers(files...)
	if err != nil {
		tb.Fatalf("answer to %.200q = %v; want one", data, err)
	}
	return m
}

const seedSpec = `{"profile":{"name":"x","hostname":"x","view":[{"kind":"bind","path":"/usr","source":"/usr"}],"attach":[],"private":[],"deny":[],` +
	`"proc":"masked","net":"none","userns":false,"rootmap":false,"exec":"anything","pty":false,"stdin":"pipe","seccomp":{"base":"default"},` +
	`"landlock":{"rules":[{"path":"/usr","access":"rx"}]},"rlimits":[],"controls":[]},"site":{"uid":0,"gid":0,"attach":[],"cgroup":"a/b","join":[]},` + seedCommand + `}`

const seedCommand = `"command":{"program":"/usr/bin/true","argv":["true"],"env":[],"dir":"/"}`

const seedMark = `{"boot":"00000000-0000-0000-0000-000000000000","init":{"pid":1,"start":1},"target":{"pid":2,"start":1},"cgroup":"a/b",` +
	`"watches":[{"path":"/x","root":"/etc","root_id":{"dev":1,"ino":2},"rel":"shadow","uid":0,"gid":0,"placeholder":{"dev":0,"ino":0}}],"enforcement":{}}`

// FuzzDaemon is a daemon wholly in an attacker's hands: whatever it sends, the
// stage answers and starts nothing.
func FuzzDaemon(f *testing.F) {
	h := newHostile(f)
	for _, op := range []string{"look", "scratch", "drop_scratch", "launch", "prepare", "command", "start", "abort", "reaped", "step", "denies", "adopt", "settle", "hello", "x", ""} {
		for _, body := range []string{"null", "{}", "[]", "1", `"x"`, seedSpec, `{"pen":1}`, `{"pen":1,` + seedCommand + `}`, seedMark, `{"name":"../../etc","size":1,"inodes":1,"uid":1,"gid":1}`, `{"programs":["","/","a/b"],"path":["x"],"dir":"/","under":["/"]}`} {
			f.Add([]byte(`{"id":1,"op":"` + op + `","body":` + body + `}`))
		}
	}
	f.Add([]byte("{"))
	f.Add(bytes.Repeat([]byte("["), 60000))
	f.Add([]byte(`{"id":1,"large":100}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > stagewire.MaxInline || bytes.Contains(b, []byte(`"scratch"`)) && bytes.Contains(b, []byte(`"uid":1`)) {
			return // what is well formed would be made
		}
		m := h.send(t, b)
		if bytes.Contains(m.Body, []byte("init_pid")) {
			t.Fatalf("the stage started something for %.300q: %s", b, m.Body)
		}
	})
}

package stage

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/launch"
	"pinfold/sandbox/internal/linux"
	"pinfold/test/testkit"
)

func TestNurseryHasNoMountsOfTheHost(t *testing.T) {
	testkit.NeedRoot(t)
	n := newNursery()
	if n == nil {
		t.Fatal("newNursery() = nil; want one for root")
	}
	defer n.close()
	const self, thread = "/proc/self/mountinfo", "/proc/thread-self/mountinfo"
	read := func(name string) string {
		b, err := linux.ReadProc(name, maxProcFile)
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	before := read(self)
	var inside string
	var ns unix.Stat_t
	var writing error
	n.on(func() {
		if linux.FirstThread() {
			t.Error("on() is on the first thread of the process")
		}
		inside = read(thread)
		ns, _ = linux.StatPath("/proc/thread-self/ns/mnt")
		writing = unix.Mkdir("/x", 0o700)
	})
	for line := range strings.Lines(inside) {
		if f := strings.Fields(line); f[4] != "/" && f[4] != "/proc" && !strings.HasPrefix(f[4], "/proc/") || strings.Contains(line, "shared:") || strings.Contains(line, "master:") {
			t.Errorf("the nursery has the mount %s", line)
		}
	}
	if after := read(self); after != before {
		t.Errorf("mounts of the host are now\n%s\nwant\n%s", after, before)
	}
	if ns.Ino == 0 || ns.Ino != n.inode() {
		t.Errorf("inode() = %d; want %d", n.inode(), ns.Ino)
	}
	if own, err := namespaces("self"); err != nil || own["mnt"] == n.inode() {
		t.Errorf("inode() = %d; want another than the process's, %d, %v", n.inode(), own["mnt"], err)
	}
	if writing == nil {
		t.Error("a directory could be made in the nursery")
	}
}

func TestNurseryNetworksAreUsedOnce(t *testing.T) {
	testkit.NeedRoot(t)
	n := newNursery()
	if n == nil {
		t.Fatal("newNursery() = nil; want one for root")
	}
	defer n.close()
	own, err := namespaces("self")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{own["net"]: true, 0: true}
	var keep []*os.File // else the kernel gives numbers again
	defer func() { linux.CloseAll(keep...) }()
	for i := range 5 {
		net := n.spare.Swap(0)
		if seen[net] {
			t.Fatalf("spare %d = %d; want one that nobody had: %v", i, net, seen)
		}
		seen[net] = true
		n.on(func() {
			f, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				t.Error(err)
				return
			}
			keep = append(keep, f)
			if st, err := linux.Stat(f); err != nil || st.Ino != net {
				t.Errorf("the thread is in %d, %v; want %d", st.Ino, err, net)
			}
		})
		n.on(func() { n.renew(net) })
	}
}

func TestNurseryKeepsANetworkThatNobodyGot(t *testing.T) {
	testkit.NeedRoot(t)
	n := newNursery()
	if n == nil {
		t.Fatal("newNursery() = nil; want one for root")
	}
	defer n.close()
	want := n.spare.Load()
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer linux.CloseAll(null)
	s := launch.Start{Image: null, Flags: unix.CLONE_NEWNET} // no argv
	if _, _, _, err := n.start(s); err == nil {
		t.Fatalf("start(%+v) = nil; want an error", s)
	}
	if got := n.spare.Load(); got != want || got == 0 {
		t.Errorf("spare after a failed start = %d; want %d", got, want)
	}
}

package stage

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// traces is what a refused request may not leave behind in the process of the stage.
type traces struct {
	files    int
	children int
	mounts   int
	state    int // files below the state directory
}

func tracesNow(tb testing.TB, state string) traces {
	tb.Helper()
	var out traces
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		tb.Fatal(err)
	}
	for _, l := range lists {
		b, err := os.ReadFile(l)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) { // the thread has ended
			tb.Fatal(err)
		}
		out.children += len(strings.Fields(string(b)))
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		tb.Fatal(err)
	}
	err = filepath.WalkDir(state, func(string, fs.DirEntry, error) error { out.state++; return nil })
	if err != nil {
		tb.Fatal(err)
	}
	out.files, out.mounts = len(fds), strings.Count(string(table), state)
	return out
}

// sendWith sends bytes with descriptors of some kind.
func (h *hostile) sendWith(tb testing.TB, data []byte, kind byte) {
	tb.Helper()
	files := []*os.File{h.peer}
	name := ""
	switch kind % 6 {
	case 1:
		files = nil
	case 2:
		files = []*os.File{h.peer, h.peer, h.peer}
	case 3:
		files = []*os.File{h.conn} // the daemon's own end
	case 4:
		files, name = nil, "/"
	case 5:
		name = "/dev/null"
	}
	if name != "" {
		f, err := os.Open(name)
		if err != nil {
			tb.Fatal(err)
		}
		defer linux.CloseAll(f)
		files = append(files, f)
	}
	if err := linux.Send(h.conn, data, files...); err != nil {
		tb.Fatal(err)
	}
}

// answers takes one answer for each message that was sent, in any order.
func (h *hostile) answers(tb testing.TB, want map[uint64]int) {
	tb.Helper()
	for len(want) > 0 {
		m, files, err := stagewire.Receive(h.conn, h.buf)
		linux.CloseNumbers(files...)
		if err != nil {
			tb.Fatalf("answer = %v; want one for each of %v", err, want)
		}
		if want[m.ID] == 0 {
			tb.Fatalf("answer to %d; want one for each of %v", m.ID, want)
		}
		if bytes.Contains(m.Body, []byte("init_pid")) {
			tb.Fatalf("the stage started something: %s", m.Body)
		}
		if want[m.ID]--; want[m.ID] == 0 {
			delete(want, m.ID)
		}
	}
}

// FuzzConversation sends many messages at once, each with descriptors of some kind: every one is answered just once and by its id, nothing is
// started, and afterwards the stage has no more files, children, mounts and directories than before.
func FuzzConversation(f *testing.F) {
	h := newHostile(f)
	state := filepath.Dir(f.TempDir()) // above the stage's own
	f.Add([]byte("0{\"id\":1,\"op\":\"start\",\"body\":{\"pen\":1}}\n1{\"id\":2,\"op\":\"look\",\"body\":{}}\n2{\"id\":2,\"op\":\"launch\",\"body\":{}}"))
	f.Add([]byte("3{\"id\":1,\"op\":\"look\",\"body\":{\"programs\":[\"/usr/bin/true\"],\"path\":[\"/usr/bin\"],\"dir\":\"/tmp\",\"under\":[\"/\"]}}"))
	f.Add([]byte("4{\"id\":9,\"large\":10}\n5{\"id\":9,\"large\":10}\n0{\"id\":18446744073709551615,\"op\":\"reaped\",\"body\":{\"pen\":0}}"))
	f.Add([]byte("0{\"id\":1,\"op\":\"launch\",\"body\":{\"key\":\"x\",\"command\":{}}}\n0{\"id\":1,\"op\":\"launch\",\"body\":" + seedSpec + "}"))
	f.Add([]byte("0{\n0[\n1\x00\n2{\"id\":-1}\n0{\"ID\":1}\n0{\"id\":1,\"id\":2}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		lines := bytes.Split(in, []byte{'\n'})
		if len(lines) > 32 || len(in) > stagewire.MaxInline || bytes.Contains(in, []byte("scratch")) && bytes.Contains(in, []byte(`"uid"`)) {
			return // what is well formed would be made
		}
		defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection would close what was forgotten
		before := tracesNow(t, state)
		want := map[uint64]int{}
		for _, line := range lines {
			if len(line) < 2 {
				continue
			}
			var m stagewire.Message
			if err := stagewire.Unmarshal(line[1:], &m); err != nil {
				m.ID = 0
			}
			h.sendWith(t, line[1:], line[0])
			want[m.ID]++
		}
		h.answers(t, want)
		left := tracesNow(t, state)
		for range 200 { // an answer goes out before its request is tidied up
			if left.files <= before.files && left.children <= before.children && left.mounts <= before.mounts && left.state <= before.state {
				return
			}
			time.Sleep(5 * time.Millisecond)
			left = tracesNow(t, state)
		}
		t.Fatalf("after %q: %+v; want no more than before, %+v", in, left, before)
	})
}

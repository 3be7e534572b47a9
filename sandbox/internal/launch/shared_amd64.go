package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cloneShared starts a child that shares this process's memory and makes the steps
// of the block at that address; negative: an errno.
func cloneShared(block uintptr) (pid int)

// Offsets in a block; they stand in shared_amd64.s too.
const (
	atAll    = 96  // signal mask that blocks everything
	atFailed = 112 // number of the step that failed
	atErrno  = 120 // of it; 0: none failed
	atThread = 128 // 1 until the child has left our memory: CLONE_CHILD_CLEARTID
	atPidfd  = 136
	atByte   = 144 // read from the gate
	atEmpty  = 152 // eight zeros: the empty signal mask, and the empty path
	atCaps   = 160 // header and data of capset(2)
	atSteps  = 192
	stepSize = 64
	anyValue = ^uint64(0)
)

// sharing reports whether runShared may start s. Where the child changes its ids the
// kernel sets our memory to be not dumpable, which it must be already: prctl(2).
func sharing(s Start) bool {
	d, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	return s.Credential == nil || err == nil && d == 0
}

// runShared is ForkExec for an image, without the copy of our memory that ForkExec
// makes for a user namespace, and with the child's way to its exec beside ours:
// clone3(2) with CLONE_VM, CLONE_PIDFD, CLONE_CLEAR_SIGHAND (Linux 5.5) and
// CLONE_INTO_CGROUP (5.7). In a user namespace the child waits until its id maps are
// written, which a child of vfork could not. It shares our memory until its exec; all
// that it reads of it lies in a block of its own.
func runShared(s Start, im int) (pid, pidfd int, err error) {
	gate, err := mapGate(s)
	if err != nil {
		return 0, -1, err
	}
	defer func() { closeAll(gate) }()
	b, err := newBlock(s, im, gate)
	if err != nil {
		return 0, -1, err
	}
	defer b.free()
	s.on(func() {
		syscall.ForkLock.Lock()
		pid = cloneShared(uintptr(b.addr(0)))
		syscall.ForkLock.Unlock()
	})
	if pid < 0 {
		return 0, -1, os.NewSyscallError("clone3", syscall.Errno(-pid))
	}
	pidfd = int(int32(b.load(atPidfd)))
	if gate != nil {
		closeAll(gate[:1])
		err = openGate(pid, s, gate[1])
		gate = gate[1:]
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL) // it is ours and was not waited for
	}
	b.wait()
	if s.Credential != nil {
		err = errors.Join(err, os.NewSyscallError("prctl PR_SET_DUMPABLE", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)))
	}
	if err = errors.Join(err, b.failure()); err != nil {
		_ = unix.Close(pidfd)
		return 0, -1, errors.Join(err, reap(pid))
	}
	return pid, pidfd, nil
}

// mapGate is the pipe, read end first, at which the child waits until its id maps are
// written; nil where it has none.
func mapGate(s Start) ([]int, error) {
	if s.Flags&unix.CLONE_NEWUSER == 0 {
		return nil, nil
	}
	gate := make([]int, 2)
	if err := unix.Pipe2(gate, unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	return gate, nil
}

// openGate writes the id maps and lets the child go on.
func openGate(pid int, s Start, gate int) error {
	if err := writeMaps(pid, s); err != nil {
		return err
	}
	_, err := unix.Write(gate, []byte{1})
	return os.NewSyscallError("write gate", err)
}

func closeAll(fds []int) {
	for _, n := range fds {
		_ = unix.Close(n) // a pipe's end: there is nothing to lose
	}
}

// block is memory that a child reads and writes while it shares ours. It lies
// outside of Go's heap, so that nothing moves or frees it.
type block struct {
	mem   []byte
	used  int
	steps []string // what each does
}

func newBlock(s Start, im int, gate []int) (*block, error) {
	size := atSteps + stepSize*(12+3*len(s.Files)+len(s.Ambient))
	strs := size
	for _, v := range slices.Concat(s.Argv, s.Env) {
		if strings.ContainsRune(v, 0) {
			return nil, fmt.Errorf("cannot pass on a string with a zero byte: %w", syscall.EINVAL)
		}
		size += 8 + len(v) + 1
	}
	mem, err := unix.Mmap(-1, 0, size+16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	b := &block{mem: mem, used: strs}
	b.clone(s)
	a, e := b.list(s.Argv), b.list(s.Env)
	if gate != nil {
		b.gate(gate)
	}
	b.ids(s)
	b.files(s.Files, append(slices.Clone(gate), im))
	b.step("rt_sigprocmask", unix.SYS_RT_SIGPROCMASK, anyValue, unix.SIG_SETMASK, b.addr(atEmpty), 0, 8)
	b.step("execveat", unix.SYS_EXECVEAT, anyValue, uint64(im), b.addr(atEmpty), a, e, unix.AT_EMPTY_PATH)
	return b, nil
}

func (b *block) addr(at int) uint64 { return uint64(uintptr(unsafe.Pointer(&b.mem[at]))) }

func (b *block) store(at int, v uint64) { binary.NativeEndian.PutUint64(b.mem[at:], v) }

func (b *block) load(at int) uint64 { return binary.NativeEndian.Uint64(b.mem[at:]) }

// clone writes the struct clone_args.
func (b *block) clone(s Start) {
	flags := uint64(s.Flags) | unix.CLONE_VM | unix.CLONE_PIDFD | unix.CLONE_CLEAR_SIGHAND | unix.CLONE_CHILD_CLEARTID
	cgroup := uint64(0)
	if s.Cgroup != nil {
		flags |= unix.CLONE_INTO_CGROUP
		cgroup = uint64(s.Cgroup.Fd())
	}
	for i, v := range []uint64{flags, b.addr(atPidfd), b.addr(atThread), 0, uint64(unix.SIGCHLD), 0, 0, 0, 0, 0, cgroup} {
		b.store(8*i, v)
	}
	b.store(atAll, ^uint64(0))
	b.store(atThread, 1)
}

func (b *block) step(name string, nr uintptr, want uint64, args ...uint64) {
	at := atSteps + stepSize*len(b.steps)
	b.store(at, uint64(nr))
	for i, v := range args {
		b.store(at+8+8*i, v)
	}
	b.store(at+56, want)
	b.steps = append(b.steps, name)
}

// list writes strings and the array of their addresses, with its null at the end.
func (b *block) list(all []string) uint64 {
	array := b.used
	b.used += 8 * (len(all) + 1)
	for i, v := range all {
		b.store(array+8*i, b.addr(b.used))
		b.used += copy(b.mem[b.used:], v) + 1
	}
	return b.addr(array)
}

// gate waits for the id maps. The child's own copy of the write end goes first, so
// that our end is the child's end too.
func (b *block) gate(gate []int) {
	b.step("close", unix.SYS_CLOSE, 0, uint64(gate[1]))
	b.step("read id map gate", unix.SYS_READ, 1, uint64(gate[0]), b.addr(atByte), 1)
}

// ids takes the ids and capabilities inside of the user namespace.
func (b *block) ids(s Start) {
	if len(s.Ambient) > 0 {
		b.step("prctl PR_SET_KEEPCAPS", unix.SYS_PRCTL, 0, unix.PR_SET_KEEPCAPS, 1)
	}
	if c := s.Credential; c != nil {
		if s.Groups == GroupsAllowed {
			b.step("setgroups", unix.SYS_SETGROUPS, 0, 0, 0)
		}
		b.step("setgid", unix.SYS_SETGID, 0, uint64(c.Gid))
		b.step("setuid", unix.SYS_SETUID, 0, uint64(c.Uid))
	}
	if len(s.Ambient) == 0 {
		return
	}
	binary.NativeEndian.PutUint32(b.mem[atCaps:], unix.LINUX_CAPABILITY_VERSION_3)
	for _, c := range s.Ambient { // effective, permitted, inheritable; twice
		at := atCaps + 8 + 12*int(c/32)
		for i := range 3 {
			v := binary.NativeEndian.Uint32(b.mem[at+4*i:])
			binary.NativeEndian.PutUint32(b.mem[at+4*i:], v|1<<(c%32))
		}
	}
	b.step("capset", unix.SYS_CAPSET, 0, b.addr(atCaps), b.addr(atCaps+8))
	for _, c := range s.Ambient {
		b.step("prctl PR_CAP_AMBIENT_RAISE", unix.SYS_PRCTL, 0, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uint64(c), 0, 0)
	}
}

// files puts descriptors on their numbers and closes the gaps between them. One that
// lies on the number of another is moved away first.
func (b *block) files(files map[int]int, busy []int) {
	numbers := slices.Sorted(maps.Keys(files))
	busy = append(busy, slices.Collect(maps.Values(files))...)
	next := 0
	if len(numbers) > 0 {
		next = numbers[len(numbers)-1] + 1
	}
	moved := map[int]int{}
	for _, n := range numbers {
		from := files[n]
		if _, taken := files[from]; !taken || files[from] == from || moved[from] != 0 {
			continue
		}
		for slices.Contains(busy, next) {
			next++
		}
		b.step("dup3", unix.SYS_DUP3, anyValue, uint64(from), uint64(next), unix.O_CLOEXEC)
		moved[from] = next
		next++
	}
	for _, n := range numbers {
		from := files[n]
		if to, ok := moved[from]; ok {
			from = to
		}
		if from == n {
			b.step("fcntl F_SETFD", unix.SYS_FCNTL, 0, uint64(n), unix.F_SETFD, 0)
		} else {
			b.step("dup3", unix.SYS_DUP3, uint64(n), uint64(from), uint64(n), 0)
		}
	}
	gap := 0
	for _, n := range numbers {
		if gap < n {
			b.step("close_range", unix.SYS_CLOSE_RANGE, 0, uint64(gap), uint64(n-1), 0)
		}
		gap = n + 1
	}
}

// wait returns once the child has left our memory, by its exec or its end: the
// kernel then clears a word and wakes who waits for it, set_tid_address(2).
func (b *block) wait() {
	word := (*uint32)(unsafe.Pointer(&b.mem[atThread]))
	for atomic.LoadUint32(word) != 0 {
		// EAGAIN, EINTR: the word tells.
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), 0 /* FUTEX_WAIT */, 1, 0, 0, 0)
	}
}

// failure is the step that failed, or nil.
func (b *block) failure() error {
	e := b.load(atErrno)
	if e == 0 {
		return nil
	}
	name := "step"
	if n := b.load(atFailed); n < uint64(len(b.steps)) {
		name = b.steps[n]
	}
	return os.NewSyscallError(name, syscall.Errno(e))
}

// free wipes the block, which may hold secrets, and gives it back.
func (b *block) free() {
	clear(b.mem)
	_ = unix.Munmap(b.mem) // it is a mapping of ours: munmap(2) has no other error
}

// writeMaps writes the id maps of a user namespace: user_namespaces(7).
func writeMaps(pid int, s Start) error {
	if err := writeProc(pid, "uid_map", mapText(s.UIDMaps)); err != nil {
		return err
	}
	answer := "deny"
	if s.Groups == GroupsAllowed {
		answer = "allow"
	}
	if err := writeProc(pid, "setgroups", answer); err != nil {
		return err
	}
	return writeProc(pid, "gid_map", mapText(s.GIDMaps))
}

func mapText(all []syscall.SysProcIDMap) string {
	var t strings.Builder
	for _, m := range all {
		fmt.Fprintf(&t, "%d %d %d\n", m.ContainerID, m.HostID, m.Size)
	}
	return t.String()
}

func writeProc(pid int, name, text string) error {
	if text == "" {
		return nil
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/%s", pid, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// reap takes the status of a child that has failed.
func reap(pid int) error {
	for {
		_, err := unix.Wait4(pid, nil, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("wait4", err)
		}
	}
}

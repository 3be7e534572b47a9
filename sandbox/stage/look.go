package stage

import (
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
)

// Limits of a look.
const (
	maxLookNames = 256     // programs, directories of Path, and entries of Under: each
	maxInterp    = 4096    // bytes of an ELF loader's name
	maxProbes    = 16384   // files tried for bare names
	headSize     = 4 << 10 // bytes read to tell what a file is
)

// look finds what r names with peer's rights. The directory, where there is one,
// comes back as an O_PATH descriptor. Files are opened with peer's rights and
// told apart afterwards with our own, through the very same descriptors.
func (h *heads) look(r sandbox.LookRequest, peer linux.Peer) (sandbox.Looked, *os.File, error) {
	n := len(r.Programs)
	if n > maxLookNames || len(r.Path) > maxLookNames || len(r.Under) > maxLookNames || n*len(r.Path) > maxProbes {
		return sandbox.Looked{}, nil, refused("cannot look at %d programs in %d directories and %d entries: more than %d of one, or more than %d in all",
			n, len(r.Path), len(r.Under), maxLookNames, maxProbes)
	}
	var l sandbox.Looked
	var dir *os.File
	programs := make([]*os.File, n)
	defer func() { linux.CloseAll(programs...) }()
	err := linux.AsPeer(peer, func() error {
		for i, name := range r.Programs {
			f, fact := lookProgram(name, r.Path)
			programs[i] = f
			l.Programs = append(l.Programs, fact)
		}
		if r.Dir != "" {
			dir, l.Dir = lookDir(r.Dir)
		}
		for _, u := range r.Under {
			f, fact := lookDir(u)
			linux.CloseAll(f)
			l.Under = append(l.Under, fact)
		}
		return nil
	})
	if err != nil {
		linux.CloseAll(dir)
		return sandbox.Looked{}, nil, err
	}
	for i, f := range programs {
		if f != nil {
			h.classify(f, &l.Programs[i])
		}
	}
	if err := linux.AsPeer(peer, func() error { lookInterps(l.Programs); return nil }); err != nil {
		linux.CloseAll(dir)
		return sandbox.Looked{}, nil, err
	}
	return l, dir, nil
}

// lookInterps puts into each fact whether its interpreter or ELF loader can be
// executed. Where one is not named from the root nobody can tell before the exec.
func lookInterps(facts []sandbox.Fact) {
	known := map[string]string{}
	for i := range facts {
		f := &facts[i]
		if f.Err != "" || !path.IsAbs(f.Interp) {
			continue
		}
		e, ok := known[f.Interp]
		if !ok {
			e = lookInterp(f.Interp)
			known[f.Interp] = e
		}
		f.Err = e
	}
}

// lookInterp returns the name of the errno that execve(2) would give, or "".
func lookInterp(name string) string {
	f, err := linux.OpenAt(nil, name, unix.O_PATH, linux.Plain)
	if err != nil {
		return linux.ErrnoName(err)
	}
	defer linux.CloseAll(f)
	st, err := linux.Stat(f)
	if err != nil {
		return linux.ErrnoName(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !linux.CanExec(f) {
		return "EACCES"
	}
	return ""
}

// lookProgram opens an absolute name, or the first executable file of that bare
// name in the directories, as execvp(3) would: a file that may not be executed is
// told only when there is no better one.
func lookProgram(name string, dirs []string) (*os.File, sandbox.Fact) {
	if path.IsAbs(name) {
		f, fact := lookAt(name)
		fact.Name = name
		return f, fact
	}
	none := sandbox.Fact{Name: name, Err: "ENOENT"}
	if name == "" || strings.ContainsAny(name, "/\x00") {
		none.Err = "EINVAL"
		return nil, none
	}
	for _, d := range dirs {
		if !path.IsAbs(d) {
			continue
		}
		f, fact := lookAt(path.Join(d, name))
		fact.Name = name
		if f != nil && fact.Executable {
			return f, fact
		}
		linux.CloseAll(f)
		if f != nil || fact.Err == "EACCES" {
			none.Err = "EACCES"
		}
	}
	return nil, none
}

func lookDir(name string) (*os.File, sandbox.Fact) {
	if !path.IsAbs(name) {
		return nil, sandbox.Fact{Name: name, Err: "EINVAL"}
	}
	f, fact := lookAt(name)
	fact.Name = name
	if f != nil && fact.Kind != sandbox.KindDir {
		linux.CloseAll(f)
		return nil, sandbox.Fact{Name: name, Path: fact.Path, Err: "ENOTDIR"}
	}
	return f, fact
}

// lookAt opens name without opening what it is: nothing is read or woken by it.
// The resolved path is opened again without symlinks and must be the same file.
func lookAt(name string) (*os.File, sandbox.Fact) {
	f, err := linux.OpenAt(nil, name, unix.O_PATH, linux.Plain)
	if err != nil {
		return nil, sandbox.Fact{Err: linux.ErrnoName(err)}
	}
	fact, err := factOf(f)
	if err != nil {
		linux.CloseAll(f)
		return nil, sandbox.Fact{Err: linux.ErrnoName(err)}
	}
	return f, fact
}

func factOf(f *os.File) (sandbox.Fact, error) {
	p, err := linux.PathOf(f)
	if err != nil {
		return sandbox.Fact{}, err
	}
	if !path.IsAbs(p) || !utf8.ValidString(p) {
		return sandbox.Fact{}, unix.EILSEQ
	}
	again, err := linux.OpenAt(nil, p, unix.O_PATH|unix.O_NOFOLLOW, linux.Strict)
	if err != nil {
		return sandbox.Fact{}, err
	}
	defer linux.CloseAll(again)
	st, err := linux.Stat(f)
	if err != nil {
		return sandbox.Fact{}, err
	}
	st2, err := linux.Stat(again)
	if err != nil {
		return sandbox.Fact{}, err
	}
	if idOf(st) != idOf(st2) {
		return sandbox.Fact{}, unix.ESTALE
	}
	fact := sandbox.Fact{
		Path: p, ID: idOf(st), UID: st.Uid, GID: st.Gid, Mode: st.Mode, Size: st.Size,
		MtimeNs: unix.TimespecToNsec(st.Mtim), CtimeNs: unix.TimespecToNsec(st.Ctim),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		fact.Kind = sandbox.KindDir
	case unix.S_IFREG:
		fact.Kind = sandbox.KindFile
		fact.Executable = linux.CanExec(f)
	default:
		fact.Kind = sandbox.KindOther
	}
	return fact, nil
}

func idOf(st unix.Stat_t) sandbox.Identity { return sandbox.Identity{Dev: st.Dev, Ino: st.Ino} }

// heads remembers what executable files are, by everything that changes with their
// content.
type heads struct {
	mu  sync.Mutex
	all map[headKey]head
}

type headKey struct {
	id    sandbox.Identity
	state fileState
}

type head struct {
	kind   sandbox.Kind
	interp string
}

const maxHeads = 1024 // files remembered; beyond it all are forgotten

// classify says what a regular file is that peer may execute (which needs no right to
// read).
func (h *heads) classify(f *os.File, fact *sandbox.Fact) {
	if fact.Kind != sandbox.KindFile || !fact.Executable {
		return
	}
	k := headKey{fact.ID, fileState{fact.Size, fact.MtimeNs, fact.CtimeNs, fact.Mode}}
	h.mu.Lock()
	known, ok := h.all[k]
	h.mu.Unlock()
	if ok {
		fact.Kind, fact.Interp = known.kind, known.interp
		return
	}
	readHead(f, fact)
	if fact.Err != "" || k.state.restless(time.Now()) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil || len(h.all) >= maxHeads {
		h.all = map[headKey]head{}
	}
	h.all[k] = head{fact.Kind, fact.Interp}
}

// readHead reads the head of a file and says what it is.
func readHead(f *os.File, fact *sandbox.Fact) {
	r, err := linux.Reopen(f, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		fact.Err = linux.ErrnoName(err)
		return
	}
	defer linux.CloseAll(r)
	head := make([]byte, headSize)
	n, err := io.ReadFull(io.NewSectionReader(r, 0, headSize), head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		fact.Err = linux.ErrnoName(err)
		return
	}
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte("#!")):
		fact.Kind = sandbox.KindScript
		fact.Interp = scriptInterp(head[2:])
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		fact.Kind = sandbox.KindELF
		fact.Interp = elfInterp(r)
	}
}

// scriptInterp is the first word of a #! line: execve(2).
func scriptInterp(line []byte) string {
	if i := bytes.IndexByte(line, '\n'); i >= 0 {
		line = line[:i]
	}
	w := bytes.Fields(line)
	if len(w) == 0 || !utf8.Valid(w[0]) {
		return ""
	}
	return string(w[0])
}

// elfInterp is the name in PT_INTERP; "" where there is none or it is not well
// formed, and then the kernel refuses to execute it.
func elfInterp(r io.ReaderAt) string {
	f, err := elf.NewFile(r)
	if err != nil {
		return ""
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz == 0 || p.Filesz > maxInterp {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := io.ReadFull(p.Open(), b); err != nil || !utf8.Valid(b) {
			return ""
		}
		return strings.TrimRight(string(b), "\x00")
	}
	return ""
}

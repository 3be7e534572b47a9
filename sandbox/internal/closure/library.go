package closure

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// object is an ELF file as ld.so(8) sees it.
type object struct {
	machine elf.Machine
	class   elf.Class
	interp  string
	needed  []string
	rpath   []string // of DT_RPATH; empty where there is a DT_RUNPATH
	runpath []string
}

// elf adds the loader and the libraries of a program.
func (w *walk) elf(path, file string) error {
	o, err := w.object(file)
	if err != nil {
		return &MissingError{Path: path, What: "program", Err: err}
	}
	if o.interp != "" {
		loader, err := w.add(filepath.Clean(o.interp))
		if err != nil {
			return &MissingError{Path: o.interp, By: path, What: "loader", Err: err}
		}
		w.seen[loader] = true
	}
	return w.libraries(file, o)
}

// libraries adds DT_NEEDED breadth first. A library's own libraries are also
// looked for in the DT_RPATH of what needed it.
func (w *walk) libraries(file string, o object) error {
	type want struct {
		o     object
		by    string
		rpath []string
	}
	queue := []want{{o, file, o.rpath}}
	for len(queue) > 0 {
		now := queue[0]
		queue = queue[1:]
		for _, name := range now.o.needed {
			lib, err := w.library(name, now.by, now.o, now.rpath)
			if err != nil {
				return &MissingError{Path: name, By: now.by, What: "library", Err: err}
			}
			if w.seen[lib] {
				continue
			}
			w.seen[lib] = true
			next, err := w.object(lib)
			if err != nil {
				return &MissingError{Path: lib, By: now.by, What: "library", Err: err}
			}
			queue = append(queue, want{next, lib, slices.Concat(next.rpath, now.rpath)})
		}
	}
	return nil
}

// library finds one library in the order of ld.so(8): DT_RPATH, DT_RUNPATH, the
// cache, the default directories; LD_LIBRARY_PATH does not count. It adds every
// candidate path that leads to the file found.
func (w *walk) library(name, by string, o object, rpath []string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			return "", errors.New("its path is relative to the working directory")
		}
		return w.add(filepath.Clean(name))
	}
	dirs := slices.Concat(rpath, o.runpath)
	if len(o.runpath) > 0 {
		dirs = o.runpath
	}
	var candidates []string
	for _, dir := range dirs {
		dir = strings.NewReplacer("$ORIGIN", filepath.Dir(by), "${ORIGIN}", filepath.Dir(by)).Replace(dir)
		if !filepath.IsAbs(dir) || strings.Contains(dir, "$") {
			continue // relative to the working directory, or of this processor's kind
		}
		candidates = append(candidates, filepath.Join(dir, name))
	}
	cached, err := w.cached(name)
	if err != nil {
		return "", err
	}
	candidates = append(candidates, cached...)
	for _, dir := range defaults(o) {
		candidates = append(candidates, filepath.Join(dir, name))
	}
	for _, c := range candidates {
		if file, ok := w.fits(c, o); ok {
			if _, err := w.add(c); err != nil {
				return "", err
			}
			return file, nil
		}
	}
	return "", fmt.Errorf("%w in the loader's directories", fs.ErrNotExist)
}

// fits reports whether path is a library for the same machine; others are
// passed over, as the loader does.
func (w *walk) fits(path string, o object) (string, bool) {
	file, _, err := w.resolve(path)
	if err != nil {
		return "", false
	}
	got, err := w.object(file)
	return file, err == nil && got.machine == o.machine && got.class == o.class
}

// defaults are the directories that loaders know without a cache: glibc's with
// Debian's multiarch names, and musl's.
func defaults(o object) []string {
	dirs := []string{"/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"}
	triplets := map[elf.Machine]string{elf.EM_X86_64: "x86_64-linux-gnu", elf.EM_AARCH64: "aarch64-linux-gnu", elf.EM_386: "i386-linux-gnu"}
	if t, ok := triplets[o.machine]; ok {
		dirs = slices.Concat([]string{"/lib/" + t, "/usr/lib/" + t}, dirs)
	}
	if o.class == elf.ELFCLASS32 {
		dirs = slices.Concat([]string{"/lib32", "/usr/lib32"}, dirs)
	}
	return dirs
}

func (w *walk) object(file string) (object, error) {
	f, err := elf.Open(filepath.Join(w.root, file))
	if err != nil {
		return object{}, stripPath(err)
	}
	defer func() { _ = f.Close() }() // only read
	o := object{machine: f.Machine, class: f.Class}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz == 0 || p.Filesz > 4096 {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			return object{}, fmt.Errorf("cannot read the loader's name: %w", err)
		}
		o.interp, _, _ = strings.Cut(string(b), "\x00")
	}
	for tag, to := range map[elf.DynTag]*[]string{elf.DT_NEEDED: &o.needed, elf.DT_RPATH: &o.rpath, elf.DT_RUNPATH: &o.runpath} {
		if *to, err = f.DynString(tag); err != nil {
			return object{}, fmt.Errorf("cannot read its dynamic section: %w", err)
		}
	}
	o.rpath, o.runpath = splitDirs(o.rpath), splitDirs(o.runpath)
	if len(o.runpath) > 0 {
		o.rpath = nil // ld.so(8): ignored beside a DT_RUNPATH
	}
	return o, nil
}

func splitDirs(lists []string) []string {
	var out []string
	for _, l := range lists {
		for d := range strings.SplitSeq(l, ":") {
			if d != "" {
				out = append(out, d)
			}
		}
	}
	return out
}

// loaderCache is /etc/ld.so.cache: names of libraries and where they are.
type loaderCache struct {
	paths map[string][]string
}

// cached returns where the loader's cache says that a library is, in order. A
// host without a cache (musl) has none.
func (w *walk) cached(name string) ([]string, error) {
	if w.cache == nil {
		b, err := os.ReadFile(filepath.Join(w.root, "/etc/ld.so.cache"))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			w.cache = &loaderCache{}
		case err != nil:
			return nil, err
		default:
			c, err := parseCache(b)
			if err != nil {
				return nil, fmt.Errorf("cannot read /etc/ld.so.cache: %w", err)
			}
			w.cache = c
		}
	}
	return w.cache.paths[name], nil
}

// Layout of the new cache format of glibc: a header of 48 bytes, entries of 24,
// strings; offsets of strings count from the header. ldconfig(8); the old format
// of libc5 may stand before it.
const (
	cacheMagic  = "glibc-ld.so.cache1.1"
	cacheHeader = 48
	cacheEntry  = 24
	maxCache    = 1 << 16 // entries
)

func parseCache(b []byte) (*loaderCache, error) {
	at := strings.Index(string(b), cacheMagic)
	if at < 0 {
		return nil, errors.New("its format is not glibc's")
	}
	b = b[at:]
	if len(b) < cacheHeader {
		return nil, errors.New("it is cut short")
	}
	order := binary.ByteOrder(binary.LittleEndian)
	if b[28] == 3 { // flags: the low two bits say big endian
		order = binary.BigEndian
	}
	n := order.Uint32(b[20:])
	if n > maxCache || len(b) < cacheHeader+int(n)*cacheEntry {
		return nil, fmt.Errorf("it says that it has %d entries", n)
	}
	c := &loaderCache{paths: make(map[string][]string, n)}
	for i := range int(n) {
		e := b[cacheHeader+i*cacheEntry:]
		key, ok := cString(b, order.Uint32(e[4:]))
		value, ok2 := cString(b, order.Uint32(e[8:]))
		if !ok || !ok2 || !filepath.IsAbs(value) {
			return nil, fmt.Errorf("entry %d is damaged", i)
		}
		c.paths[key] = append(c.paths[key], filepath.Clean(value))
	}
	return c, nil
}

func cString(b []byte, off uint32) (string, bool) {
	if int64(off) >= int64(len(b)) {
		return "", false
	}
	s, _, ok := strings.Cut(string(b[off:min(len(b), int(off)+4096)]), "\x00")
	return s, ok
}

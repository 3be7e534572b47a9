package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"pinfold/policy"
)

// lookAt finds out about files as the present user sees them, for a plan that is
// only shown. What is started is looked at by the launcher, with the caller's
// rights and by descriptors.
func lookAt(want policy.Candidates) policy.Facts {
	facts := policy.Facts{Dir: policy.Fact{Name: want.Dir}}
	for _, name := range want.Programs {
		facts.Programs = append(facts.Programs, lookProgram(name, want.Path))
	}
	if want.Dir != "" {
		facts.Dir = lookFile(want.Dir, want.Dir)
	}
	for _, name := range want.Under {
		facts.Under = append(facts.Under, lookFile(name, name))
	}
	return facts
}

func lookProgram(name string, path []string) policy.Fact {
	if strings.Contains(name, "/") {
		return lookFile(name, name)
	}
	for _, dir := range path {
		if f := lookFile(name, filepath.Join(dir, name)); f.Kind != policy.KindNone && f.Kind != policy.KindDir {
			return f
		}
	}
	return policy.Fact{Name: name, Err: "ENOENT"}
}

func lookFile(name, path string) policy.Fact {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return policy.Fact{Name: name, Err: errnoName(err)}
	}
	info, err := os.Stat(target)
	if err != nil {
		return policy.Fact{Name: name, Err: errnoName(err)}
	}
	f := policy.Fact{Name: name, Path: target, Size: info.Size(), Executable: info.Mode()&0o111 != 0}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.ID = policy.Identity{Dev: st.Dev, Ino: st.Ino}
		f.UID, f.GID, f.Mode = st.Uid, st.Gid, st.Mode
		f.MtimeNs, f.CtimeNs = st.Mtim.Nano(), st.Ctim.Nano()
	}
	f.Kind = kindOf(target, info)
	return f
}

func kindOf(path string, info fs.FileInfo) policy.Kind {
	switch {
	case info.IsDir():
		return policy.KindDir
	case !info.Mode().IsRegular():
		return policy.KindOther
	}
	f, err := os.Open(path)
	if err != nil {
		return policy.KindFile // it is there, and that is all that can be said
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 4)
	n, err := io.ReadFull(f, head)
	switch {
	case err == nil && bytes.Equal(head, []byte("\x7fELF")):
		return policy.KindELF
	case n >= 2 && bytes.HasPrefix(head, []byte("#!")):
		return policy.KindScript
	}
	return policy.KindFile
}

func errnoName(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "ENOENT"
	case errors.Is(err, fs.ErrPermission):
		return "EACCES"
	case errors.Is(err, syscall.ELOOP):
		return "ELOOP"
	case errors.Is(err, syscall.ENOTDIR):
		return "ENOTDIR"
	}
	return "EIO"
}

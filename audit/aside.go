package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tornMark ends torn bytes where they cannot be cut off. Whatever stands before it on its line, the line is no record.
const tornMark = "#torn\n"

// cut takes back the last n bytes, which are a part of a line. Where it cannot, they are to be set aside.
func (l *Log) cut(n int64) {
	end, err := l.file.Seek(0, io.SeekEnd)
	if err == nil {
		err = l.file.Truncate(end - n)
	}
	if err == nil {
		return
	}
	l.gap.err = errors.Join(l.gap.err, err)
	if !l.gap.torn {
		l.gap.torn, l.gap.Offset = true, end-n
	}
}

// findTorn notes what an earlier run left torn: at the end of the file, or set aside and not told yet.
func (l *Log) findTorn(size, torn int64) error {
	if torn > 0 {
		l.gap = &gap{Gap: Gap{Reason: "torn", Offset: size - torn}, torn: true, err: errors.New("torn")}
		return nil
	}
	path := l.tornNow()
	sum, n, err := sumFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("cannot read what was set aside of the audit file: %w", err)
	}
	l.gap = &gap{Gap: Gap{Reason: "torn", Offset: size, Bytes: n, SHA256: sum, File: filepath.Base(path)}, err: errors.New("torn")}
	return nil
}

// tornNow is where torn bytes go that the next gap tells of.
func (l *Log) tornNow() string {
	seq := l.head.Seq + 1
	if l.fresh {
		seq++ // the continued record comes first
	}
	return tornPath(l.path, seq)
}

// setAside moves the torn end of the file into a file of its own: first the copy, then the cut, then the gap that tells of it. A run that ends in between
// leaves what the next one finds. An inode that is append-only cannot be cut: there the bytes stay, and are ended with a mark.
func (l *Log) setAside() error {
	g := l.gap
	end, err := l.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	path := l.tornNow()
	if err := keep(path, io.NewSectionReader(l.file, g.Offset, end-g.Offset)); err != nil {
		return fmt.Errorf("cannot set aside the torn end of the audit file: %w", err)
	}
	err = l.file.Truncate(g.Offset)
	if errors.Is(err, unix.EPERM) {
		return errors.Join(l.mark(), os.Remove(path))
	}
	if err != nil {
		return err
	}
	g.SHA256, g.Bytes, err = sumFile(path)
	if err != nil {
		return err
	}
	g.torn, g.File = false, filepath.Base(path)
	return nil
}

// mark ends the torn bytes where they are.
func (l *Log) mark() error {
	if n, err := l.writeOnce([]byte(tornMark)); err != nil || n < len(tornMark) {
		return errors.Join(err, unix.ENOSPC)
	}
	end, err := l.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	g := l.gap
	g.SHA256, g.Bytes, err = sumReader(io.NewSectionReader(l.file, g.Offset, end-g.Offset))
	g.torn = err != nil
	return err
}

// keep adds bytes to a file and forces them to the disk. Those that an earlier run has put at its end already are not added once more.
func keep(path string, r *io.SectionReader) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if there, err := endsWith(f, size, r); err != nil || there {
		return err
	}
	if _, err := io.Copy(f, io.NewSectionReader(r, 0, r.Size())); err != nil {
		return errors.Join(err, f.Truncate(size))
	}
	return errors.Join(f.Sync(), syncDir(filepath.Dir(path)))
}

// endsWith says whether the first size bytes of f end with r.
func endsWith(f io.ReaderAt, size int64, r *io.SectionReader) (bool, error) {
	if size < r.Size() {
		return false, nil
	}
	have, want := make([]byte, tailStep), make([]byte, tailStep)
	for at := int64(0); at < r.Size(); at += tailStep {
		n := min(tailStep, r.Size()-at)
		if _, err := f.ReadAt(have[:n], size-r.Size()+at); err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		if _, err := r.ReadAt(want[:n], at); err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		if !bytes.Equal(have[:n], want[:n]) {
			return false, nil
		}
	}
	return true, nil
}

// syncDir forces the names in a directory to the disk.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

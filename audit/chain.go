package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Genesis is the prev of the very first record.
const Genesis = "0000000000000000000000000000000000000000000000000000000000000000"

// Head is the end of a chain. A collector that keeps it can say later that nothing up to it was changed or cut off.
type Head struct {
	Seq    uint64
	SHA256 string // of the last record's line, with its newline
}

// String is the head as one word.
func (h Head) String() string { return strconv.FormatUint(h.Seq, 10) + ":" + h.SHA256 }

// next is the head after a line, newline and all.
func (h Head) next(line []byte) Head { return Head{Seq: h.Seq + 1, SHA256: sumOf(line)} }

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// sumFile is the hash of what is in a file, and how much that is.
func sumFile(path string) (string, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = f.Close() }() // only read
	return sumReader(f)
}

func sumReader(r io.Reader) (string, int64, error) {
	sum := sha256.New()
	n, err := io.Copy(sum, r)
	return hex.EncodeToString(sum.Sum(nil)), n, err
}

// Dir is the directory of what belongs to an audit file: files that were closed, and torn ends.
func Dir(path string) string { return path + ".d" }

// closedPath is where the file goes whose first record has this number.
func closedPath(path string, first uint64) string {
	return filepath.Join(Dir(path), filepath.Base(path)+"."+strconv.FormatUint(first, 10))
}

// tornPath is where the bytes go that the gap record of this number tells of.
func tornPath(path string, seq uint64) string {
	return filepath.Join(Dir(path), filepath.Base(path)+".torn-"+strconv.FormatUint(seq, 10))
}

// Files are the files of a log in order: those that were closed, then path itself.
func Files(path string) ([]string, error) {
	firsts, err := closedFirsts(path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, n := range firsts {
		out = append(out, closedPath(path, n))
	}
	return append(out, path), nil
}

// closedFirsts are the numbers of the first records of the files that were closed.
func closedFirsts(path string) ([]uint64, error) {
	entries, err := os.ReadDir(Dir(path))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot list the closed audit files: %w", err)
	}
	var out []uint64
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+".")
		if n, err := strconv.ParseUint(text, 10, 64); ok && err == nil && strconv.FormatUint(n, 10) == text {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

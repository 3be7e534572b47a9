package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	maxProblems = 100                    // that a Report names; further ones are counted
	wholeTries  = 10                     // looks at a file in the middle of a write
	wholeWait   = 100 * time.Millisecond // between two of them
)

// Problem is a place where the chain does not hold.
type Problem struct {
	File string
	Line int // from 1
	Text string
}

// String names the place first.
func (p Problem) String() string { return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text) }

// Report is what Verify found.
type Report struct {
	Files, Records, Gaps int
	Lost, TornBytes      int64  // that the gaps tell of
	From                 string // hash of the line before the first record: Genesis, or of a file that is not here
	FromSeq              uint64 // of the first record
	Head                 Head
	Held                 bool // the head that was asked for is in the chain
	Problems             []Problem
	More                 int      // problems beyond maxProblems
	Absent               []string // files with torn bytes that gaps name and that are not here
}

// Verify goes through all files of a log in order and reports each place where the chain does not hold: a line that was changed, taken out, put in or moved.
// That its end was cut off shows only against a head that was kept elsewhere: want, if it is not zero, must be in the chain. An error is a file that cannot be read.
func Verify(path string, want Head) (Report, error) {
	for try := 1; ; try++ {
		before, err := Files(path)
		if err != nil {
			return Report{}, err
		}
		c := checker{want: want, r: Report{Held: want == Head{} || want == Head{SHA256: Genesis}}}
		size := int64(-1)
		for i, name := range before {
			if size, err = c.file(name, i == len(before)-1); err != nil {
				return c.r, err
			}
		}
		info, err := os.Stat(path)
		if err != nil {
			return c.r, err
		}
		after, err := Files(path)
		if err != nil {
			return c.r, err
		}
		if try == wholeTries || slices.Equal(before, after) && info.Size() >= size { // else it was closed meanwhile
			return c.r, nil
		}
	}
}

// checker follows a chain.
type checker struct {
	want   Head
	r      Report
	name   string
	before string // base name of the file before
	head   Head   // of the record before; its SHA256 is empty before the first
	kind   Kind   // of the record before
	first  uint64 // seq of the first record of this file
	count  uint64 // its records
	bad    region // lines before the next record that are none
	lost   bool   // bad lines were reported: the next record follows nobody knows what
}

// region is a run of lines that are no records.
type region struct {
	line, lines int
	from, to    int64
	sum         hash.Hash // nil: not all of it was read
	why         error
}

// file checks one file; it returns how many bytes of it.
func (c *checker) file(name string, last bool) (size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, fmt.Errorf("cannot verify the audit file: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	size = int64(1<<63 - 1)
	if last {
		if size, err = whole(f); err != nil {
			return 0, err
		}
	}
	c.r.Files++
	c.name, c.first, c.count = name, 0, 0
	for l, err := range lines(io.NewSectionReader(f, 0, size)) {
		if err != nil {
			return size, fmt.Errorf("cannot verify the audit file %s: %w", name, err)
		}
		c.line(l)
	}
	c.flush()
	if !last && c.kind != KindSealed {
		c.problem(max(1, int(c.count)), "the file ends without a sealed record: its end was cut off")
	}
	c.before = filepath.Base(name)
	return size, nil
}

// whole is the size of a file up to which it is not being written: a record that is written just now is waited for.
func whole(f *os.File) (int64, error) {
	for try := 1; ; try++ {
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		torn, err := tornAfter(f, info.Size())
		if err != nil || torn == 0 || try == wholeTries || time.Since(info.ModTime()) > wholeTries*wholeWait {
			return info.Size(), err
		}
		<-time.After(wholeWait)
	}
}

func (c *checker) problem(line int, format string, args ...any) {
	if len(c.r.Problems) == maxProblems {
		c.r.More++
		return
	}
	c.r.Problems = append(c.r.Problems, Problem{File: c.name, Line: line, Text: fmt.Sprintf(format, args...)})
}

func (c *checker) line(l line) {
	if l.bad != nil {
		c.bad.add(l)
		return
	}
	event, err := l.rec.Event()
	if g, ok := event.(*Gap); ok && g.File == "" && g.Bytes > 0 {
		if c.bad.told(g) {
			c.bad = region{}
		} else {
			c.problem(l.rec.Line, "the gap tells of %d torn bytes before it that are not there", g.Bytes)
		}
	}
	c.flush()
	if c.head.SHA256 == "" {
		c.begin(l.rec)
	} else {
		c.follows(l.rec)
	}
	c.lost = false
	if err != nil {
		c.problem(l.rec.Line, "%v", errors.Unwrap(err))
	}
	if c.count == 0 {
		c.first = l.rec.Seq
	}
	c.event(l.rec, event)
	c.count++
	c.r.Records++
	c.head, c.kind = Head{Seq: l.rec.Seq, SHA256: sumOf(append(slices.Clip(l.raw), '\n'))}, l.rec.Kind
	c.r.Head = c.head
	c.r.Held = c.r.Held || c.want.SHA256 == c.head.SHA256 && (c.want.Seq == 0 || c.want.Seq == c.head.Seq)
}

// begin looks at the first record of all.
func (c *checker) begin(r Record) {
	c.r.From, c.r.FromSeq = r.Prev, r.Seq
	switch {
	case r.Prev == Genesis && r.Seq == 1:
	case r.Prev == "":
		c.problem(r.Line, "the record has no prev: it was written without a chain, or changed")
	case r.Kind != KindContinued:
		c.problem(r.Line, "the chain begins with record %d, in the middle of a file: what was before was taken out", r.Seq)
	}
}

// follows looks at how a record is chained to the one before.
func (c *checker) follows(r Record) {
	switch {
	case r.Prev == "":
		c.problem(r.Line, "the record has no prev: it was written without a chain, or changed")
	case c.lost: // reported at the bad line
	case r.Prev != c.head.SHA256 && r.Seq != c.head.Seq+1:
		c.problem(r.Line, "record %d comes after record %d: lines were taken out, put in or moved", r.Seq, c.head.Seq)
	case r.Prev != c.head.SHA256:
		c.problem(r.Line, "prev is not the hash of the record before, %d: that was changed, or put in place of another", c.head.Seq)
	case r.Seq != c.head.Seq+1:
		c.problem(r.Line, "record %d comes after record %d", r.Seq, c.head.Seq)
	}
	if (c.kind == KindSealed) != (r.Kind == KindContinued) {
		c.problem(r.Line, "%s comes after %s: a sealed record is followed by a continued one, and no other is", r.Kind, c.kind)
	}
}

// event looks at what the log says of itself.
func (c *checker) event(r Record, event Event) {
	switch e := event.(type) {
	case *Gap:
		c.r.Gaps++
		c.r.Lost += e.Lost
		c.r.TornBytes += e.Bytes
		c.torn(r, e)
	case *Sealed:
		if e.First != c.first || e.Last != c.head.Seq || e.Records != c.count {
			c.problem(r.Line, "the sealed record counts %d records, %d to %d; the file has %d, %d to %d", e.Records, e.First, e.Last, c.count, c.first, c.head.Seq)
		}
	case *Continued:
		if c.count == 0 && c.before != "" && e.File != c.before {
			c.problem(r.Line, "the file goes on after %q, but %s is before it", e.File, c.before)
		}
	}
}

// torn looks at the bytes that a gap says were set aside.
func (c *checker) torn(r Record, g *Gap) {
	if g.File == "" {
		return
	}
	if g.File != filepath.Base(g.File) {
		c.problem(r.Line, "the gap names %q, which is no name of a file", g.File)
		return
	}
	dir := filepath.Dir(c.name)
	for _, name := range []string{filepath.Join(dir, g.File), filepath.Join(Dir(c.name), g.File)} {
		sum, n, err := sumFile(name)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			c.problem(r.Line, "cannot read the torn bytes that the gap tells of: %v", err)
		case sum != g.SHA256 || n != g.Bytes:
			c.problem(r.Line, "%s is not what the gap tells of: it has %d bytes, want %d with hash %s", name, n, g.Bytes, g.SHA256)
		}
		return
	}
	if len(c.r.Absent) < maxProblems {
		c.r.Absent = append(c.r.Absent, g.File)
	}
}

// flush reports bad lines that no gap tells of.
func (c *checker) flush() {
	if c.bad.lines == 0 {
		return
	}
	text := fmt.Sprintf("no record: %v", c.bad.why)
	if c.bad.lines > 1 {
		text = fmt.Sprintf("%d lines are no records; the first: %v", c.bad.lines, c.bad.why)
	}
	c.problem(c.bad.line, "%s", text)
	c.bad, c.lost = region{}, true
}

func (b *region) add(l line) {
	if b.lines == 0 {
		b.line, b.from, b.sum, b.why = l.rec.Line, l.from, sha256.New(), errors.Unwrap(l.bad)
	}
	b.lines++
	b.to = l.to
	if l.raw == nil && l.to-l.from > 1 {
		b.sum = nil
	}
	if b.sum != nil {
		_, _ = b.sum.Write(append(slices.Clip(l.raw), '\n')) // a hash takes everything
	}
}

// told says whether a gap tells of just these lines.
func (b *region) told(g *Gap) bool {
	return b.lines > 0 && b.sum != nil && g.Offset == b.from && g.Bytes == b.to-b.from && g.SHA256 == hex.EncodeToString(b.sum.Sum(nil))
}

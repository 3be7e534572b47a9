package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// marksVersion is the newest form of marks that this code writes and reads.
const marksVersion = 1

// marks is what the spool files do not say by themselves: what an owner has got, and
// which numbers were given. They lie beside the spools and are written whenever a
// daemon that is killed in the next instant would leave the next one in doubt: before
// bytes are dropped, before a gap is told, before numbers beyond Seq are given.
type marks struct {
	Version int           `json:"version"`
	Seq     uint64        `json:"seq"` // no event was given a greater number
	Cut     bool          `json:"cut"` // a stream was stopped before its end
	Streams []streamMarks `json:"streams"`
}

type streamMarks struct {
	Delivered int64    `json:"delivered"`    // the owner's cursor; it may be farther by now
	High      int64    `json:"high"`         // the farthest that the cursor ever was; likewise
	Lost      int64    `json:"lost"`         // bytes below High that were told as a gap
	Gap       *gapMark `json:"gap,omitzero"` // told, but nobody knows whether it has arrived
	Ended     bool     `json:"ended"`
}

// gapMark is a gap event on its way: if its receiver comes back from behind To, it
// has arrived.
type gapMark struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
	Lost int64 `json:"lost"` // bytes of it that count as dropped
}

// marksFile is where an Output keeps its marks. The file has its full length from the
// start, so that a full file system cannot refuse a later write; a write lies within
// one page, so that a kill cannot tear it.
type marksFile struct{ path string }

// marksSize holds any marks: 2 streams with 7 numbers of at most 20 digits each.
const marksSize = 1024

func marksIn(dir string) marksFile { return marksFile{filepath.Join(dir, "marks")} }

// read returns the marks that an earlier daemon has left; os.ErrNotExist: none has.
func (f marksFile) read() (marks, error) {
	var m marks
	b, err := os.ReadFile(f.path)
	if err == nil && len(b) == 0 { // its maker was killed before it took a byte
		err = os.ErrNotExist
	}
	if err != nil {
		return m, fmt.Errorf("cannot read marks: %w", err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("cannot read marks %q: %w", f.path, err)
	}
	if m.Version > marksVersion {
		return m, fmt.Errorf("cannot read marks %q: they are of version %d and this program knows up to %d; start the newer one", f.path, m.Version, marksVersion)
	}
	for _, s := range m.Streams {
		if min(s.Delivered, s.High, s.Lost) < 0 {
			return m, fmt.Errorf("cannot use marks %q: a negative offset", f.path)
		}
	}
	return m, nil
}

func (f marksFile) write(m marks, flags int) error {
	m.Version = marksVersion
	b, err := json.Marshal(m)
	if err != nil || len(b) >= marksSize {
		return errors.Join(fmt.Errorf("cannot write marks: %d bytes", len(b)), err)
	}
	page := make([]byte, marksSize)
	for i := copy(page, b); i < marksSize-1; i++ {
		page[i] = ' '
	}
	page[marksSize-1] = '\n'
	if err := f.put(page, flags); err != nil {
		return fmt.Errorf("cannot write marks %q: %w", f.path, err)
	}
	return nil
}

// put writes the whole file.
func (f marksFile) put(page []byte, flags int) error {
	file, err := openRegular(f.path, unix.O_WRONLY|flags)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(page, 0)
	return errors.Join(err, file.Close())
}

// remember writes the marks as they are now.
func (o *Output) remember() error {
	o.marking.Lock()
	defer o.marking.Unlock()
	return o.marks.write(o.snapshot(), 0)
}

func (o *Output) snapshot() marks {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := marks{Seq: o.reserved, Cut: o.cut.Load()}
	for _, s := range o.streams {
		m.Streams = append(m.Streams, streamMarks{
			Delivered: s.delivered.Load(), High: s.high, Lost: s.lost, Gap: s.gap, Ended: s.ended.Load(),
		})
	}
	return m
}

// reserve sees to it that the numbers up to seq are never given again.
func (o *Output) reserve(seq uint64) error {
	o.mu.Lock()
	enough := seq <= o.reserved
	if !enough {
		o.reserved = seq + seqStep
	}
	o.mu.Unlock()
	if enough {
		return nil
	}
	return o.remember()
}

// settle ends a life that is not cut off: the next one goes on with the next number.
func (o *Output) settle() error {
	o.mu.Lock()
	o.reserved = o.seq.Load()
	o.mu.Unlock()
	return o.remember()
}

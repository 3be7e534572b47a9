package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// head is what every record begins with.
type head struct {
	V    int       `json:"v"`
	Seq  uint64    `json:"seq"`
	Prev string    `json:"prev,omitzero"`
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind"`
	Subject
}

// encode joins the head and the marshalled event to the line that comes after at.
func encode(at Head, now time.Time, k Kind, s Subject, body []byte) ([]byte, error) {
	line, err := json.Marshal(head{V: Version, Seq: at.Seq + 1, Prev: at.SHA256, Time: now.UTC(), Kind: k, Subject: s}, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return nil, fmt.Errorf("cannot encode audit event %s: %w", k, err)
	}
	if len(body) > 2 { // not {}
		line = append(line[:len(line)-1], ',')
		line = append(line, body[1:]...)
	}
	return append(line, '\n'), nil
}

// end is what the end of a file shows.
type end struct {
	Head       // of the last good record; its SHA256 is empty where there is none
	kind Kind  // of that record
	torn int64 // bytes after the last newline
}

// tailStep is how much is read at once from the end of a file.
const tailStep = 64 << 10

// maxTail bounds how far back the last good record is looked for; beyond it the sequence begins anew, which a reader sees.
const maxTail = 8 * maxRecord

// findEnd reads backwards until it finds a good record. What does not end in a newline is none, whatever it says.
func findEnd(r io.ReaderAt, size int64) (end, error) {
	var e end
	torn, err := tornAfter(r, size)
	if err != nil {
		return e, err
	}
	e.torn, size = torn, size-torn
	for step := int64(tailStep); ; step *= 2 {
		step = min(step, size, maxTail)
		buf := make([]byte, step)
		if _, err := r.ReadAt(buf, size-step); err != nil && !errors.Is(err, io.EOF) {
			return e, err
		}
		lines := bytes.SplitAfter(buf, []byte{'\n'})
		for i, line := range slices.Backward(lines) {
			if i == 0 && step < size {
				break // may have begun earlier
			}
			if h, err := decodeHead(bytes.TrimSuffix(line, []byte{'\n'})); err == nil {
				e.Head, e.kind = Head{Seq: h.Seq, SHA256: sumOf(line)}, h.Kind
				return e, nil
			}
		}
		if step == size || step == maxTail {
			return e, nil
		}
	}
}

// tornAfter is how many bytes follow the last newline.
func tornAfter(r io.ReaderAt, size int64) (int64, error) {
	buf := make([]byte, tailStep)
	for end := size; end > 0; {
		n := min(end, tailStep)
		if _, err := r.ReadAt(buf[:n], end-n); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			return size - (end - n + int64(i) + 1), nil
		}
		end -= n
	}
	return size, nil
}

// decodeHead reads the head of a line and checks that the whole is one JSON object.
func decodeHead(line []byte) (head, error) {
	var h head
	if len(line) > maxRecord {
		return h, fmt.Errorf("cannot read record: %d bytes, the limit is %d", len(line), maxRecord)
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, err
	}
	switch {
	case h.V < 1:
		return h, fmt.Errorf("cannot read record: version %d", h.V)
	case h.V > Version:
		return h, fmt.Errorf("cannot read record: version %d is newer than %d", h.V, Version)
	case h.Seq == 0 || h.Kind == "" || h.Time.IsZero():
		return h, fmt.Errorf("cannot read record: seq, time or kind is missing")
	}
	return h, nil
}

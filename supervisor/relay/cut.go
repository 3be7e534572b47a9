package relay

import (
	"bytes"
	"unicode/utf8"
)

// hurry says how much of an unfinished line may go.
type hurry int

const (
	patient hurry = iota // none: more may come soon
	quiet                // all but an unfinished character: the stream has been silent
	last                 // all: nothing will come
)

// nextPiece returns the length of the next piece of b to send, or 0 to wait. b starts
// at a piece's first byte; its first seen bytes hold no newline. A piece is at most
// MaxPiece long, ends behind a newline where there is one, and ends inside a UTF-8
// character only at the end of the stream.
func nextPiece(b []byte, seen int, g Grouping, h hurry) int {
	head := b[:min(len(b), MaxPiece)]
	if g == Batch {
		if i := bytes.LastIndexByte(head[seen:], '\n'); i >= 0 {
			return validLines(head[:seen+i+1])
		}
	} else if i := bytes.IndexByte(head[seen:], '\n'); i >= 0 {
		return seen + i + 1
	}
	switch {
	case len(b) >= MaxPiece:
		return MaxPiece - unfinished(head)
	case h == last:
		return len(b)
	case h == quiet:
		return len(b) - unfinished(b)
	}
	return 0
}

// validLines returns the length of the longest run of whole lines at the start of b
// that is valid UTF-8, or of the first line if that one is not: one bad line does not
// turn its neighbours into base64. b ends with a newline.
func validLines(b []byte) int {
	if utf8.Valid(b) {
		return len(b)
	}
	bad := 0
	for {
		r, n := utf8.DecodeRune(b[bad:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		bad += n
	}
	if i := bytes.LastIndexByte(b[:bad], '\n'); i >= 0 {
		return i + 1
	}
	return bytes.IndexByte(b, '\n') + 1
}

// unfinished returns how many bytes at the end of b are the beginning of a UTF-8
// character whose rest is missing: 0 to 3.
func unfinished(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if tail := b[len(b)-i:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return i
		}
	}
	return 0
}

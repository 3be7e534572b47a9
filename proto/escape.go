package proto

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"
)

// escape is how the bytes that JSON cannot have in a string are written: once,
// or twice where the JSON is itself the content of a JSON string.
type escape struct {
	lead  string // what an escape begins with
	quote string
	slash string
}

// level says how often a text is escaped.
type level int

const (
	once level = iota
	twice
)

func (l level) escape() escape {
	if l == twice {
		return escape{lead: `\\`, quote: `\\\"`, slash: `\\\\`}
	}
	return escape{lead: `\`, quote: `\"`, slash: `\\`}
}

// appendEscaped appends text as the inside of a JSON string. It answers false,
// with dst in an undefined state beyond its old length, if text is not UTF-8.
func appendEscaped(dst, text []byte, l level) ([]byte, bool) {
	stop := uint64(highBits) // until the first byte above ASCII made us look
	for {
		n := plain(text, stop)
		dst = append(dst, text[:n]...)
		text = text[n:]
		if len(text) == 0 {
			return dst, true
		}
		if text[0] >= utf8.RuneSelf {
			if !utf8.Valid(text) {
				return dst, false
			}
			stop = 0
			continue
		}
		dst = appendEscape(dst, text[0], l)
		text = text[1:]
	}
}

// appendEscape appends one byte below 0x20, a quote or a backslash.
func appendEscape(dst []byte, c byte, l level) []byte {
	e := l.escape()
	switch c {
	case '"':
		return append(dst, e.quote...)
	case '\\':
		return append(dst, e.slash...)
	case '\n':
		return append(append(dst, e.lead...), 'n')
	case '\t':
		return append(append(dst, e.lead...), 't')
	case '\r':
		return append(append(dst, e.lead...), 'r')
	}
	const digits = "0123456789abcdef"
	return append(append(dst, e.lead...), 'u', '0', '0', digits[c>>4], digits[c&15])
}

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// plain counts the bytes at the start of text that need no escape; with stop
// highBits it also ends at a byte above ASCII, with 0 it goes over them.
func plain(text []byte, stop uint64) int {
	i := 0
	for ; i+8 <= len(text); i += 8 {
		if m := special(binary.LittleEndian.Uint64(text[i:]), stop); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	if i == len(text) {
		return i
	}
	if len(text) >= 8 { // the last word overlaps bytes that are known to be plain
		i = len(text) - 8
		if m := special(binary.LittleEndian.Uint64(text[i:]), stop); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
		return len(text)
	}
	for ; i < len(text); i++ {
		c := text[i]
		if c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf && stop != 0 {
			return i
		}
	}
	return i
}

// special has the high bit of the first byte of w that is below a space, a
// quote, a backslash or one of stop; bits above that one mean nothing. (The
// subtractions borrow only from bytes above a hit.)
func special(w, stop uint64) uint64 {
	quote := w ^ lowBits*'"'
	slash := w ^ lowBits*'\\'
	return ((w-lowBits*' ')&^w|(quote-lowBits)&^quote|(slash-lowBits)&^slash)&highBits | w&stop
}

// appendQuoted appends s as a JSON string; what is not UTF-8 in it is replaced.
func appendQuoted(dst []byte, s string) []byte {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\ufffd")
	}
	dst = append(dst, '"')
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' {
			dst = appendEscape(dst, c, once)
			continue
		}
		dst = append(dst, s[i])
	}
	return append(dst, '"')
}

// appendFloat appends a number; what JSON has no word for becomes 0.
func appendFloat(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		f = 0
	}
	return strconv.AppendFloat(dst, f, 'f', -1, 64)
}

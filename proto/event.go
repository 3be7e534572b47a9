package proto

import (
	"encoding/base64"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// EventHead holds what all events of one process have in common, laid out once
// so that an event is a few copies. It belongs to one goroutine.
type EventHead struct {
	lead [2]lead // by stream: stdout, stderr
	tail []byte  // from after data to before the value of seq
}

// lead is an event up to the value of data, with two holes: the last 12 digits
// of the id at idAt, the timestamp at tsAt.
type lead struct {
	text       []byte
	idAt, tsAt int
}

const (
	eventIDDigits = 12 // hexadecimal digits of seq in an event's id: 48 bits
	stampDigits   = 17 // 1716123456.789012
)

// NewEventHead prepares the events of one process. reqID is the id of its spawn.
// Ids of events are UUIDs of version 8: random per process, with seq as the last
// 12 digits, so the same event sent twice has the same id.
func NewEventHead(procID, reqID string, now time.Time) *EventHead {
	u := uuid.New()
	u[6] = u[6]&0x0f | 0x80
	prefix := u.String()[:36-eventIDDigits]
	h := &EventHead{}
	for i, s := range []Stream{Stdout, Stderr} {
		l := append([]byte(nil), `{"type":"proc/read/event","id":"`...)
		l = append(l, prefix...)
		idAt := len(l)
		l = append(l, `000000000000","version":"1.0","ts":`...)
		tsAt := len(l)
		l = append(l, `0000000000.000000,"proc_id":`...)
		l = appendQuoted(l, procID)
		l = append(l, `,"stream_type":"`...)
		l = append(l, s...)
		l = append(l, `","data":`...)
		h.lead[i] = lead{text: l, idAt: idAt, tsAt: tsAt}
	}
	h.tail = append(appendQuoted([]byte(`,"req_id":`), reqID), `,"seq":`...)
	h.Stamp(now)
	return h
}

// Stamp sets the ts of the events that follow. Once per batch is enough: reading
// the clock for each event would cost as much as the event.
func (h *EventHead) Stamp(now time.Time) {
	for i := range h.lead {
		putStamp(h.lead[i].text[h.lead[i].tsAt:], now)
	}
}

// putStamp writes ts as 10 digits, a point and 6 digits: the years 2001 to 2286.
func putStamp(dst []byte, now time.Time) {
	const first, last = 1_000_000_000_000_000, 9_999_999_999_999_999
	us := min(max(now.UnixMicro(), first), last)
	for i := stampDigits - 1; i >= 0; i-- {
		if i == 10 {
			dst[i] = '.'
			continue
		}
		dst[i] = byte('0' + us%10)
		us /= 10
	}
}

// AppendReadEvent appends one read/event, newline included. text is at most
// MaxEventText bytes; what is not UTF-8 goes as {"b64":…}. stream is Stdout or
// Stderr. It allocates nothing but what dst grows by: EventSize is always enough.
func AppendReadEvent(dst []byte, h *EventHead, stream Stream, seq uint64, offset int64, text []byte, form DataForm) []byte {
	dst = h.open(dst, stream, seq)
	dst = appendText(dst, text, form)
	dst = append(dst, h.tail...)
	dst = strconv.AppendUint(dst, seq, 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, offset, 10)
	return append(dst, '}', '\n')
}

// EventSize is a capacity that holds any read/event of n bytes of text.
func (h *EventHead) EventSize(n int) int {
	const numbers = 2*20 + len(`,"offset":`) + len(`"{\"text\":\"\"}"`) + 2
	return len(h.lead[0].text) + len(h.tail) + numbers + 7*n + 4
}

// AppendGapEvent appends a read/event that says that the bytes of stream at
// offsets from up to, not including, to were dropped. Its data is {"text":""}, so
// that a plain client sees nothing.
func AppendGapEvent(dst []byte, h *EventHead, stream Stream, seq uint64, from, to int64, form DataForm) []byte {
	dst = h.open(dst, stream, seq)
	dst = appendText(dst, nil, form)
	dst = append(dst, h.tail...)
	dst = strconv.AppendUint(dst, seq, 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, from, 10)
	dst = append(dst, `,"gap":{"from":`...)
	dst = strconv.AppendInt(dst, from, 10)
	dst = append(dst, `,"to":`...)
	dst = strconv.AppendInt(dst, to, 10)
	return append(dst, '}', '}', '\n')
}

// AppendFinalEvent appends the final read/event of a process: the code on stdout
// or stderr, or killed, and the verdict beside it.
func AppendFinalEvent(dst []byte, h *EventHead, seq uint64, v *Verdict, form DataForm) []byte {
	stream := v.Stream()
	dst = h.open(dst, stream, seq)
	if stream == Killed { // the lead of stdout with another stream
		dst = append(dst[:len(dst)-len(`stdout","data":`)], `killed","data":`...)
	}
	dst = appendCode(dst, stream, v.Code, form)
	dst = append(dst, h.tail...)
	dst = strconv.AppendUint(dst, seq, 10)
	dst = append(dst, `,"verdict":`...)
	dst = appendVerdict(dst, v)
	return append(dst, '}', '\n')
}

// open appends the lead of a stream with the id of seq.
func (h *EventHead) open(dst []byte, stream Stream, seq uint64) []byte {
	l := &h.lead[0]
	if stream == Stderr {
		l = &h.lead[1]
	}
	start := len(dst)
	dst = append(dst, l.text...)
	id := dst[start+l.idAt:][:eventIDDigits]
	const digits = "0123456789abcdef"
	for i := eventIDDigits - 1; i >= 0; i-- {
		id[i] = digits[seq&15]
		seq >>= 4
	}
	return dst
}

// appendCode appends the data of a final event.
func appendCode(dst []byte, stream Stream, code int, form DataForm) []byte {
	switch {
	case stream == Killed && form == DataObject:
		return append(dst, `{}`...)
	case stream == Killed:
		return append(dst, `"{}"`...)
	case form == DataObject:
		return append(strconv.AppendInt(append(dst, `{"code":`...), int64(code), 10), '}')
	default:
		return append(strconv.AppendInt(append(dst, `"{\"code\":`...), int64(code), 10), `}"`...)
	}
}

// appendText appends data with text, or with b64 where text is not UTF-8.
func appendText(dst, text []byte, form DataForm) []byte {
	start := len(dst)
	if form == DataObject {
		dst = append(dst, `{"text":"`...)
		if out, ok := appendEscaped(dst, text, once); ok {
			return append(out, `"}`...)
		}
		dst = append(dst[:start], `{"b64":"`...)
		return append(base64.StdEncoding.AppendEncode(dst, text), `"}`...)
	}
	dst = append(dst, `"{\"text\":\"`...)
	if out, ok := appendEscaped(dst, text, twice); ok {
		return append(out, `\"}"`...)
	}
	dst = append(dst[:start], `"{\"b64\":\"`...)
	return append(base64.StdEncoding.AppendEncode(dst, text), `\"}"`...)
}

package proto

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
)

// ErrFrameTooLarge is returned by Append for a message of more than MaxFrame bytes.
var ErrFrameTooLarge = errors.New("frame too large")

// NewID is an id for a message, a session or a process: a random UUID.
func NewID() string { return uuid.NewString() }

// Append appends one message as one line, newline included, after filling in the
// empty fields of its Base. Bytes of a text that are not UTF-8 (a path, say) are
// replaced: output of processes goes through AppendReadEvent, which loses none.
// On an error dst is returned as it was.
func Append(dst []byte, m Message) ([]byte, error) {
	fill(m, time.Now())
	line, err := json.Marshal(m, jsontext.AllowInvalidUTF8(true), json.Deterministic(true))
	if err != nil {
		return dst, fmt.Errorf("cannot encode %s: %w", m.Kind(), err)
	}
	if len(line) > MaxFrame {
		return dst, fmt.Errorf("cannot encode %s of %d bytes, limit %d: %w", m.Kind(), len(line), MaxFrame, ErrFrameTooLarge)
	}
	return append(append(dst, line...), '\n'), nil
}

// fill gives a message its type, and what is missing of the other base fields.
func fill(m Message, now time.Time) {
	b := m.Base()
	b.Type = m.Kind()
	if b.ID == "" {
		b.ID = NewID()
	}
	if b.Version == "" {
		b.Version = Version
	}
	if b.TS == 0 {
		b.TS = TimestampOf(now)
	}
}

// MarshalJSONTo writes the data in its form.
func (d *Data) MarshalJSONTo(enc *jsontext.Encoder) error {
	var b []byte
	switch {
	case d.Code != nil:
		b = appendCode(nil, Stdout, *d.Code, d.Form)
	case d.Text != nil:
		b = appendText(nil, d.Text, d.Form)
	default:
		b = appendCode(nil, Killed, 0, d.Form)
	}
	return enc.WriteValue(b)
}

// CommandLine is argv as one string for people, each argument quoted as a shell
// would need it.
func CommandLine(argv []string) string {
	var b strings.Builder
	for i, arg := range argv {
		if i > 0 {
			b.WriteByte(' ')
		}
		if arg != "" && strings.IndexFunc(arg, needsQuote) < 0 {
			b.WriteString(arg)
			continue
		}
		b.WriteByte('\'')
		b.WriteString(strings.ReplaceAll(arg, `'`, `'\''`))
		b.WriteByte('\'')
	}
	return b.String()
}

func needsQuote(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return false
	}
	return !strings.ContainsRune("-_./=:,@%+", r)
}

package proto

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// newRequest is a new, empty request of a type, and the fields that it must
// have; nil for a type that no client sends.
func newRequest(t Type) (Request, field) {
	switch t {
	case TypeHandshakeReq:
		return &Handshake{}, 0
	case TypePing:
		return &Ping{}, 0
	case TypeShutdown:
		return &Shutdown{}, 0
	case TypeSpawnReq:
		return &SpawnReq{}, fieldCmd
	case TypeWriteReq:
		return &WriteReq{}, fieldProcID | fieldData
	case TypeKillReq:
		return &KillReq{}, fieldProcID
	case TypeStatusReq:
		return &StatusReq{}, 0
	case TypeListReq:
		return &ListReq{}, 0
	case TypeWaitReq:
		return &WaitReq{}, fieldProcID
	case TypeStatsReq:
		return &StatsReq{}, fieldProcID
	case TypeExplainReq:
		return &ExplainReq{}, fieldCmd
	case TypeResizeReq:
		return &ResizeReq{}, fieldProcID | fieldRows | fieldCols
	case TypeAttachReq:
		return &AttachReq{}, fieldProcID
	case TypeOpsGetReq:
		return &OpsGetReq{}, fieldOpID
	case TypeCancel:
		return &Cancel{}, fieldReqID
	case TypeHandshakeResp, TypePong, TypeError, TypeSpawnResp, TypeWriteResp, TypeReadEvent, TypeKillResp, TypeStatusResp,
		TypeListResp, TypeWaitResp, TypeStatsResp, TypeExplainResp, TypeResizeResp, TypeOpsGetResp,
		TypeCancelResp, TypeAttachResp:
		return nil, 0
	}
	return nil, 0
}

// field is a set of fields that some request must have.
type field uint

const (
	fieldProcID field = 1 << iota
	fieldData
	fieldCmd
	fieldRows
	fieldCols
	fieldOpID
	fieldReqID
)

func fieldOf(name string) field {
	switch name {
	case "proc_id":
		return fieldProcID
	case "data":
		return fieldData
	case "cmd":
		return fieldCmd
	case "rows":
		return fieldRows
	case "cols":
		return fieldCols
	case "op_id":
		return fieldOpID
	case "req_id":
		return fieldReqID
	}
	return 0
}

// fieldNames are in the order of the bits.
func fieldNames() []string {
	return []string{"proc_id", "data", "cmd", "rows", "cols", "op_id", "req_id"}
}

// Decode reads one line, with or without its newline, strictly: names are
// case-sensitive; a name given twice, invalid UTF-8, a NUL and deep nesting are
// refused; fields have just the type that they should have; unknown fields are
// ignored. The error names in req_id what failed, if the line's id could be read.
//
// A Handshake of another version is returned together with the error, since it
// has an answer of its own (ok false, reason version_mismatch). In every other
// case exactly one of the two is nil.
func Decode(line []byte) (Request, *ErrorMsg) {
	h, f := scan(line)
	if h.id == "" || len(h.id) > MaxID || strings.IndexByte(h.id, 0) >= 0 {
		h.id = "" // nothing that could be echoed
	}
	if f != nil {
		return nil, f.message(h.id)
	}
	req, need := newRequest(h.typ)
	if f = h.checkVersion(); f != nil {
		if hs, ok := req.(*Handshake); ok && f.code == CodeVersionMismatch {
			hs.base = Base{Type: h.typ, ID: h.id, Version: h.version}
			return hs, f.message(h.id)
		}
		return nil, f.message(h.id)
	}
	if req == nil {
		f = &fault{CodeUnknownType, Detail{Given: shorten(string(h.typ))}, "no message of type " + quote(string(h.typ)) + " comes from a client"}
		return nil, f.message(h.id)
	}
	if f = fillRequest(req, line); f == nil {
		if missing := need &^ h.seen; missing != 0 {
			f = missing.fault(h.typ)
		} else {
			f = req.check()
		}
	}
	if f != nil {
		return nil, f.message(h.id)
	}
	req.Base().Version = Version
	return req, nil
}

// TooLarge is the error for a line of more than MaxFrame bytes, which is never
// read as a whole.
func TooLarge() *ErrorMsg { return tooLarge().message("") }

func tooLarge() *fault {
	return &fault{CodeFrameTooLarge, Detail{Limit: MaxFrame}, fmt.Sprintf("a line is at most %d bytes", MaxFrame)}
}

func (f *fault) message(reqID string) *ErrorMsg {
	m := NewError(reqID, f.code, f.text)
	m.Detail = f.detail
	return m
}

func (f field) fault(t Type) *fault {
	for i, name := range fieldNames() {
		if f&(1<<i) != 0 {
			return violation(name, "%s needs %s", t, name)
		}
	}
	return nil
}

// refuseNull is an unmarshaler for everything: null is no value of any field.
func refuseNull(dec *jsontext.Decoder, _ any) error {
	if dec.PeekKind() == 'n' {
		return errNull
	}
	return errors.ErrUnsupported // go on with the usual decoding
}

var errNull = errors.New("null")

// fillRequest decodes a line that scan accepted into a request.
func fillRequest(req Request, line []byte) *fault {
	err := json.Unmarshal(line, req, json.WithUnmarshalers(json.UnmarshalFromFunc(refuseNull)))
	if err == nil {
		return nil
	}
	sem, ok := errors.AsType[*json.SemanticError](err)
	if !ok {
		return &fault{CodeParseError, Detail{}, "cannot read the line: " + plainText(err)}
	}
	name := strings.TrimPrefix(string(sem.JSONPointer), "/")
	want := wanted(sem.GoType)
	switch {
	case errors.Is(err, json.ErrUnknownName):
		return violation(name, "cannot use %s: there is no such field", quote(name))
	case errors.Is(err, errNull):
		return violation(name, "cannot use null for %s: leave it out or give it a value", quote(name))
	case sem.JSONValue != nil && !strings.HasSuffix(name, "token"): // a secret is never repeated
		return violation(name, "cannot use %s for %s: want %s", shorten(string(sem.JSONValue)), quote(name), want)
	default:
		return violation(name, "cannot use %s for %s: want %s", kindName(sem.JSONKind), quote(name), want)
	}
}

// wanted says in words of JSON what a field of type t takes.
func wanted(t reflect.Type) string {
	if t == nil {
		return "another type"
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	words := map[reflect.Kind]string{
		reflect.String:  "a string",
		reflect.Bool:    "true or false",
		reflect.Int64:   "an integer of 64 bits, without fraction or exponent",
		reflect.Uint16:  "an integer from 0 to 65535",
		reflect.Float64: "a number that 64 bits can hold",
		reflect.Slice:   "a list",
	}
	if w, ok := words[t.Kind()]; ok {
		return w
	}
	return "an object"
}

func kindName(k jsontext.Kind) string {
	switch k {
	case jsontext.KindNull:
		return "null"
	case jsontext.KindTrue, jsontext.KindFalse:
		return "true or false"
	case jsontext.KindString:
		return "a string"
	case jsontext.KindNumber:
		return "a number"
	case jsontext.KindBeginObject:
		return "an object"
	case jsontext.KindBeginArray:
		return "a list"
	case jsontext.KindInvalid, jsontext.KindEndObject, jsontext.KindEndArray:
		return "this"
	}
	return "this"
}

// head is what one walk over a line finds.
type head struct {
	typ     Type
	id      string
	version string // of version or a2e; empty: neither
	wrong   string // a version that is not ours
	seen    field
	hasType bool
}

// scan walks once over the whole line: its syntax, its depth, NULs, and the base
// fields. What it found before a fault is returned beside the fault.
func scan(line []byte) (head, *fault) {
	var h head
	switch {
	case len(bytes.TrimSuffix(line, []byte{'\n'})) > MaxFrame:
		return h, tooLarge()
	case bytes.IndexByte(line, 0) >= 0:
		return h, &fault{CodeParseError, Detail{Offset: Size(bytes.IndexByte(line, 0))}, "a line cannot have a NUL byte"}
	}
	w := walk{dec: jsontext.NewDecoder(bytes.NewBuffer(line))}
	err := w.object(&h)
	switch {
	case err != nil && w.fault != nil && w.fault.code == CodeParseError:
		return h, w.fault
	case err != nil && !utf8.Valid(line):
		return h, &fault{CodeParseError, Detail{}, "the line is not UTF-8"}
	case err != nil:
		f := syntaxFault(err, w.dec.InputOffset())
		if errors.Is(err, jsontext.ErrDuplicateName) && f.detail.Field == "id" {
			h.id = "" // which of the two is meant cannot be known
		}
		return h, f
	case w.fault != nil:
		return h, w.fault
	}
	return h, h.check()
}

// check tells what is wrong with the base fields but the version.
func (h *head) check() *fault {
	switch {
	case h.id == "":
		return violation("id", "a message needs an id of 1 to %d bytes", MaxID)
	case len(h.id) > MaxID:
		return violation("id", "cannot use an id of %d bytes: want 1 to %d", len(h.id), MaxID)
	case !h.hasType:
		return violation("type", "a message needs a type")
	}
	return nil
}

func (h *head) checkVersion() *fault {
	switch {
	case h.wrong != "":
		h.version = h.wrong
		return &fault{CodeVersionMismatch, Detail{Field: "version", Given: shorten(h.wrong)}, "cannot speak version " + quote(h.wrong) + ": want " + quote(Version)}
	case h.version == "":
		return violation("version", "a message needs version %s", quote(Version))
	}
	return nil
}

// errNoObject is the one syntax fault that is ours.
var errNoObject = errors.New("the line is no JSON object")

// walk is one pass over a line.
type walk struct {
	dec   *jsontext.Decoder
	fault *fault // the first that does not stop the walk, so that the id is still found
}

func (w *walk) object(h *head) error {
	tok, err := w.dec.ReadToken()
	if err != nil {
		return err
	}
	if tok.Kind() != '{' {
		return errNoObject
	}
	for w.dec.PeekKind() != '}' {
		name, err := w.dec.ReadToken()
		if err != nil {
			return err
		}
		if err := w.member(h, name.String()); err != nil {
			return err
		}
	}
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	if _, err := w.dec.ReadToken(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = errors.New("there is more after the object")
		}
		return err
	}
	return nil
}

// member reads the value of one member of the line's object.
func (w *walk) member(h *head, name string) error {
	h.seen |= fieldOf(name)
	switch name {
	case "data": // the only field that may have NULs, and often long
		if w.dec.PeekKind() == '"' {
			return w.dec.SkipValue()
		}
	case "type", "id", "version", "a2e":
		return w.baseField(h, name)
	}
	if strings.IndexByte(name, 0) >= 0 {
		w.note(violation(shorten(name), "a name cannot have a NUL"))
	}
	return w.value(name)
}

func (w *walk) baseField(h *head, name string) error {
	if k := w.dec.PeekKind(); k != '"' {
		if k > 0 && k != '}' && k != ']' {
			w.note(violation(name, "cannot use %s for %s: want a string", kindName(k), quote(name)))
		}
		return w.value(name)
	}
	tok, err := w.dec.ReadToken()
	if err != nil {
		return err
	}
	s := tok.String()
	w.text(name, s)
	switch name {
	case "type":
		h.typ, h.hasType = Type(s), true
	case "id":
		h.id = s
	case "version", "a2e":
		h.version = s
		if s != Version {
			h.wrong = s
		}
	}
	return nil
}

// value reads one value of any kind, looking at its depth and its strings.
func (w *walk) value(name string) error {
	for {
		tok, err := w.dec.ReadToken()
		if err != nil {
			return err
		}
		switch k := tok.Kind(); {
		case w.dec.StackDepth() > MaxNesting:
			w.note(&fault{CodeParseError, Detail{Field: shorten(name), Limit: MaxNesting, Offset: Size(w.dec.InputOffset())}, "objects and lists are nested too deep"})
		case k == jsontext.KindString:
			w.text(name, tok.String())
		}
		if w.dec.StackDepth() == 1 {
			return nil
		}
	}
}

func (w *walk) text(name, s string) {
	if strings.IndexByte(s, 0) >= 0 {
		w.note(violation(shorten(name), "cannot use %s: it has a NUL", quote(name)))
	}
}

func (w *walk) note(f *fault) {
	if w.fault == nil {
		w.fault = f
	}
}

func syntaxFault(err error, at int64) *fault {
	d := Detail{Offset: Size(at)}
	if syn, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		d = Detail{Offset: Size(syn.ByteOffset), Field: shorten(strings.TrimPrefix(string(syn.JSONPointer), "/"))}
	}
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return &fault{CodeParseError, d, "the name " + quote(d.Field) + " is given twice"}
	case errors.Is(err, io.EOF):
		return &fault{CodeParseError, d, "the line is empty"}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &fault{CodeParseError, d, "the line ends within its JSON"}
	case errors.Is(err, errNoObject):
		return &fault{CodeParseError, d, errNoObject.Error()}
	}
	return &fault{CodeParseError, d, "the line is not JSON: " + plainText(err)}
}

// plainText is the cause of a decoder's error without the decoder's own words
// and without what it quotes of the line, which may be a secret.
func plainText(err error) string {
	if syn, ok := errors.AsType[*jsontext.SyntacticError](err); ok && syn.Err != nil {
		err = syn.Err
	}
	text := err.Error()
	if before, _, quotes := strings.Cut(text, "`"); quotes {
		text = before + "in a string"
	}
	return shorten(strings.TrimPrefix(strings.TrimPrefix(text, "jsontext: "), "json: "))
}

// shorten cuts what a client sent to a length that fits a sentence.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

func quote(s string) string { return strconv.Quote(shorten(s)) }

func join[T ~string](list []T) string {
	words := make([]string, len(list))
	for i, w := range list {
		words[i] = string(w)
	}
	return strings.Join(words, ", ")
}

package proto_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pinfold/proto"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

func eventOf(tb testing.TB, line []byte) *proto.ReadEvent {
	tb.Helper()
	if bytes.Count(line, []byte("\n")) != 1 || line[len(line)-1] != '\n' {
		tb.Fatalf("event = %q; want one line", line)
	}
	m, err := proto.DecodeAnswer(line)
	if err != nil {
		tb.Fatalf("DecodeAnswer(%q) = %v; want an event", line, err)
	}
	e, ok := m.(*proto.ReadEvent)
	if !ok {
		tb.Fatalf("DecodeAnswer(%q) = %T; want an event", line, m)
	}
	return e
}

func forms() []proto.DataForm { return []proto.DataForm{proto.DataString, proto.DataObject} }

// checkText appends text in both forms and reads it back.
func checkText(tb testing.TB, h *proto.EventHead, text []byte) {
	tb.Helper()
	for _, form := range forms() {
		line := proto.AppendReadEvent(nil, h, proto.Stderr, 7, 1234, text, form)
		if len(line) > h.EventSize(len(text)) {
			tb.Errorf("AppendReadEvent(%q, %s) = %d bytes; want at most EventSize %d", text, form, len(line), h.EventSize(len(text)))
		}
		e := eventOf(tb, line)
		if !bytes.Equal(e.Data.Text, text) || e.Data.Form != form || e.Data.Code != nil {
			tb.Errorf("DecodeAnswer(AppendReadEvent(%q, %s)).Data = %+v; want the bytes in this form", text, form, e.Data)
		}
		start := map[proto.DataForm]string{proto.DataString: `"data":"{\"b64\":`, proto.DataObject: `"data":{"b64":`}[form]
		if b64 := bytes.Contains(line, []byte(start)); b64 == utf8.Valid(text) {
			tb.Errorf("AppendReadEvent(%q, %s) = %s; want b64 only for what is not UTF-8", text, form, line)
		}
		if e.Seq != 7 || e.Offset != 1234 || e.StreamType != proto.Stderr || e.Final() {
			tb.Errorf("DecodeAnswer(AppendReadEvent(…)) = %+v; want seq 7, offset 1234, stderr, not final", e)
		}
	}
}

func TestReadEventCarriesEveryByte(t *testing.T) {
	h := proto.NewEventHead("proc-1", "req-1", time.Now())
	for c := range 256 {
		for at := range 18 { // in each place of a word, and around it
			text := bytes.Repeat([]byte("x"), 18)
			text[at] = byte(c)
			checkText(t, h, text)
			checkText(t, h, text[:at+1])
		}
	}
}

func TestReadEventCarriesPairsOfSpecialBytes(t *testing.T) {
	h := proto.NewEventHead("p", "r", time.Now())
	marks := []byte{0, 1, 0x1f, ' ', '!', '"', '#', '[', '\\', ']', 0x7f, 0x80, 0xff}
	for _, a := range marks {
		for _, b := range marks {
			for gap := range 9 {
				checkText(t, h, slicesJoin([]byte{a}, bytes.Repeat([]byte{'y'}, gap), []byte{b}, []byte("tail")))
			}
		}
	}
}

func slicesJoin(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestReadEventCarriesTexts(t *testing.T) {
	h := proto.NewEventHead("p", "r", time.Now())
	for _, text := range []string{
		"", "\n", "hello\n", "ünïcödé — 漢字 🐑\n", "漢", "\xe6\xbc", "\xf0\x9f\x90", "a\xffb", "\ufffd", "\u2028\u2029", "\ufeffx",
		`{"text":"in\\side"}` + "\n", `\\\\""""`, strings.Repeat("\x00", 100), "\x1b[31mred\x1b[0m\r\n\t\b\f", "<script>&amp;", "ascii then \xed\xa0\x80",
		strings.Repeat("a", 79) + "\n", strings.Repeat("é", 1000), "one\ntwo\nthree\n",
	} {
		checkText(t, h, []byte(text))
	}
}

func TestReadEventAsTheSpecHasIt(t *testing.T) {
	h := proto.NewEventHead("proc_abc123", "p1", time.UnixMicro(1716123457150000))
	line := proto.AppendReadEvent(nil, h, proto.Stdout, 1, 0, []byte("hello\n"), proto.DataString)
	got, want := members(t, string(line)), members(t, specRead)
	for _, extra := range []string{"seq", "offset"} {
		if _, ok := got[extra]; !ok {
			t.Errorf("AppendReadEvent(…) = %s; want %s in it", line, extra)
		}
		delete(got, extra)
	}
	want["id"] = got["id"]
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("AppendReadEvent(hello) differs from the spec (-want +got):\n%s", diff)
	}
	object := proto.AppendReadEvent(nil, h, proto.Stdout, 1, 0, []byte("hello\n"), proto.DataObject)
	if !bytes.Contains(object, []byte(`"data":{"text":"hello\n"}`)) {
		t.Errorf("AppendReadEvent(hello, object) = %s; want an object", object)
	}
}

func TestEventsHaveOneUUIDEach(t *testing.T) {
	seen := make(map[string]bool)
	for range 3 {
		h := proto.NewEventHead("p", "r", time.Now())
		for _, seq := range []uint64{1, 2, 255, 256, 1<<48 - 1} {
			e := eventOf(t, proto.AppendReadEvent(nil, h, proto.Stdout, seq, 0, nil, proto.DataString))
			u, err := uuid.Parse(e.ID)
			if err != nil || u.Version() != 8 || u.Variant() != uuid.RFC4122 {
				t.Errorf("event id %q = version %v, %v; want a UUID of version 8", e.ID, u.Version(), err)
			}
			if seen[e.ID] {
				t.Errorf("event id %q came twice; want each once", e.ID)
			}
			seen[e.ID] = true
			if e.Seq != seq {
				t.Errorf("event seq = %d; want %d", e.Seq, seq)
			}
		}
	}
}

func TestStampSetsTheTime(t *testing.T) {
	h := proto.NewEventHead("p", "r", time.Unix(0, 0))
	for _, us := range []int64{1_000_000_000_000_000, 1_716_123_456_789_012, 1_716_123_456_000_001, 9_999_999_999_999_999} {
		h.Stamp(time.UnixMicro(us))
		for _, stream := range []proto.Stream{proto.Stdout, proto.Stderr} {
			line := proto.AppendReadEvent(nil, h, stream, 1, 0, nil, proto.DataString)
			want := fmt.Sprintf(`"ts":%d.%06d,`, us/1e6, us%1e6)
			if !bytes.Contains(line, []byte(want)) {
				t.Errorf("AppendReadEvent(after Stamp %d) = %s; want %s in it", us, line, want)
			}
		}
	}
}

func TestEventHeadQuotesTheClientsID(t *testing.T) {
	req := "a\"b\\c\n\u00e9"
	h := proto.NewEventHead("p", req, time.Now())
	if e := eventOf(t, proto.AppendReadEvent(nil, h, proto.Stdout, 1, 0, []byte("x"), proto.DataString)); e.ReqID != req {
		t.Errorf("event req_id = %q; want %q", e.ReqID, req)
	}
}

func TestGapEvent(t *testing.T) {
	h := proto.NewEventHead("p", "r", time.Now())
	for _, form := range forms() {
		e := eventOf(t, proto.AppendGapEvent(nil, h, proto.Stderr, 9, 100, 250, form))
		want := &proto.Gap{From: 100, To: 250}
		if !cmp.Equal(e.Gap, want) || e.Final() || len(e.Data.Text) != 0 || e.Offset != 100 || e.StreamType != proto.Stderr {
			t.Errorf("AppendGapEvent(100, 250) = %+v; want the range, an empty text, not final", e)
		}
	}
}

func TestFinalEvent(t *testing.T) {
	for _, c := range []struct {
		verdict proto.Verdict
		stream  proto.Stream
		data    string
	}{
		{proto.Verdict{Cause: proto.CauseExited}, proto.Stdout, `{"code":0}`},
		{proto.Verdict{Cause: proto.CauseExited, Code: 3}, proto.Stderr, `{"code":3}`},
		{proto.Verdict{Cause: proto.CauseSignaled, Code: -11, Signal: "SIGSEGV", Core: true}, proto.Stderr, `{"code":-11}`},
		{proto.Verdict{Cause: proto.CauseOOM, Code: -9, Scope: "process"}, proto.Stderr, `{"code":-9}`},
		{proto.Verdict{Cause: proto.CauseKilled}, proto.Killed, `{}`},
		{proto.Verdict{Cause: proto.CauseTimeoutWall, Code: -15}, proto.Killed, `{}`},
		{proto.Verdict{Cause: proto.CauseLost}, proto.Killed, `{}`},
	} {
		h := proto.NewEventHead("p", "r", time.Now())
		for _, form := range forms() {
			line := proto.AppendFinalEvent(nil, h, 5, &c.verdict, form)
			e := eventOf(t, line)
			if !e.Final() || e.StreamType != c.stream || e.Seq != 5 || e.Verdict == nil {
				t.Errorf("AppendFinalEvent(%s %d) = %s; want the final event on %s", c.verdict.Cause, c.verdict.Code, line, c.stream)
			}
			got := members(t, string(line))["data"]
			var want any = c.data
			if form == proto.DataObject {
				want = any(members(t, c.data))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("AppendFinalEvent(%s %d, %s) data differs (-want +got):\n%s", c.verdict.Cause, c.verdict.Code, form, diff)
			}
		}
	}
}

func TestAppendersDoNotAllocate(t *testing.T) {
	h := proto.NewEventHead("p", "r", time.Now())
	buf := make([]byte, 0, 8<<10)
	texts := [][]byte{[]byte("plain\n"), []byte("ünïcode\n"), []byte("\xff\xfe"), []byte(`q"\`)}
	v := fullVerdict()
	now := time.Now()
	n := testing.AllocsPerRun(100, func() {
		h.Stamp(now)
		for _, form := range []proto.DataForm{proto.DataString, proto.DataObject} {
			for _, text := range texts {
				buf = proto.AppendReadEvent(buf[:0], h, proto.Stderr, 1, 2, text, form)
			}
			buf = proto.AppendGapEvent(buf[:0], h, proto.Stdout, 1, 2, 3, form)
			buf = proto.AppendFinalEvent(buf[:0], h, 3, v, form)
		}
	})
	if n != 0 {
		t.Errorf("allocations of the appenders = %v; want 0", n)
	}
}

func TestTheLongestEventFitsAFrame(t *testing.T) {
	h := proto.NewEventHead(strings.Repeat("\x01", proto.MaxID), strings.Repeat("\x01", proto.MaxID), time.Now())
	for _, fill := range []string{"\x01", `"`, "\\", "\xff", "a", "\n"} {
		text := []byte(strings.Repeat(fill, proto.MaxEventText))
		line := proto.AppendReadEvent(nil, h, proto.Stdout, 1<<48-1, 1<<62, text, proto.DataString)
		if len(line) > proto.MaxFrame+1 || len(line) > h.EventSize(len(text)) {
			t.Errorf("AppendReadEvent(%d of %q) = %d bytes; want at most %d and EventSize %d", len(text), fill, len(line), proto.MaxFrame+1, h.EventSize(len(text)))
		}
	}
}

func FuzzReadEvent(f *testing.F) {
	for _, s := range []string{"", "hello\n", "\xff", "a\"b\\c\n", "漢字\x00", "\xe6\xbc", "12345678\"", "1234567\xe9"} {
		f.Add([]byte(s), uint64(1), int64(0))
	}
	f.Fuzz(func(t *testing.T, text []byte, seq uint64, offset int64) {
		if len(text) > proto.MaxEventText || seq == 0 {
			return
		}
		h := proto.NewEventHead("p", "r", time.Now())
		checkText(t, h, text)
		for _, form := range forms() {
			e := eventOf(t, proto.AppendReadEvent(nil, h, proto.Stdout, seq, offset, text, form))
			if e.Seq != seq || e.Offset != offset {
				t.Fatalf("event seq, offset = %d, %d; want %d, %d", e.Seq, e.Offset, seq, offset)
			}
			// The general encoder and the fast one say the same.
			slow, err := proto.DecodeAnswer(encodeEvent(t, e))
			if err != nil || !cmp.Equal(slow, proto.Message(e), exported(), emptyAsNil()) {
				t.Fatalf("DecodeAnswer(Append(%+v)) = %+v, %v; want the same event", e, slow, err)
			}
		}
	})
}

func encodeEvent(t *testing.T, e *proto.ReadEvent) []byte {
	t.Helper()
	again := *e
	return []byte(encode(t, &again))
}

func FuzzFinalEvent(f *testing.F) {
	f.Add("exited", 0, "", "", "process", "kernel", 1.5, int64(4096))
	f.Add("killed", -15, "SIGTERM", "a\xffb", "", `"\`, -1e300, int64(-1))
	f.Fuzz(func(t *testing.T, cause string, code int, sig, stage, scope, by string, seconds float64, size int64) {
		h := proto.NewEventHead("p", "r", time.Now())
		v := &proto.Verdict{
			Cause: proto.Cause(cause), Code: code, Signal: sig, Stage: stage, Scope: scope, By: by,
			Usage: proto.Usage{Wall: proto.Seconds(seconds), MemoryPeak: proto.Size(size)}, Survivors: []int{code, 1},
		}
		for _, form := range forms() {
			e := eventOf(t, proto.AppendFinalEvent(nil, h, 1, v, form))
			if !e.Final() || e.Verdict == nil || e.Verdict.Code != code {
				t.Fatalf("AppendFinalEvent(%+v) = %+v; want a final event with the verdict", v, e)
			}
		}
	})
}

func benchmarkEvent(b *testing.B, text []byte, form proto.DataForm) {
	b.Helper()
	h := proto.NewEventHead(proto.NewID(), proto.NewID(), time.Now())
	buf := make([]byte, 0, 256<<10)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	seq := uint64(0)
	for b.Loop() {
		seq++
		if len(buf) > 128<<10 {
			buf = buf[:0]
		}
		buf = proto.AppendReadEvent(buf, h, proto.Stdout, seq, int64(seq)*80, text, form)
	}
}

func BenchmarkReadEvent(b *testing.B) {
	line := append(bytes.Repeat([]byte("0123456789abcdef"), 5)[:79], '\n')
	for _, c := range []struct {
		name string
		text []byte
	}{
		{"ascii80", line},
		{"utf8of80", append(bytes.Repeat([]byte("é"), 39), "x\n"...)},
		{"binary80", bytes.Repeat([]byte{0xff}, 80)},
		{"batch64K", bytes.Repeat(line, 800)},
	} {
		for _, form := range forms() {
			b.Run(c.name+"/"+string(form), func(b *testing.B) { benchmarkEvent(b, c.text, form) })
		}
	}
}

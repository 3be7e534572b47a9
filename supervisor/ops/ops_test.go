package ops

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"pinfold/proto"
)

// epoch is the time of the first step of a test.
var epoch = time.Unix(1_716_123_456, 0)

// book is a Journal that a test looks into.
type book struct {
	lines []string
	err   error
}

func (b *book) Intend(e Entry) error {
	b.lines = append(b.lines, "intend "+e.ID)
	return b.err
}

func (b *book) Settle(e Entry) error {
	b.lines = append(b.lines, "settle "+e.ID+" "+string(e.Outcome))
	return b.err
}

// must begins an operation that is to stand so.
func must(t *testing.T, r *Record, id string, want Standing, now time.Time) Entry {
	t.Helper()
	got, e, err := r.Begin(id, proto.TypeSpawnReq, proto.Digest{1}, now)
	if err != nil || got != want {
		t.Fatalf("Begin(%s) = %v, %v; want %v", id, got, err, want)
	}
	return e
}

func done(t *testing.T, r *Record, id string, now time.Time) {
	t.Helper()
	must(t, r, id, Fresh, now)
	if err := r.Settle(id, proto.OutcomeApplied, jsontext.Value(`{"id":"`+id+`"}`), now); err != nil {
		t.Fatal(err)
	}
}

func outcome(t *testing.T, r *Record, id string, want proto.Outcome, now time.Time) *Entry {
	t.Helper()
	got, e := r.Get(id, now)
	if got != want {
		t.Errorf("Get(%s) = %s; want %s", id, got, want)
	}
	return e
}

func TestAnOperationIsTakenOnce(t *testing.T) {
	b := &book{}
	r := New(b)
	outcome(t, r, "a", proto.OutcomeNotSent, epoch)
	must(t, r, "a", Fresh, epoch)
	must(t, r, "a", UnderWay, epoch)
	if e := outcome(t, r, "a", proto.OutcomeUnknown, epoch); e == nil || !e.Open() {
		t.Errorf("Get(a) = %+v; want it open", e)
	}
	if err := r.Settle("a", proto.OutcomeRejected, jsontext.Value(`{"no":1}`), epoch.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	e := must(t, r, "a", Concluded, epoch.Add(2*time.Second))
	if string(e.Answer) != `{"no":1}` || !e.At.Time().Equal(epoch.Add(time.Second)) {
		t.Errorf("Begin(a) = %+v; want the answer, as of a second later", e)
	}
	outcome(t, r, "a", proto.OutcomeRejected, epoch)
	if got, _, err := r.Begin("a", proto.TypeSpawnReq, proto.Digest{2}, epoch); err != nil || got != Other {
		t.Errorf("Begin(a with other content) = %v, %v; want Other", got, err)
	}
	if got, _, err := r.Begin("a", proto.TypeKillReq, proto.Digest{1}, epoch); err != nil || got != Other {
		t.Errorf("Begin(a of another type) = %v, %v; want Other", got, err)
	}
	if want := []string{"intend a", "settle a rejected"}; !slices.Equal(b.lines, want) {
		t.Errorf("journal = %q; want %q", b.lines, want)
	}
	for _, id := range []string{"a", "never"} {
		if err := r.Settle(id, proto.OutcomeApplied, nil, epoch); err == nil {
			t.Errorf("Settle(%s) = nil; want an error: it is not under way", id)
		}
	}
}

func TestWhatHadNoEffectMayComeAgain(t *testing.T) {
	b := &book{}
	r := New(b)
	must(t, r, "a", Fresh, epoch)
	if err := r.Settle("a", proto.OutcomeNotSent, jsontext.Value(`{}`), epoch); err != nil {
		t.Fatal(err)
	}
	outcome(t, r, "a", proto.OutcomeNotSent, epoch)
	must(t, r, "a", Fresh, epoch)
	if want := []string{"intend a", "settle a not_sent", "intend a"}; !slices.Equal(b.lines, want) {
		t.Errorf("journal = %q; want %q", b.lines, want)
	}
}

func TestWhatCannotBeNotedIsNotDone(t *testing.T) {
	b := &book{err: errors.New("full")}
	r := New(b)
	if _, _, err := r.Begin("a", proto.TypeSpawnReq, proto.Digest{1}, epoch); !errors.Is(err, b.err) {
		t.Errorf("Begin() with a failing journal = %v; want its error", err)
	}
	outcome(t, r, "a", proto.OutcomeNotSent, epoch)
	b.err = nil
	must(t, r, "a", Fresh, epoch)
	b.err = errors.New("full")
	if err := r.Settle("a", proto.OutcomeApplied, nil, epoch); !errors.Is(err, b.err) {
		t.Errorf("Settle() with a failing journal = %v; want its error", err)
	}
	outcome(t, r, "a", proto.OutcomeApplied, epoch)
}

func TestTheRecordIsBoundedAndSaysSo(t *testing.T) {
	r := New(Volatile{})
	must(t, r, "open", Fresh, epoch)
	for i := range MaxKept {
		done(t, r, fmt.Sprint("n", i), epoch.Add(time.Duration(i)*time.Millisecond))
	}
	now := epoch.Add(2 * time.Second)
	if len(r.entries) != MaxKept {
		t.Errorf("entries = %d; want %d", len(r.entries), MaxKept)
	}
	must(t, r, "open", UnderWay, now)
	must(t, r, "n0", Forgotten, now)
	must(t, r, "n1", Concluded, now)
	outcome(t, r, "n0", proto.OutcomeUnknown, now)
	outcome(t, r, "never", proto.OutcomeNotSent, now) // every name is still known

	now = epoch.Add(3*time.Second + MaxAge)
	outcome(t, r, "n1", proto.OutcomeUnknown, now)
	must(t, r, "n1", Forgotten, now)
	must(t, r, "open", UnderWay, now)
	if len(r.entries) != 1 || r.bytes != 0 {
		t.Errorf("after MaxAge: %d entries, %d bytes; want the open one alone", len(r.entries), r.bytes)
	}
}

func TestAnswersAreBoundedInBytes(t *testing.T) {
	r := New(Volatile{})
	big := jsontext.Value(`"` + strings.Repeat("x", MaxBytes/4) + `"`)
	for i := range 10 {
		id := fmt.Sprint("n", i)
		must(t, r, id, Fresh, epoch)
		if err := r.Settle(id, proto.OutcomeApplied, big, epoch); err != nil {
			t.Fatal(err)
		}
		if r.bytes > MaxBytes {
			t.Fatalf("answers have %d bytes; want at most %d", r.bytes, MaxBytes)
		}
	}
	must(t, r, "n9", Concluded, epoch)
	must(t, r, "n0", Forgotten, epoch)
}

func TestOpenOnesAreNeverForgotten(t *testing.T) {
	r := New(Volatile{})
	for i := range MaxKept {
		must(t, r, fmt.Sprint("n", i), Fresh, epoch)
	}
	late := epoch.Add(10 * MaxAge)
	must(t, r, "more", Full, late)
	must(t, r, "n0", UnderWay, late)
	outcome(t, r, "more", proto.OutcomeNotSent, late)
	if err := r.Settle("n5", proto.OutcomeApplied, nil, late); err != nil {
		t.Fatal(err)
	}
	must(t, r, "more", Fresh, late)
	must(t, r, "n5", Forgotten, late)
}

// TestTheHorizon: where names are gone for good, not_sent is not said any more.
func TestTheHorizon(t *testing.T) {
	r := New(Volatile{})
	at := func(i int) time.Time { return epoch.Add(time.Duration(i) * time.Millisecond) }
	const all = MaxKept + MaxForgotten
	for i := range all {
		done(t, r, fmt.Sprint("n", i), at(i))
	}
	outcome(t, r, "never", proto.OutcomeNotSent, at(all))
	must(t, r, "n0", Forgotten, at(all))
	if r.Horizon() != 0 {
		t.Errorf("Horizon() = %v; want none yet", r.Horizon())
	}
	done(t, r, "last", at(all))
	outcome(t, r, "never", proto.OutcomeUnknown, at(all))
	outcome(t, r, "n0", proto.OutcomeUnknown, at(all))
	if got := r.Horizon().Time(); !got.Equal(at(0)) {
		t.Errorf("Horizon() = %v; want %v, when n0 was concluded", got, at(0))
	}
	if len(r.forgotten.ring) != MaxForgotten || len(r.forgotten.set) != MaxForgotten {
		t.Errorf("%d names, %d in the set; want %d", len(r.forgotten.ring), len(r.forgotten.set), MaxForgotten)
	}
}

func TestSnapshotAndRestore(t *testing.T) {
	r := New(Volatile{})
	for i := range MaxKept + 5 {
		done(t, r, fmt.Sprint("n", i), epoch.Add(time.Duration(i)*time.Millisecond))
	}
	must(t, r, "open", Fresh, epoch)
	stored, err := json.Marshal(r.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	var s Snapshot
	if err := json.Unmarshal(stored, &s); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Snapshot(), s); diff != "" {
		t.Errorf("stored and read snapshot differs (-want +got):\n%s", diff)
	}
	now := epoch.Add(time.Minute)
	b := &book{}
	back, err := Restore(s, b, now)
	if err != nil {
		t.Fatal(err)
	}
	must(t, back, "n0", Forgotten, now)
	must(t, back, "n7", Concluded, now)
	if e := outcome(t, back, "open", proto.OutcomeUnknown, now); e == nil || e.Open() {
		t.Errorf("Get(open) after Restore = %+v; want it concluded", e)
	}
	must(t, back, "open", Concluded, now)
	must(t, back, "new", Fresh, now)
	if want := []string{"intend new"}; !slices.Equal(b.lines, want) {
		t.Errorf("journal = %q; want %q", b.lines, want)
	}
}

func TestRestoreRefusesWhatIsNone(t *testing.T) {
	many := Snapshot{}
	for i := range MaxKept + 1 {
		many.Entries = append(many.Entries, Entry{ID: fmt.Sprint(i), Outcome: proto.OutcomeApplied, At: proto.TimestampOf(epoch)})
	}
	for name, s := range map[string]Snapshot{
		"twice":    {Entries: []Entry{{ID: "a"}, {ID: "a"}}},
		"no name":  {Entries: []Entry{{}}},
		"too many": many,
		"cut":      {Forgotten: make([]byte, pastSize+1)},
	} {
		if _, err := Restore(s, Volatile{}, epoch); err == nil {
			t.Errorf("Restore(%s) = nil; want an error", name)
		}
	}
}

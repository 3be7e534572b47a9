package host

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// outcomeOf asks what became of an operation.
func outcomeOf(t *testing.T, c *client.Client, id string) *proto.OpsGetResp {
	t.Helper()
	r, err := c.OpsGet(soon(t), id)
	if err != nil {
		t.Fatalf("OpsGet(%s) = %v; want an answer", id, err)
	}
	return r
}

// same strips of an answer what differs in its repetition.
func same(f frame) string {
	for _, field := range []string{"id", "req_id"} {
		_, rest, ok := strings.Cut(f.raw, `"`+field+`":"`)
		if value, _, found := strings.Cut(rest, `"`); ok && found {
			f.raw = strings.Replace(f.raw, `"`+field+`":"`+value+`"`, "", 1)
		}
	}
	head, rest, _ := strings.Cut(f.raw, `"ts":`)
	_, rest, _ = strings.Cut(rest, ",")
	return head + strings.Replace(rest, `,"repeated":true`, "", 1)
}

// TestOneNameOneProcess: spawns of one name that come together start one process, and
// every one of them is told of it before its output.
func TestOneNameOneProcess(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	w := d.connect()
	w.hello(`,"proc":{"data":"object"}`)
	const fields = `,"op_id":"one","cmd":["sh","-c","echo started; read x; echo $x"]`
	const asked = 20
	var all strings.Builder
	for i := range asked {
		fmt.Fprintf(&all, `{"type":"proc/spawn/req","id":"s%d","version":"1.0"%s}`+"\n", i, fields)
	}
	w.bytes([]byte(all.String()))
	answers := map[string]frame{}
	for len(answers) < asked {
		f := w.next()
		if f.Type == proto.TypeReadEvent {
			t.Fatalf("output came after %d of %d answers: %s", len(answers), asked, f.raw)
		}
		if _, twice := answers[f.ReqID]; twice || !f.OK {
			t.Fatalf("answer = %s; want ok, once to each", f.raw)
		}
		answers[f.ReqID] = f
	}
	first := answers["s0"]
	for id, f := range answers {
		if same(f) != same(first) || f.ID == first.ID && id != "s0" {
			t.Errorf("answer to %s = %s; want that to s0, %s", id, f.raw, first.raw)
		}
	}
	if n := strings.Count(first.raw, "repeated"); n != 0 {
		t.Errorf("first answer = %s; want it without repeated", first.raw)
	}
	if n := len(d.jobs()); n != 1 {
		t.Errorf("%d processes; want 1", n)
	}
	w.ask("proc/write/req", "w", `,"proc_id":"`+first.ProcID+`","data":"end\n"`)
	w.until("the final event", func(f frame) bool { return len(f.Verdict) > 0 })
	w.ask("proc/spawn/req", "late", fields)
	if f := w.answerTo("late"); same(f) != same(first) || !strings.Contains(f.raw, `"repeated":true`) {
		t.Errorf("answer after the end = %s; want %s repeated", f.raw, first.raw)
	}
	w.ask("proc/list/req", "l", "")
	if f := w.answerTo("l"); strings.Count(f.raw, `"proc_id"`) != 1 {
		t.Errorf("list = %s; want one process", f.raw)
	}
}

// gated is a command that reads nothing before SIGUSR1, and then does so.
func gated(then string) proto.Spawn {
	return shell(`trap 'go=1' USR1; echo ready; until [ "$go" ]; do sleep 0.05; done; ` + then)
}

// open lets a gated process read.
func open(t *testing.T, p *client.Process) {
	t.Helper()
	if _, err := p.Kill(soon(t), proto.SigUsr1); err != nil {
		t.Fatal(err)
	}
}

// TestOneNameOneWrite: its bytes come once, also where two ask while it waits.
func TestOneNameOneWrite(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	c := d.agent()
	p := spawn(t, c, gated("wc -c"))
	await(t, p, "ready")
	big := strings.Repeat("x", 300_000) // more than the pipe holds: it waits
	ask := func(data string, op string) error {
		return c.Write(soon(t), &proto.WriteReq{ProcID: p.ID, Data: data, OpID: op})
	}
	errs := make([]error, 5)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = ask(big, "big") })
	}
	eventually(t, "the write is under way", func() bool {
		r := outcomeOf(t, c, "big")
		return r.Outcome == proto.OutcomeUnknown && r.Open && r.Operation.Request == proto.TypeWriteReq
	})
	refused(t, "the same name for other bytes", ask("y", "big"), proto.CodeRejected)
	open(t, p)
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("write %d = %v; want it taken", i, err)
		}
	}
	b64 := &proto.WriteReq{ProcID: p.ID, Data: base64.StdEncoding.EncodeToString([]byte(big)), Encoding: proto.EncodingBase64, OpID: "big"}
	if err := c.Write(soon(t), b64); err != nil {
		t.Errorf("the same bytes in base64 = %v; want the answer of the first", err)
	}
	if r := outcomeOf(t, c, "big"); r.Outcome != proto.OutcomeApplied || r.Open || r.Operation.ProcID != p.ID || r.Operation.PID != p.PID {
		t.Errorf("OpsGet(big) = %+v, %+v; want it applied to %s", r, r.Operation, p.ID)
	}
	if err := c.Write(soon(t), &proto.WriteReq{ProcID: p.ID, Data: "tail", EOF: true, OpID: "end"}); err != nil {
		t.Fatal(err)
	}
	out, _, _ := output(t, p)
	if want := itoa(len(big) + len("tail")); strings.TrimSpace(out) != want {
		t.Errorf("wc -c = %q; want %s: each write once", out, want)
	}
}

// TestOneNameOneSignal: also with two that wait for the same end.
func TestOneNameOneSignal(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	c := d.agent()
	p := spawn(t, c, shell(`trap 'echo usr1' USR1; trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done`))
	await(t, p, "ready")
	kill := func(sig proto.Signal, op string) (*proto.KillResp, error) {
		m, err := c.Do(soon(t), &proto.KillReq{ProcID: p.ID, Signal: sig, OpID: op})
		r, ok := m.(*proto.KillResp)
		if !ok {
			t.Fatalf("kill = %T, %v; want its response", m, err)
		}
		return r, err
	}
	for range 10 {
		if r, err := kill(proto.SigUsr1, "usr"); err != nil || r.State != proto.StatusRunning {
			t.Fatalf("kill(SIGUSR1) = %+v, %v; want it running", r, err)
		}
	}
	got := await(t, p, "usr1")
	states := make([]proto.Status, 4)
	var wg sync.WaitGroup
	for i := range states {
		wg.Go(func() {
			r, err := kill(proto.SigTerm, "term")
			if err != nil {
				t.Errorf("kill(SIGTERM) = %v; want the outcome", err)
			}
			states[i] = r.State
		})
	}
	rest, _, v := output(t, p)
	wg.Wait()
	if n := strings.Count(got+rest, "usr1"); n != 1 || v.Code != 3 {
		t.Errorf("output = %q, code %d; want usr1 once, and 3", got+rest, v.Code)
	}
	for _, s := range states {
		if s != proto.StatusKilled {
			t.Errorf("states = %q; want all killed", states)
			break
		}
	}
	if r := outcomeOf(t, c, "term"); r.Outcome != proto.OutcomeApplied || r.Operation.State != proto.StatusKilled {
		t.Errorf("OpsGet(term) = %+v, %+v; want applied, killed", r, r.Operation)
	}
}

// TestOutcomes: all four, and that a refusal is recorded unless it may not last.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	c := d.agent()
	if r := outcomeOf(t, c, "none"); r.Outcome != proto.OutcomeNotSent || r.Operation != nil || r.Horizon != 0 {
		t.Errorf("OpsGet(none) = %+v; want not_sent", r)
	}
	gone := proto.Spawn{Cmd: []string{"no-such-program-at-all"}, OpID: "gone"}
	for range 2 {
		_, err := c.Spawn(soon(t), gone)
		refused(t, "a program that is not there", err, proto.CodeNotFound)
	}
	if r := outcomeOf(t, c, "gone"); r.Outcome != proto.OutcomeRejected || r.Operation.Code != proto.CodeNotFound || r.Operation.Error == "" || r.Open {
		t.Errorf("OpsGet(gone) = %+v, %+v; want rejected with not_found", r, r.Operation)
	}
	_, err := c.Spawn(soon(t), proto.Spawn{Cmd: []string{"true"}, OpID: "gone"})
	refused(t, "another spawn of that name", err, proto.CodeRejected)

	p := spawn(t, c, shell("echo ready; sleep 1000"))
	await(t, p, "ready")
	part := &proto.WriteReq{ProcID: p.ID, Data: strings.Repeat("x", 300_000), OpID: "part"}
	taken := make(chan error, 1)
	go func() { taken <- c.Write(soon(t), part) }()
	eventually(t, "the write is under way", func() bool { return outcomeOf(t, c, "part").Open })
	if _, err := p.Kill(soon(t), proto.SigKill); err != nil {
		t.Fatal(err)
	}
	refused(t, "a write of which a part was taken", <-taken, proto.CodeOutcomeUnknown)
	if r := outcomeOf(t, c, "part"); r.Outcome != proto.OutcomeUnknown || r.Open || r.Operation.Code != proto.CodeOutcomeUnknown {
		t.Errorf("OpsGet(part) = %+v, %+v; want outcome_unknown", r, r.Operation)
	}
	other := d.agent()
	if r := outcomeOf(t, other, "gone"); r.Outcome != proto.OutcomeNotSent {
		t.Errorf("OpsGet(gone) of another session = %+v; want not_sent", r)
	}
}

// TestBusyIsNoOutcome: what was refused for now may be sent again under its name.
func TestBusyIsNoOutcome(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	c := d.agent()
	p := spawn(t, c, gated("cat > /dev/null"))
	await(t, p, "ready")
	full := make(chan error, 1)
	first := &proto.WriteReq{ProcID: p.ID, Data: strings.Repeat("x", 600_000), OpID: "first"}
	go func() { full <- c.Write(soon(t), first) }()
	eventually(t, "a write is under way", func() bool { return outcomeOf(t, c, "first").Open })
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Write(soon(t), &proto.WriteReq{ProcID: p.ID, Data: strings.Repeat("y", 300_000), OpID: "second"}); err != nil {
			t.Errorf("second write = %v; want it taken", err)
		}
	})
	eventually(t, "another waits", func() bool { return outcomeOf(t, c, "second").Open })
	third := &proto.WriteReq{ProcID: p.ID, Data: strings.Repeat("z", 900_000), OpID: "third"}
	refused(t, "a write that finds no room", c.Write(soon(t), third), proto.CodeBusy)
	if r := outcomeOf(t, c, "third"); r.Outcome != proto.OutcomeNotSent {
		t.Errorf("OpsGet(third) = %+v; want not_sent", r)
	}
	open(t, p)
	if err := <-full; err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	again := &proto.WriteReq{ProcID: p.ID, Data: third.Data, OpID: "third"}
	if err := c.Write(soon(t), again); err != nil {
		t.Errorf("the same again = %v; want it taken", err)
	}
	if r := outcomeOf(t, c, "third"); r.Outcome != proto.OutcomeApplied {
		t.Errorf("OpsGet(third) = %+v; want applied", r)
	}
}

// TestTheRecordIsBounded: beyond it the name alone is known, and nothing is done twice.
func TestTheRecordIsBounded(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	w := d.connect()
	w.hello(`,"proc":{"data":"object"}`)
	w.ask("proc/spawn/req", "s", `,"op_id":"first","cmd":["cat"]`)
	id := w.answerTo("s").ProcID
	const writes = 1100 // more than are kept
	for i := range writes {
		w.ask("proc/write/req", fmt.Sprint("w", i), fmt.Sprintf(`,"op_id":"n%d","proc_id":"%s","data":"x"`, i, id))
		if f := w.answerTo(fmt.Sprint("w", i)); !f.OK {
			t.Fatalf("write %d = %s; want it taken", i, f.raw)
		}
	}
	w.ask("proc/spawn/req", "again", `,"op_id":"first","cmd":["cat"]`)
	if f := w.answerTo("again"); f.OK || f.Code != proto.CodeOutcomeUnknown {
		t.Errorf("a forgotten spawn = %s; want outcome_unknown", f.raw)
	}
	w.ask("ops/get/req", "g1", `,"op_id":"first"`)
	if f := w.answerTo("g1"); !f.OK || !strings.Contains(f.raw, `"outcome":"outcome_unknown"`) {
		t.Errorf("ops/get of it = %s; want outcome_unknown", f.raw)
	}
	w.ask("ops/get/req", "g2", `,"op_id":"never"`)
	if f := w.answerTo("g2"); !f.OK || !strings.Contains(f.raw, `"outcome":"not_sent"`) {
		t.Errorf("ops/get of a name that never came = %s; want not_sent", f.raw)
	}
	w.ask("proc/write/req", "last", fmt.Sprintf(`,"op_id":"n%d","proc_id":"%s","data":"x"`, writes-1, id))
	if f := w.answerTo("last"); !f.OK || !strings.Contains(f.raw, `"repeated":true`) {
		t.Errorf("the last write again = %s; want its answer", f.raw)
	}
	w.ask("proc/write/req", "eof", `,"proc_id":"`+id+`","data":"","eof":true`)
	f := w.until("the final event", func(f frame) bool { return len(f.Verdict) > 0 })
	if want := fmt.Sprintf(`"output":{"stdout":%d,`, writes); !strings.Contains(string(f.Verdict), want) {
		t.Errorf("verdict of cat = %s; want %s: each write once", f.Verdict, want)
	}
}

// TestOperationsAreOnDisk before they are answered, and go with their session.
func TestOperationsAreOnDisk(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	c := d.agent()
	files := func() []string {
		found, err := filepath.Glob(filepath.Join(d.state, "run", "*", "ops", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if _, _, v := run(t, c, shell("true")); v.Code != 0 || len(files()) != 0 {
		t.Errorf("files after a spawn without a name = %q; want none", files())
	}
	p := spawn(t, c, proto.Spawn{Cmd: []string{"cat"}, OpID: "on-disk"})
	if len(files()) != 1 {
		t.Fatalf("files after a spawn with a name = %q; want one", files())
	}
	text := readFile(t, files()[0])
	intended, settled := strings.Index(text, `"op_id":"on-disk"`), strings.Index(text, `"outcome":"applied"`)
	if intended < 0 || settled < intended || !strings.Contains(text, p.ID) {
		t.Errorf("record = %s; want the operation, then its outcome", text)
	}
	if err := c.Shutdown(soon(t), time.Second); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the record is gone", func() bool { return len(files()) == 0 })
}

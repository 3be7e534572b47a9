package host

import (
	"encoding/json"
	"fmt"
	"testing"

	"pinfold/proto"
)

// floods sums the flood records of one kind.
func (d *daemon) floods(of string) (records int, count int64) {
	d.t.Helper()
	for _, e := range d.auditLines() {
		var f struct {
			Of    string `json:"of"`
			Count int64  `json:"count"`
		}
		if err := json.Unmarshal([]byte(e.raw), &f); err != nil {
			d.t.Fatal(err)
		}
		if e.Kind == "flood" && f.Of == of {
			records, count = records+1, count+f.Count
		}
	}
	return records, count
}

// lines counts the audit records of one kind.
func (d *daemon) lines(kind string) int {
	d.t.Helper()
	n := 0
	for _, e := range d.auditLines() {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// TestAFloodOfDenialsIsHeldBack: what policy refuses is answered, recorded and, beyond
// a burst, only counted; then the caller is served again.
func TestAFloodOfDenialsIsHeldBack(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	w := d.connect()
	w.hello("")
	const flood = 3000
	codes := map[proto.Code]int{}
	for sent, got := 0, 0; got < flood; {
		for ; sent < flood && sent < got+16; sent++ {
			w.ask("proc/spawn/req", fmt.Sprint("s", sent), `,"cmd":["/usr/bin/mkfifo","x"]`)
		}
		codes[w.next().Code]++
		got++
	}
	denied, busy := codes[proto.CodeDenied], codes[proto.CodeBusy]
	if denied+busy != flood || denied < 200 || busy == 0 {
		t.Fatalf("codes of %d denied spawns = %v; want denied for a burst, then busy", flood, codes)
	}
	if n := d.lines("decision"); n != denied {
		t.Errorf("audit log has %d decisions; want the %d that were made", n, denied)
	}
	eventually(t, "the flood is told", func() bool { _, n := d.floods("denied"); return n == int64(busy) })
	if n, _ := d.floods("denied"); n > 60 {
		t.Errorf("audit log tells the flood in %d records; want one a second", n)
	}
	c := d.agent()
	eventually(t, "the caller is served again", func() bool {
		p, err := c.Spawn(soon(t), shell("echo served"))
		if err != nil {
			refused(t, "Spawn() after the flood", err, proto.CodeBusy)
			return false
		}
		out, _, _ := output(t, p)
		return out == "served\n"
	})
}

// TestAFloodOfRefusedConnectionsIsCounted in place of a record for each.
func TestAFloodOfRefusedConnectionsIsCounted(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	const flood = 400
	for range flood {
		w := d.connect()
		w.send(`{"type":"handshake/req","id":"p","version":"1.0","ts":1,"agent_caps":["fs"]}`)
		if f := w.next(); f.Reason != string(proto.ReasonNoCaps) {
			t.Fatalf("handshake = %s; want no_caps", f.raw)
		}
		if err := w.conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all are told", func() bool {
		_, n := d.floods("refused")
		return n+int64(d.lines("refused")) == flood
	})
	if n, _ := d.floods("refused"); n+d.lines("refused") > flood/4 {
		t.Errorf("audit log has %d records of %d refused connections; want one or two a second", n+d.lines("refused"), flood)
	}
}

package host

import (
	"fmt"
	"testing"

	"pinfold/proto"
)

// TestReadersThatBreakOffEndNobodyElse: operators are attached to live processes, read
// nothing of what comes, and are gone in the middle of it. The daemon and the processes
// go on.
func TestReadersThatBreakOffEndNobodyElse(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	const procs, rounds = 16, 10
	own := d.connect()
	own.hello("")
	var ids []string
	for i := range procs {
		id := fmt.Sprintf("s%d", i)
		own.ask("proc/spawn/req", id, `,"cmd":["sh","-c","read x; yes"]`)
		ids = append(ids, own.answerTo(id).ProcID)
	}
	for i, p := range ids {
		own.ask("proc/write/req", fmt.Sprintf("w%d", i), fmt.Sprintf(`,"proc_id":%q,"data":"go\n"`, p))
	}
	for range rounds {
		w := d.connect()
		w.hello(`,"role":"operator"`)
		for i, p := range ids {
			w.ask("proc/attach/req", fmt.Sprintf("a%d", i), fmt.Sprintf(`,"proc_id":%q`, p))
		}
		w.answerTo(fmt.Sprintf("a%d", procs-1))
		if err := w.conn.Close(); err != nil { // with bytes unread: who writes is told
			t.Fatal(err)
		}
	}
	op := d.dial(proto.Handshake{Role: proto.RoleOperator})
	for _, id := range ids {
		if r, err := op.Status(soon(t), id); err != nil || r.Status != proto.StatusRunning {
			t.Fatalf("Status() = %+v, %v; want the process running", r, err)
		}
	}
}

// TestReadersOfOneCallerAreBounded over all its connections, and places come back.
func TestReadersOfOneCallerAreBounded(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	const procs, most = 32, 256
	own := d.connect()
	own.hello("")
	var ids []string
	for i := range procs {
		id := fmt.Sprintf("s%d", i)
		own.ask("proc/spawn/req", id, `,"cmd":["sleep","600"]`)
		ids = append(ids, own.answerTo(id).ProcID)
	}
	attach := func(w *wire, i int) frame {
		id := fmt.Sprintf("a%d", i)
		w.ask("proc/attach/req", id, fmt.Sprintf(`,"proc_id":%q`, ids[i]))
		return w.answerTo(id)
	}
	var first *wire
	for n := range most / procs {
		w := d.connect()
		w.hello(`,"role":"operator"`)
		for i := range procs {
			if f := attach(w, i); !f.OK {
				t.Fatalf("attach %d = %s; want ok", n*procs+i, f.raw)
			}
		}
		if first == nil {
			first = w
		}
	}
	w := d.connect()
	w.hello(`,"role":"operator"`)
	if f := attach(w, 0); f.Code != proto.CodeBusy {
		t.Fatalf("attach beyond %d = %s; want busy", most, f.raw)
	}
	if err := first.conn.Close(); err != nil {
		t.Fatal(err)
	}
	n := 0
	eventually(t, "a place is free", func() bool {
		n++
		w.ask("proc/attach/req", fmt.Sprintf("again%d", n), fmt.Sprintf(`,"proc_id":%q`, ids[1]))
		return w.answerTo(fmt.Sprintf("again%d", n)).OK
	})
}

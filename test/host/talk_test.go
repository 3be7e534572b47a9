package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// patience is for one answer or one short command, on a loaded host.
const patience = 60 * time.Second

// soon is a context for one step of a test.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// dial opens a session with the small client.
func (d *daemon) dial(h proto.Handshake) *client.Client {
	d.t.Helper()
	c, err := client.Dial(soon(d.t), d.sock)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			d.t.Errorf("Close() = %v; want none", err)
		}
	})
	if r, err := c.Handshake(soon(d.t), &h); err != nil || !r.OK || r.SessionID == "" {
		d.t.Fatalf("Handshake() = %+v, %v; want a session", r, err)
	}
	return c
}

func (d *daemon) agent() *client.Client {
	d.t.Helper()
	return d.dial(proto.Handshake{})
}

// spawn starts a process that must start.
func spawn(t *testing.T, c *client.Client, s proto.Spawn) *client.Process {
	t.Helper()
	p, err := c.Spawn(soon(t), s)
	if err != nil {
		t.Fatalf("Spawn(%q) = %v; want a process", s.Cmd, err)
	}
	return p
}

func shell(script string) proto.Spawn { return proto.Spawn{Cmd: []string{"sh", "-c", script}} }

func python(script string) proto.Spawn {
	return proto.Spawn{Cmd: []string{"python3", "-c", script}}
}

// output takes everything up to the final event.
func output(t *testing.T, p *client.Process) (stdout, stderr string, v *proto.Verdict) {
	t.Helper()
	var out, errs bytes.Buffer
	v, err := p.Copy(soon(t), &out, &errs)
	if err != nil || v == nil {
		t.Fatalf("Copy() = %+v, %v; want a verdict; stdout %q stderr %q", v, err, clip(out.String()), clip(errs.String()))
	}
	return out.String(), errs.String(), v
}

// run is spawn and output.
func run(t *testing.T, c *client.Client, s proto.Spawn) (stdout, stderr string, v *proto.Verdict) {
	t.Helper()
	return output(t, spawn(t, c, s))
}

// runOK is run for a command that must exit 0 without a word on stderr.
func runOK(t *testing.T, c *client.Client, s proto.Spawn) string {
	t.Helper()
	stdout, stderr, v := run(t, c, s)
	if v.Cause != proto.CauseExited || v.Code != 0 || stderr != "" {
		t.Fatalf("run(%s) = %q, %q, %s %d; want exit 0 without a word", clip(strings.Join(s.Cmd, " ")), clip(stdout), clip(stderr), v.Cause, v.Code)
	}
	return stdout
}

func clip(s string) string {
	const limit = 600
	if len(s) > limit {
		return s[:limit] + "…"
	}
	return s
}

// await reads output until it holds text.
func await(t *testing.T, p *client.Process, text string) string {
	t.Helper()
	var all strings.Builder
	for !strings.Contains(all.String(), text) {
		e, err := p.Next(soon(t))
		if err != nil {
			t.Fatalf("Next() = %v; want output with %q, got %q", err, text, all.String())
		}
		if e.Final() {
			t.Fatalf("Next() = the final event %+v; want output with %q, got %q", e.Verdict, text, all.String())
		}
		all.Write(e.Data.Text)
	}
	return all.String()
}

// refused checks that err is a refusal with a code.
func refused(t *testing.T, what string, err error, code proto.Code) *refusal {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Code != code {
		t.Errorf("%s = %v; want a refusal with code %s", what, err, code)
		return &refusal{}
	}
	return (*refusal)(e)
}

// refusal is a client.Error to look into, which is no error of the test's.
type refusal client.Error

// wire is a connection on which a test writes and reads every byte itself.
type wire struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

// frame is what a test looks at of one line.
type frame struct {
	Type    proto.Type      `json:"type"`
	ID      string          `json:"id"`
	ReqID   string          `json:"req_id"`
	OK      bool            `json:"ok"`
	Code    proto.Code      `json:"code"`
	Error   string          `json:"error"`
	Message string          `json:"message"`
	ProcID  string          `json:"proc_id"`
	PID     int             `json:"pid"`
	Stream  proto.Stream    `json:"stream_type"`
	Data    json.RawMessage `json:"data"`
	Seq     uint64          `json:"seq"`
	Offset  int64           `json:"offset"`
	Verdict json.RawMessage `json:"verdict"`
	Session string          `json:"session_id"`
	Status  string          `json:"status"`
	State   string          `json:"state"`
	Reason  string          `json:"reason"`
	raw     string
}

func (d *daemon) connect() *wire {
	d.t.Helper()
	conn, err := net.Dial("unix", d.sock)
	if err != nil {
		d.t.Fatal(err)
	}
	return newWire(d.t, conn)
}

func newWire(t *testing.T, conn net.Conn) *wire {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	return &wire{t: t, conn: conn, in: bufio.NewReaderSize(conn, 2*proto.MaxFrame)}
}

// hello shakes hands; extra is further fields, with a comma before.
func (w *wire) hello(extra string) {
	w.t.Helper()
	w.send(`{"type":"handshake/req","id":"hello","version":"1.0","ts":1,"agent_id":"t","agent_caps":["proc"],"auth_token":""` + extra + `}`)
	f := w.next()
	if f.Type != proto.TypeHandshakeResp || !f.OK {
		w.t.Fatalf("handshake = %s; want ok", f.raw)
	}
}

func (w *wire) send(line string) {
	w.t.Helper()
	w.bytes([]byte(line + "\n"))
}

func (w *wire) bytes(b []byte) {
	w.t.Helper()
	if err := w.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.conn.Write(b); err != nil {
		w.t.Fatalf("Write(%q) = %v; want none", clip(string(b)), err)
	}
}

// ask sends a request by type and id with fields, which begin with a comma or are
// empty.
func (w *wire) ask(typ, id, fields string) {
	w.t.Helper()
	w.send(`{"type":"` + typ + `","id":"` + id + `","version":"1.0","ts":1` + fields + `}`)
}

func (w *wire) next() frame {
	w.t.Helper()
	f, err := w.read()
	if err != nil {
		w.t.Fatalf("read = %v; want a line", err)
	}
	return f
}

func (w *wire) read() (frame, error) {
	w.t.Helper()
	if err := w.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return frame{}, err
	}
	line, err := w.in.ReadString('\n')
	if err != nil {
		return frame{raw: line}, err
	}
	f := frame{raw: strings.TrimSpace(line)}
	if err := json.Unmarshal([]byte(line), &f); err != nil {
		w.t.Fatalf("line %q = %v; want JSON", clip(line), err)
	}
	return f, nil
}

// until reads lines up to the first that fits, which it returns.
func (w *wire) until(what string, fits func(frame) bool) frame {
	w.t.Helper()
	for {
		f, err := w.read()
		if err != nil {
			w.t.Fatalf("read = %v; want %s", err, what)
		}
		if fits(f) {
			return f
		}
	}
}

// answerTo reads up to the answer to one request.
func (w *wire) answerTo(id string) frame {
	w.t.Helper()
	return w.until("the answer to "+id, func(f frame) bool { return f.ReqID == id && f.Type != proto.TypeReadEvent })
}

// closed reads up to the end of the connection.
func (w *wire) closed() {
	w.t.Helper()
	for {
		if _, err := w.read(); errors.Is(err, io.EOF) {
			return
		} else if err != nil && !strings.Contains(err.Error(), "reset by peer") {
			w.t.Fatalf("read = %v; want the end of the connection", err)
		} else if err != nil {
			return
		}
	}
}

// unix is the connection with what only a Unix socket can do.
func (w *wire) unix() *net.UnixConn {
	w.t.Helper()
	conn, ok := w.conn.(*net.UnixConn)
	if !ok {
		w.t.Fatalf("the connection is a %T; want a Unix socket", w.conn)
	}
	return conn
}

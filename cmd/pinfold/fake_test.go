package main

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pinfold/proto"
)

// fakeDaemon answers the wire on a real socket with answers of the test's choosing.
// What a daemon does is tested by test/script; this tests what is shown of it.
type fakeDaemon struct {
	socket string
	answer func(proto.Request) []proto.Message

	mu  sync.Mutex
	got []proto.Request
}

// serveFake starts a fake daemon. answer gives the messages for a request; nil
// stands for a plain success, and nil among them for the end of the connection.
func serveFake(t *testing.T, answer func(proto.Request) []proto.Message) *fakeDaemon {
	t.Helper()
	d := &fakeDaemon{socket: filepath.Join(t.TempDir(), "s"), answer: answer}
	ln, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			work.Go(func() { d.serve(t, conn) })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); work.Wait() })
	return d
}

func (d *fakeDaemon) serve(t *testing.T, conn net.Conn) {
	t.Helper()
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		req, bad := proto.Decode(bytes.TrimSuffix(line, []byte("\n")))
		if bad != nil {
			t.Errorf("the daemon got %s: %s", line, bad.Message)
			return
		}
		d.mu.Lock()
		d.got = append(d.got, req)
		d.mu.Unlock()
		if req.Kind() == proto.TypeShutdown {
			return
		}
		messages := d.answer(req)
		if messages == nil {
			messages = []proto.Message{proto.Answer(req, proto.Done(req))}
		}
		for _, m := range messages {
			if m == nil {
				return
			}
			out, err := proto.Append(nil, m)
			if err != nil {
				t.Errorf("Append(%T) = %v", m, err)
				return
			}
			if _, err := conn.Write(out); err != nil {
				return
			}
		}
	}
}

// requests are those of one type that came so far.
func requests[T proto.Request](d *fakeDaemon) []T {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []T
	for _, r := range d.got {
		if one, ok := r.(T); ok {
			out = append(out, one)
		}
	}
	return out
}

// result is what one command line did.
type result struct {
	code           int
	stdout, stderr string
}

// pinfold runs one command line with an environment and no terminal.
func pinfold(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(context.Background(), args, []string{"PATH=/usr/bin:/bin"}, strings.NewReader(stdin), &out, &errs)
	return result{code: code, stdout: out.String(), stderr: errs.String()}
}

// ended are the messages of a process that wrote and ended.
func ended(req *proto.SpawnReq, stdout, stderr string, v *proto.Verdict) []proto.Message {
	const id = "11111111-2222-4333-8444-555555555555"
	out := []proto.Message{&proto.SpawnResp{Reply: proto.Done(req), ProcID: id, PID: 42, Profile: "tools"}}
	if stdout != "" {
		out = append(out, &proto.ReadEvent{ProcID: id, StreamType: proto.Stdout, Data: proto.Data{Text: []byte(stdout)}, ReqID: req.ID, Seq: 1})
	}
	if stderr != "" {
		out = append(out, &proto.ReadEvent{ProcID: id, StreamType: proto.Stderr, Data: proto.Data{Text: []byte(stderr)}, ReqID: req.ID, Seq: 2})
	}
	code := v.Code
	final := &proto.ReadEvent{ProcID: id, StreamType: v.Stream(), ReqID: req.ID, Seq: 3, Verdict: v}
	if v.Stream() != proto.Killed {
		final.Data.Code = &code
	}
	return append(out, final)
}

package client_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// peer is the daemon's side of a socket pair, played by a test.
type peer struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
	part sync.WaitGroup
}

// pair connects a client with a peer over a real socket pair.
func pair(t *testing.T) (*client.Client, *peer) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("socketpair = %v; want two sockets", err)
	}
	conns := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatalf("net.FileConn = %v; want a connection", err)
		}
		if err := f.Close(); err != nil {
			t.Fatalf("close = %v; want none", err)
		}
	}
	c := client.New(conns[0])
	p := &peer{t: t, conn: conns[1], in: bufio.NewReaderSize(conns[1], proto.MaxFrame+2)}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close() = %v; want none", err)
		}
		conns[1].Close()
		p.part.Wait()
	})
	return c, p
}

// next reads one request. It is called from the goroutine that plays the peer, so
// it must not end the test.
func (p *peer) next() proto.Request {
	line, err := p.in.ReadSlice('\n')
	if err != nil {
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) {
			p.t.Errorf("the peer reads %v; want a request", err)
		}
		return nil
	}
	req, bad := proto.Decode(line)
	if bad != nil {
		p.t.Errorf("the peer got %s: %s; want a request", line, bad.Message)
		return nil
	}
	return req
}

func (p *peer) send(messages ...proto.Message) {
	for _, m := range messages {
		line, err := proto.Append(nil, m)
		if err != nil {
			p.t.Errorf("Append(%s) = %v; want none", m.Kind(), err)
			return
		}
		p.raw(line)
	}
}

func (p *peer) raw(b []byte) {
	if _, err := p.conn.Write(b); err != nil {
		p.t.Errorf("the peer writes: %v; want no error", err)
	}
}

// play runs the peer's part beside the test, which waits for it at its end.
func (p *peer) play(part func()) { p.part.Go(part) }

func withTimeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// spawned answers a spawn request with a process.
func spawned(req proto.Request, id string) *proto.SpawnResp {
	return &proto.SpawnResp{Reply: proto.Done(req), ProcID: id, PID: 42}
}

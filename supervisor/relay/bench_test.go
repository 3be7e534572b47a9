package relay

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"pinfold/proto"

	"golang.org/x/sys/unix"
)

// counting is a client that only counts.
type counting struct{ n int64 }

func (c *counting) Write(b []byte) error {
	c.n += int64(len(b))
	return nil
}

type connSink struct{ net.Conn }

func (c connSink) Write(b []byte) error {
	_, err := c.Conn.Write(b)
	return err
}

// benchRelay sends 80-byte lines from a child through pipe, spool and events to a sink.
func benchRelay(b *testing.B, f Format, to Sink) {
	b.Helper()
	line := strings.Repeat("0123456789abcdef", 5)[:79] + "\n"
	const total = 256 << 20
	b.SetBytes(total)
	for b.Loop() {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			b.Fatal(err)
		}
		if err := unix.SetNonblock(p[0], true); err != nil {
			b.Fatal(err)
		}
		r, w := os.NewFile(uintptr(p[0]), "r"), os.NewFile(uintptr(p[1]), "w")
		o, err := NewOutput(OutputConfig{
			Dir: shmDir(b), ProcID: "00000000-0000-4000-8000-000000000000",
			ReqID: "00000000-0000-4000-8000-000000000001", Stdout: r, Keep: 1 << 20, Format: f,
		})
		if err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", "yes "+line[:79]+" | head -c 268435456")
		cmd.Stdout = w
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		w.Close()
		served := make(chan error, 1)
		go func() { served <- o.Serve(b.Context()) }()
		if err := o.Deliver(b.Context(), to); err != nil {
			b.Fatal(err)
		}
		if err := <-served; err != nil {
			b.Fatal(err)
		}
		if got := o.Counts(); got.Stdout != total || !got.Drained || got.Dropped != 0 {
			b.Fatalf("Counts() = %+v; want %d drained bytes", got, total)
		}
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
		r.Close()
		if err := o.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRelayLines(b *testing.B) { benchRelay(b, Format{}, &counting{}) }

func BenchmarkRelayBatch(b *testing.B) { benchRelay(b, Format{Grouping: Batch}, &counting{}) }

// BenchmarkRelaySocket has a client on a real socket that reads and throws away.
func BenchmarkRelaySocket(b *testing.B) {
	for name, f := range map[string]Format{"lines": {}, "batch": {Grouping: Batch}} {
		b.Run(name, func(b *testing.B) {
			a, z := socketPair(b)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{z}, make([]byte, 256<<10))
			}()
			benchRelay(b, f, connSink{a})
			a.Close()
			<-done
		})
	}
}

func socketPair(tb testing.TB) (a, z net.Conn) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	conns := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		if conns[i], err = net.FileConn(f); err != nil {
			tb.Fatal(err)
		}
		f.Close()
		tb.Cleanup(func() { conns[i].Close() })
	}
	return conns[0], conns[1]
}

// BenchmarkCut is the cost of cutting and encoding alone.
func BenchmarkCut(b *testing.B) {
	text := bytes.Repeat([]byte(strings.Repeat("x", 79)+"\n"), MaxPiece/80)
	h := proto.NewEventHead("p", "q", time.Unix(1e9, 0))
	out := make([]byte, 0, 1<<20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		out = out[:0]
		for at := 0; at < len(text); {
			n := nextPiece(text[at:], 0, Lines, patient)
			out = proto.AppendReadEvent(out, h, proto.Stdout, 1, int64(at), text[at:at+n], proto.DataString)
			at += n
		}
	}
}

// BenchmarkEcho is one line to cat's stdin and back as an event.
func BenchmarkEcho(b *testing.B) {
	r := newRig(b, nil)
	r.serve(b)
	cmd := exec.Command("cat")
	stdout := blocking(b, r.out)
	inR, inW := nonblockPipe(b)
	if err := control(inR, func(fd int) error { return unix.SetNonblock(fd, false) }); err != nil {
		b.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout = inR, stdout
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	stdout.Close()
	in, err := NewInput(InputConfig{Stdin: inW, MaxQueue: 1 << 20, CloseStdin: inW.Close})
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = in.Serve(b.Context()) }()
	echo := make(echoSink, 1)
	go func() { _ = r.Deliver(b.Context(), echo) }()
	for b.Loop() {
		if err := in.Write(b.Context(), []byte("hello\n"), KeepOpen); err != nil {
			b.Fatal(err)
		}
		<-echo
	}
	if err := in.Write(b.Context(), nil, ThenEOF); err != nil {
		b.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
}

type echoSink chan struct{}

func (e echoSink) Write([]byte) error {
	e <- struct{}{}
	return nil
}

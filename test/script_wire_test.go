package test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

const wireLimit = 20 * time.Second // for one expected line

// cmdWire speaks the protocol by hand: wire FILE. Lines of FILE:
//
//	> TEXT    send TEXT and a newline
//	>> TEXT   send TEXT without a newline
//	>x N C    send N times the character C
//	< REGEXP  read lines until one matches; what ( ) caught is kept as $1, $2, …
//	! REGEXP  no line that was read so far matches
//	eof       the other side closes the connection
//	close     no more is sent from our side
//	# …       a comment
//
// $1 to $9 in what is sent and expected are the last catches. Every line that was
// read is standard output.
func cmdWire(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: wire FILE")
	}
	conn, err := net.DialTimeout("unix", ts.Getenv("SOCK"), wireLimit)
	ts.Check(err)
	w := &wireTalk{ts: ts, conn: conn.(*net.UnixConn), in: bufio.NewReaderSize(conn, 1<<21)} //nolint:errcheck // a unix dial gives this type
	defer func() { _ = conn.Close() }()
	for n, line := range strings.Split(ts.ReadFile(args[0]), "\n") {
		if err := w.do(line); err != nil {
			ts.Fatalf("%s:%d: %s: %v\nread so far:\n%s", args[0], n+1, line, err, w.seen.String())
		}
	}
	fmt.Fprint(ts.Stdout(), w.seen.String())
}

type wireTalk struct {
	ts     *testscript.TestScript
	conn   *net.UnixConn
	in     *bufio.Reader
	seen   bytes.Buffer
	caught []string
}

func (w *wireTalk) do(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	rest = w.expand(rest)
	switch verb {
	case "", "#":
		return nil
	case ">":
		return w.send(rest + "\n")
	case ">>":
		return w.send(rest)
	case ">x":
		var n int
		var char string
		if _, err := fmt.Sscan(rest, &n, &char); err != nil {
			return err
		}
		return w.send(strings.Repeat(char, n))
	case "<":
		return w.expect(rest)
	case "!":
		if m := regexp.MustCompile("(?m)" + rest).FindString(w.seen.String()); m != "" {
			return fmt.Errorf("was read: %s", m)
		}
		return nil
	case "eof":
		return w.expectEOF()
	case "close":
		return w.conn.CloseWrite()
	}
	return fmt.Errorf("unknown verb %q", verb)
}

func (w *wireTalk) send(text string) error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(wireLimit)); err != nil {
		return err
	}
	_, err := io.WriteString(w.conn, text)
	return err
}

func (w *wireTalk) expect(expr string) error {
	re, err := regexp.Compile(expr)
	if err != nil {
		return err
	}
	for {
		line, err := w.read()
		if err != nil {
			return err
		}
		if m := re.FindStringSubmatch(line); m != nil {
			if len(m) > 1 {
				w.caught = m[1:]
			}
			return nil
		}
	}
}

func (w *wireTalk) expectEOF() error {
	for {
		if _, err := w.read(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (w *wireTalk) read() (string, error) {
	if err := w.conn.SetReadDeadline(time.Now().Add(wireLimit)); err != nil {
		return "", err
	}
	line, err := w.in.ReadString('\n')
	w.seen.WriteString(line)
	return line, err
}

func (w *wireTalk) expand(text string) string {
	for i, value := range w.caught {
		text = strings.ReplaceAll(text, fmt.Sprintf("$%d", i+1), value)
	}
	return text
}

// listenFile makes a listening socket and returns it as a file.
func listenFile(ts *testscript.TestScript, path string) *os.File {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	ts.Check(err)
	ln.SetUnlinkOnClose(false)
	f, err := ln.File()
	ts.Check(err)
	ts.Check(ln.Close())
	return f
}

// cmdPTY runs a program on a terminal of its own, by script(1), and puts what the
// terminal showed on standard output: pty PROGRAM ARGS…
func cmdPTY(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: pty PROGRAM ARGS…")
	}
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	cmd := exec.Command("script", "-qec", strings.Join(quoted, " "), "/dev/null")
	cmd.Env = append(os.Environ(), "PATH="+ts.Getenv("PATH"), "TMPDIR="+ts.Getenv("TMPDIR"), "TERM=dumb")
	out, err := cmd.CombinedOutput()
	fmt.Fprint(ts.Stdout(), strings.ReplaceAll(string(out), "\r\n", "\n"))
	if err != nil {
		ts.Fatalf("pty %v: %v\n%s", args, err, out)
	}
}

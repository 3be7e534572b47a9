package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"pinfold/proto"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
)

// drainLimit is how long connect goes on without a message once its input has
// ended.
const drainLimit = 2 * time.Second

func (c *cli) connectCommand() *cobra.Command {
	var socket, form string
	cmd := &cobra.Command{
		Use:   "connect",
		Short: "Join standard input and output to the daemon's socket",
		Long: "For clients that start their transport as a child. Nothing but the protocol's frames is written to standard\n" +
			"output. The handshake is made to ask for data as an object, which is what such clients read, unless --data\n" +
			"says otherwise or the client chose by itself.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.connect(cmd.Context(), socket, proto.DataForm(form))
		},
	}
	cmd.Flags().StringVar(&socket, "socket", c.defaultSocket(), "the daemon's socket `PATH`")
	cmd.Flags().StringVar(&form, "data", string(proto.DataObject), "`FORM` of data in events: object or string")
	return cmd
}

func (c *cli) connect(ctx context.Context, socket string, form proto.DataForm) error {
	if form != proto.DataObject && form != proto.DataString {
		return usage(errorf("cannot use --data %q: want object or string", form))
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return dialFailure(socket, err)
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.Join(errorf("cannot use the connection to %s: not a Unix socket", socket), conn.Close())
	}
	sent := make(chan error, 1)
	// Ends with this program: a read of standard input cannot be cut short.
	go func() { sent <- sendFrames(unix, c.stdin, form) }()
	err = receiveFrames(c.stdout, unix, sent, drainLimit)
	return errors.Join(err, unix.Close())
}

// sendFrames copies standard input to the socket, with the form of data in the
// handshake, and then ends that direction.
func sendFrames(conn *net.UnixConn, stdin io.Reader, form proto.DataForm) error {
	in := bufio.NewReaderSize(stdin, proto.MaxFrame+1)
	first, err := in.ReadSlice('\n')
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		return errorf("cannot read standard input: %w", err)
	}
	if err == nil {
		first = withDataForm(first, form)
	}
	if _, err := conn.Write(first); err != nil {
		return errorf("cannot write to the socket: %w", cause(err))
	}
	if _, err := io.Copy(conn, in); err != nil {
		return errorf("cannot pass standard input on: %w", cause(err))
	}
	if err := conn.CloseWrite(); err != nil {
		return errorf("cannot end the input of the socket: %w", cause(err))
	}
	return nil
}

// draining reads a connection; once the input has ended, for as long as something
// comes at least every limit.
type draining struct {
	conn  *net.UnixConn
	limit time.Duration
	ended atomic.Bool
}

// Read gives the next read another limit.
func (d *draining) Read(p []byte) (int, error) {
	n, err := d.conn.Read(p)
	if n > 0 && err == nil && d.ended.Load() {
		err = d.conn.SetReadDeadline(time.Now().Add(d.limit))
	}
	return n, err
}

// receiveFrames copies the socket to stdout until its end. Once the input has ended
// it stops when nothing comes for limit.
func receiveFrames(stdout io.Writer, conn *net.UnixConn, sent <-chan error, limit time.Duration) error {
	in := &draining{conn: conn, limit: limit}
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(stdout, in)
		done <- err
	}()
	select {
	case err := <-done:
		return received(err)
	case err := <-sent:
		if err != nil {
			return errors.Join(err, conn.CloseRead(), received(<-done))
		}
	}
	in.ended.Store(true)
	if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return errors.Join(err, conn.CloseRead(), received(<-done))
	}
	return received(<-done)
}

func received(err error) error {
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return errorf("cannot pass the socket's frames on: %w", cause(err))
}

// withDataForm puts proc.data into a handshake that does not have it. What is not a
// handshake, or not well formed, goes as it is: the daemon answers it.
func withDataForm(line []byte, form proto.DataForm) []byte {
	var frame map[string]jsontext.Value
	if err := json.Unmarshal(line, &frame); err != nil {
		return line
	}
	if string(frame["type"]) != `"`+string(proto.TypeHandshakeReq)+`"` {
		return line
	}
	options := map[string]jsontext.Value{}
	if raw, ok := frame["proc"]; ok {
		if err := json.Unmarshal(raw, &options); err != nil || options == nil {
			return line
		}
	}
	if _, ok := options["data"]; ok {
		return line
	}
	options["data"] = jsontext.Value(`"` + string(form) + `"`)
	raw, err := json.Marshal(options, json.Deterministic(true))
	if err != nil {
		return line
	}
	frame["proc"] = raw
	out, err := json.Marshal(frame, json.Deterministic(true))
	if err != nil || bytes.IndexByte(out, '\n') >= 0 {
		return line
	}
	return append(out, '\n')
}

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"pinfold/proto"
	"pinfold/proto/client"
)

// chunk is how much of standard input is sent at a time.
const chunk = 64 << 10

// endOfFile is what a terminal takes for the end of input: ^D.
const endOfFile = "\x04"

// forwarder passes what comes from outside to a process.
type forwarder struct {
	process *client.Process
	tty     *terminal
	warn    func(error)
	leave   func() // the keys that detach were typed
}

// feed sends standard input to the process until its end, and the end too.
func (f *forwarder) feed(ctx context.Context, stdin io.Reader) {
	buf := make([]byte, chunk)
	for {
		n, err := stdin.Read(buf)
		if n > 0 {
			if err := f.process.Write(ctx, buf[:n]); err != nil {
				f.complain("feed", err)
				return
			}
		}
		if err == nil {
			continue
		}
		if errors.Is(err, errDetached) {
			f.leave()
			return
		}
		if !errors.Is(err, io.EOF) {
			f.warn(errorf("cannot read standard input: %w", err))
		}
		f.complain("end the input of", f.endInput(ctx))
		return
	}
}

func (f *forwarder) endInput(ctx context.Context) error {
	if f.tty.used {
		return f.process.Write(ctx, []byte(endOfFile))
	}
	return f.process.CloseStdin(ctx)
}

// signals passes signals on. Each has a goroutine of its own, because the answer to
// some comes only with the end of the process.
func (f *forwarder) signals(ctx context.Context, signals <-chan os.Signal) {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-signals:
			work.Go(func() { f.complain("pass "+sig.String()+" to", f.signal(ctx, sig)) })
		}
	}
}

func (f *forwarder) signal(ctx context.Context, sig os.Signal) error {
	if sig == syscall.SIGWINCH && f.tty.used {
		return f.process.Resize(ctx, *f.tty.size())
	}
	names := map[os.Signal]proto.Signal{
		syscall.SIGINT: proto.SigInt, syscall.SIGTERM: proto.SigTerm, syscall.SIGHUP: proto.SigHup,
		syscall.SIGQUIT: proto.SigQuit, syscall.SIGWINCH: proto.SigWinch,
	}
	_, err := f.process.Kill(ctx, names[sig])
	return err
}

// complain reports what could not be passed on, unless the process or its
// connection has just ended.
func (f *forwarder) complain(verb string, err error) {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, client.ErrClosed) ||
		errors.Is(err, &client.Error{Code: proto.CodeProcDead}) || errors.Is(err, &client.Error{Code: proto.CodeUnknownProc}) {
		return
	}
	f.warn(errorf("cannot %s the command: %s", verb, refusalText(err)))
}

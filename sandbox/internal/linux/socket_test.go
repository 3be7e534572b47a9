package linux_test

import (
	"errors"
	"io"
	"os"
	"testing"

	"pinfold/sandbox/internal/linux"
)

// TestReceiveAfterReset: what a peer sent is read although it went with something
// unread.
func TestReceiveAfterReset(t *testing.T) {
	a, b, err := linux.SocketPair("test")
	if err != nil {
		t.Fatal(err)
	}
	ours, err := linux.Pollable(a)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := linux.Pollable(b)
	if err != nil {
		t.Fatal(err)
	}
	defer linux.CloseAll(ours)
	for _, err := range []error{
		linux.Send(ours, []byte("never read")),
		linux.Send(theirs, []byte("one")), linux.Send(theirs, []byte("two"), os.Stdin), theirs.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"one", "two"} {
		m, err := linux.Receive(ours, make([]byte, 10))
		if err != nil || string(m.Data) != want {
			t.Errorf("Receive() = %q, %v; want %q", m.Data, err, want)
		}
		linux.CloseNumbers(m.FDs...)
	}
	if m, err := linux.Receive(ours, make([]byte, 10)); !errors.Is(err, io.EOF) {
		t.Errorf("Receive() at the end = %q, %v; want EOF", m.Data, err)
	}
}

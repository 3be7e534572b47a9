package stagewire_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

func pair(tb testing.TB) (a, b *os.File) {
	tb.Helper()
	x, y, err := linux.SocketPair("test")
	if err != nil {
		tb.Fatal(err)
	}
	if a, err = linux.Pollable(x); err != nil {
		tb.Fatal(err)
	}
	if b, err = linux.Pollable(y); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { linux.CloseAll(a, b) })
	return a, b
}

func TestSendReceive(t *testing.T) {
	a, b := pair(t)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer linux.CloseAll(null)
	for _, size := range []int{0, 10, stagewire.MaxInline, 2 << 20} {
		body, err := stagewire.Marshal(strings.Repeat("x", size))
		if err != nil {
			t.Fatal(err)
		}
		want := stagewire.Message{ID: 7, Op: stagewire.OpLook, Body: body}
		done := make(chan error, 1)
		go func() { done <- stagewire.Send(a, want, null) }()
		got, files, err := stagewire.Receive(b, make([]byte, stagewire.MaxInline))
		if err != nil || len(files) != 1 {
			t.Fatalf("Receive(%d bytes) = %d files, %v; want one file", size, len(files), err)
		}
		linux.CloseNumbers(files...)
		if err := <-done; err != nil {
			t.Fatalf("Send(%d bytes) = %v; want nil", size, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("Receive(%d bytes) differs (-want +got):\n%s", size, d)
		}
	}
	if err := stagewire.Send(a, stagewire.Message{Body: []byte(`"` + strings.Repeat("x", stagewire.MaxLarge) + `"`)}); err == nil {
		t.Error("Send(more than MaxLarge) = nil; want an error")
	}
	linux.CloseAll(a)
	if _, _, err := stagewire.Receive(b, make([]byte, stagewire.MaxInline)); !errors.Is(err, io.EOF) {
		t.Errorf("Receive(closed) = %v; want EOF", err)
	}
}

func TestReceiveBad(t *testing.T) {
	open, err := os.CreateTemp(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer linux.CloseAll(open)
	if _, err := open.WriteString(`{"id":1,"op":"look"}`); err != nil {
		t.Fatal(err)
	}
	other, err := linux.SealedFile("x", []byte(`{"id":2,"op":"look"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer linux.CloseAll(other)
	nested, err := linux.SealedFile("x", []byte(`{"id":1,"large":4}`))
	if err != nil {
		t.Fatal(err)
	}
	defer linux.CloseAll(nested)
	tests := []struct {
		name, data string
		files      []*os.File
	}{
		{"no JSON", "x", nil},
		{"unknown name", `{"id":1,"x":2}`, nil},
		{"twice", `{"id":1,"id":1}`, nil},
		{"not UTF-8", "{\"id\":1,\"op\":\"\xff\"}", nil},
		{"negative id", `{"id":-1}`, nil},
		{"large without a file", `{"id":1,"large":9}`, nil},
		{"too large", `{"id":1,"large":99999999}`, []*os.File{other}},
		{"negative", `{"id":1,"large":-9}`, []*os.File{other}},
		{"file that can change", `{"id":1,"large":20}`, []*os.File{open}},
		{"other id", `{"id":1,"large":20}`, []*os.File{other}},
		{"shorter than it says", `{"id":1,"large":200}`, []*os.File{other}},
		{"nested", `{"id":1,"large":18}`, []*os.File{nested}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := pair(t)
			if err := linux.Send(a, []byte(tt.data), tt.files...); err != nil {
				t.Fatal(err)
			}
			_, files, err := stagewire.Receive(b, make([]byte, stagewire.MaxInline))
			var bad *stagewire.BadMessageError
			if !errors.As(err, &bad) || len(files) != 0 {
				t.Errorf("Receive(%s) = %d files, %v; want a BadMessageError", tt.data, len(files), err)
			}
		})
	}
}

func TestReceiveTruncated(t *testing.T) {
	a, b := pair(t)
	if err := linux.Send(a, bytes.Repeat([]byte("x"), 100)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := stagewire.Receive(b, make([]byte, 10)); !errors.Is(err, linux.ErrTruncated) {
		t.Errorf("Receive(cut) = %v; want ErrTruncated", err)
	}
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte(`{"id":1,"op":"launch","body":{"profile":{},"command":{}}}`))
	f.Add([]byte(`{"id":1,"large":100}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > stagewire.MaxInline {
			return
		}
		x, y := pair(t)
		if err := linux.Send(x, b); err != nil {
			t.Fatal(err)
		}
		m, files, err := stagewire.Receive(y, make([]byte, stagewire.MaxInline))
		var bad *stagewire.BadMessageError
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("Receive(%q) = %v; want nil or a BadMessageError", b, err)
		}
		if len(files) != 0 || err == nil && m.Large != 0 {
			t.Errorf("Receive(%q) = %+v with %d files; want none", b, m, len(files))
		}
	})
}

// TestProfileKeyIsTheSameOnBothSides: else no profile would ever be known by it.
func TestProfileKeyIsTheSameOnBothSides(t *testing.T) {
	profile, err := stagewire.Marshal(map[string]any{"data": "a<b>&\u2028\"\\\n\té", "n": 1.5, "list": []int{1, 2}, "none": nil})
	if err != nil {
		t.Fatal(err)
	}
	body, err := stagewire.Marshal(stagewire.Launch{Profile: profile, Command: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	b, err := stagewire.Marshal(stagewire.Message{ID: 1, Op: stagewire.OpLaunch, Body: body})
	if err != nil {
		t.Fatal(err)
	}
	var m stagewire.Message
	var l stagewire.Launch
	if err := errors.Join(stagewire.Unmarshal(b, &m), stagewire.Unmarshal(m.Body, &l)); err != nil {
		t.Fatal(err)
	}
	if got, want := stagewire.ProfileKey(l.Profile), stagewire.ProfileKey(profile); got != want || l.Key != "" {
		t.Errorf("ProfileKey(%s) = %s; want %s as of %s", l.Profile, got, want, profile)
	}
}

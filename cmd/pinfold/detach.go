package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"pinfold/proto"
)

// defaultKeys leave a process without ending it, as elsewhere.
const defaultKeys = "ctrl-p,ctrl-q"

// errDetached ends a reader of keys: those that detach were typed.
var errDetached = errors.New("detached")

// keys are those that detach.
type keys []byte

// keysOf reads names of keys: one letter each, or ctrl- and a letter or one of @ [ \ ] ^ _.
func keysOf(names string) (keys, error) {
	var out keys
	for name := range strings.SplitSeq(names, ",") {
		letter, ctrl := strings.CutPrefix(strings.ToLower(name), "ctrl-")
		switch {
		case len(letter) != 1:
		case !ctrl:
			out = append(out, name[0])
			continue
		case letter[0] >= 'a' && letter[0] <= 'z', strings.Contains(`@[\]^_`, letter):
			out = append(out, strings.ToUpper(letter)[0]&0x1f)
			continue
		}
		return nil, fail(exitUsage, "--detach-keys "+defaultKeys, errorf("cannot use %q as a key to detach", name))
	}
	return out, nil
}

// keyReader reads what is typed until the keys that detach were typed in a row; it then
// fails with errDetached. They are not handed on.
type keyReader struct {
	r     io.Reader
	keys  keys
	match int // of keys, typed and not handed on
}

func (k *keyReader) Read(p []byte) (int, error) {
	if len(p) <= len(k.keys) {
		return 0, io.ErrShortBuffer
	}
	buf := make([]byte, len(p)-len(k.keys)) // what was held back comes on top
	n, err := k.r.Read(buf)
	out := p[:0]
	for _, b := range buf[:n] {
		if b != k.keys[k.match] {
			out = append(out, k.keys[:k.match]...)
			k.match = 0
		}
		if b != k.keys[k.match] {
			out = append(out, b)
			continue
		}
		if k.match++; k.match == len(k.keys) {
			return len(out), errDetached
		}
	}
	if err != nil {
		out = append(out, k.keys[:k.match]...)
		k.match = 0
	}
	return len(out), err
}

// readToken returns the token that a file holds.
func readToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fail(exitRunFailed, "pinfold run --token-file FILE", errorf("cannot read the token file: %w", err))
	}
	token := strings.TrimSpace(string(b))
	if token == "" || len(token) > proto.MaxToken {
		return "", fail(exitRunFailed, "pinfold run --token-file FILE", errorf("cannot use token file %q: it holds no token", path))
	}
	return token, nil
}

// keepToken puts a token into a file that only this user reads, in place of the one
// before: whoever is cut off in between has one of the two.
func keepToken(path, token string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".pinfold-token-") // mode 0600
	if err != nil {
		return errorf("cannot keep the session's token: %w", err)
	}
	_, err = f.WriteString(token + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(errorf("cannot keep the session's token: %w", err), os.Remove(f.Name()))
	}
	return nil
}

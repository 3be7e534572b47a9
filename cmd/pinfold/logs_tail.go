package main

import (
	"bytes"

	"pinfold/proto"
)

// maxLogLines is how many lines logs --tail can print.
const maxLogLines = 1_000_000

// lastLines keeps the last lines of what a process has written, of both streams in the order in
// which they came.
type lastLines struct {
	most  int
	lines []piece
}

// piece is a line of one stream, or as much of it as has come.
type piece struct {
	stream proto.Stream
	text   []byte
}

func (t *lastLines) add(s proto.Stream, text []byte) {
	for line := range bytes.Lines(text) {
		if n := len(t.lines); n > 0 && t.lines[n-1].stream == s && !bytes.HasSuffix(t.lines[n-1].text, []byte("\n")) {
			t.lines[n-1].text = append(t.lines[n-1].text, line...)
			continue
		}
		t.lines = append(t.lines, piece{s, bytes.Clone(line)})
	}
	if old := len(t.lines) - t.most; old > 0 {
		clear(t.lines[:old])
		t.lines = t.lines[old:] // moving the rest for each piece would take longer than all else
	}
}

// release shows what was kept, once all that there was has come: what follows is shown as
// it comes.
func (v *viewer) release() error {
	if v.last == nil {
		return nil
	}
	lines := v.last.lines
	v.last = nil
	for _, l := range lines {
		if err := v.write(l.stream, l.text); err != nil {
			return err
		}
	}
	return nil
}

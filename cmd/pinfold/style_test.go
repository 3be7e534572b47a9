package main

import (
	"strings"
	"testing"

	"pinfold/proto"
)

func TestLegible(t *testing.T) {
	for text, want := range map[string]string{
		"two\nlines, ä and 語":   "two\nlines, ä and 語",
		"\x1b]0;title\a\x1b[2J": `\x1b]0;title\a\x1b[2J`,
		"\u009b31m\r\xff\ufffd": "\\u009b31m\\r\\xff\ufffd",
		"turned \u202e round":   "turned \\u202e round",
	} {
		if got := legible(text); got != want {
			t.Errorf("legible(%q) = %q; want %q", text, got, want)
		}
	}
}

// TestExplainIsLegible has a path with an escape sequence come back from the daemon.
func TestExplainIsLegible(t *testing.T) {
	a := &proto.ExplainResp{Allowed: true, Profile: "\x1b[1m", Workspace: "/w\x1b[2J", Text: "yes  in which workspace?: /w\x1b[2J\n"}
	if got := explainText(a, style{}); strings.Contains(got, "\x1b") {
		t.Errorf("explainText(%+v) = %q; want no escape sequence", a, got)
	}
}

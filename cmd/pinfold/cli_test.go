package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestExitTable holds the table of exit codes in help and man page against the one
// in the code.
func TestExitTable(t *testing.T) {
	man, err := os.ReadFile("../../docs/man/pinfold.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--help"}, {"run", "--help"}} {
		help := pinfold(t, "", args...)
		if help.code != 0 || help.stderr != "" {
			t.Errorf("pinfold %v = %+v; want help on standard output", args, help)
		}
		for _, row := range exitRows() {
			if want := row.code + strings.Repeat(" ", 7-len(row.code)) + row.meaning; !strings.Contains(help.stdout, want) {
				t.Errorf("pinfold %v does not say %q", args, want)
			}
			if want := row.code + "\t" + row.meaning + "\n"; !strings.Contains(string(man), want) {
				t.Errorf("pinfold.1 does not say %q", want)
			}
		}
	}
}

// TestManNamesEveryCommand holds the man page against the commands and their flags.
func TestManNamesEveryCommand(t *testing.T) {
	man, err := os.ReadFile("../../docs/man/pinfold.1")
	if err != nil {
		t.Fatal(err)
	}
	c := &cli{}
	for _, cmd := range c.root().Commands() {
		if !strings.Contains(string(man), "pinfold "+cmd.Name()) {
			t.Errorf("pinfold.1 does not name %q", cmd.Name())
		}
		if cmd.Short == "" {
			t.Errorf("command %q has no short help", cmd.Name())
		}
	}
}

// TestUsageErrors: each names what is wrong and one thing to try.
func TestUsageErrors(t *testing.T) {
	tests := []struct {
		args []string
		want result
	}{
		{[]string{"fly"}, result{2, "", "pinfold: unknown command \"fly\" for \"pinfold\"\n  try: pinfold --help\n"}},
		{[]string{"ps", "x"}, result{2, "", "pinfold ps: unknown command \"x\" for \"pinfold ps\"\n  try: pinfold ps --help\n"}},
		{[]string{"ps", "--nope"}, result{2, "", "pinfold ps: unknown flag: --nope\n  try: pinfold ps --help\n"}},
		{[]string{"kill"}, result{2, "", "pinfold kill: requires at least 1 arg(s), only received 0\n  try: pinfold kill --help\n"}},
		{[]string{"kill", "-s", "FOO", "x"}, result{2, "", "pinfold kill: cannot use signal \"FOO\"\n  try: one of SIGTERM SIGKILL SIGINT SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGCONT SIGSTOP SIGWINCH\n"}},
		{[]string{"connect", "--data", "yaml"}, result{2, "", "pinfold connect: cannot use --data \"yaml\": want object or string\n  try: pinfold connect --help\n"}},
		{[]string{"run", "--nope"}, result{125, "", "pinfold run: unknown flag: --nope\n  try: pinfold run --help\n"}},
		{[]string{"run"}, result{125, "", "pinfold run: cannot run nothing: no command given\n  try: pinfold run -- ls -l\n"}},
		{[]string{"run", "--timeout", "soon", "--", "x"}, result{125, "", "pinfold run: invalid argument \"soon\" for \"--timeout\" flag: time: invalid duration \"soon\"\n  try: pinfold run --help\n"}},
		{[]string{"doctor", "--attack", "--limit", "soon"}, result{2, "", "pinfold doctor: invalid argument \"soon\" for \"--limit\" flag: time: invalid duration \"soon\"\n  try: pinfold doctor --help\n"}},
		{[]string{"policy", "check", "/nonexistent/p.yaml"}, result{1, "", "pinfold policy check: cannot read policy /nonexistent/p.yaml: no such file or directory\n  try: ls -l /nonexistent/p.yaml\n"}},
		{[]string{"ps", "--socket", "/nonexistent/s"}, result{1, "", "pinfold ps: cannot connect to /nonexistent/s: no such file or directory\n  try: systemctl start pinfoldd.socket, or --socket PATH\n"}},
	}
	for _, tt := range tests {
		if got := pinfold(t, "", tt.args...); got != tt.want {
			t.Errorf("pinfold %q = %+v; want %+v", tt.args, got, tt.want)
		}
	}
}

func TestVersion(t *testing.T) {
	got := pinfold(t, "", "version")
	if got.code != 0 || !strings.HasPrefix(got.stdout, "pinfold ") || !strings.HasSuffix(got.stdout, "\nprotocol 1.0\n") {
		t.Errorf("version = %+v; want the program's and the protocol's", got)
	}
}

func TestStyle(t *testing.T) {
	c := &cli{env: []string{"TERM=xterm"}}
	if s := c.style(&bytes.Buffer{}); s.on {
		t.Error("style(buffer) has colours; want none beside a terminal")
	}
	on := style{on: true}
	if got, want := on.red("x"), "\x1b[31mx\x1b[0m"; got != want {
		t.Errorf("red(x) = %q; want %q", got, want)
	}
	for _, env := range []string{"NO_COLOR=1", "TERM=dumb"} {
		c.env = []string{"TERM=xterm", env}
		tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !isTerminal(tty) {
			t.Error("isTerminal(/dev/ptmx) = false; want true")
		}
		if c.style(tty).on {
			t.Errorf("style(terminal) with %s has colours; want none", env)
		}
		if err := tty.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPlain(t *testing.T) {
	tests := []struct{ in, want string }{
		{"ls -l", "ls -l"}, {"é", "é"}, {"\x1b[2J", `"\x1b[2J"`}, {"a\nb", `"a\nb"`}, {"\xff", `"\xff"`}, {"\u202e", `"\u202e"`},
	}
	for _, tt := range tests {
		if got := plain(tt.in); got != tt.want {
			t.Errorf("plain(%q) = %s; want %s", tt.in, got, tt.want)
		}
	}
}

func TestTable(t *testing.T) {
	got := table([][]string{{"A", "LONG", "C"}, {"wide", "x", "last one"}, {"é", "", ""}})
	want := "A     LONG  C\nwide  x     last one\né           \n"
	if got != want {
		t.Errorf("table = %q; want %q", got, want)
	}
}

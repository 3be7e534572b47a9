package main

import (
	"fmt"
	"strings"
)

// Exit codes. Those of run leave the low numbers to the command.
const (
	exitOK         = 0
	exitFailed     = 1   // the answer is no, or something failed
	exitUsage      = 2   // the command line is wrong
	exitRunFailed  = 125 // run: Pinfold failed, the command did not run or its end is not known
	exitRunRefused = 126 // run: policy refuses the command
	exitRunAbsent  = 127 // run: there is no such command
	signalBase     = 128 // run: added to the number of the signal that ended the command
)

// exitRow is one line of the table in help, man page and test.
type exitRow struct {
	code, meaning string
}

func exitRows() []exitRow {
	return []exitRow{
		{"0", "success; the command's own code with run and attach"},
		{"1", "the answer is no, or something failed"},
		{"2", "the command line is wrong"},
		{"125", "run, attach: Pinfold failed, or the command line is wrong"},
		{"126", "run: policy refuses the command"},
		{"127", "run: there is no such command"},
		{"128+N", "run, attach: signal N ended the command"},
	}
}

func exitTable() string {
	var b strings.Builder
	b.WriteString("Exit codes:\n")
	for _, row := range exitRows() {
		fmt.Fprintf(&b, "  %-6s %s\n", row.code, row.meaning)
	}
	return strings.TrimRight(b.String(), "\n")
}

// failure is an error with its exit code and one command or setting that helps.
type failure struct {
	code int
	err  error
	hint string
}

func (f *failure) Error() string { return f.err.Error() }

func (f *failure) Unwrap() error { return f.err }

// fail makes a failure; hint may be empty.
func fail(code int, hint string, err error) error {
	return &failure{code: code, err: err, hint: hint}
}

// usage marks an error of the command line.
func usage(err error) error { return fail(exitUsage, "", err) }

package main

import (
	"io"
	"slices"
	"strings"
	"time"

	"pinfold/audit"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
)

// auditFilter is which records audit show prints.
type auditFilter struct {
	process, session, since string
	kinds                   []string
	uid                     int64 // −1: any
	from                    time.Time
}

func (c *cli) auditShowCommand() *cobra.Command {
	var file string
	var asJSON bool
	var f auditFilter
	cmd := &cobra.Command{
		Use:   "show [flags]",
		Short: "Print the records of a process, a session, a user, a time or a kind",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := f.check(time.Now()); err != nil {
				return err
			}
			return c.auditShow(file, f, asJSON)
		},
	}
	cmd.Flags().StringVar(&file, "file", c.defaultAudit(), "the audit `FILE`")
	cmd.Flags().StringVar(&f.process, "process", "", "only of the process `ID`")
	cmd.Flags().StringVar(&f.session, "session", "", "only of the session `ID`")
	cmd.Flags().Int64Var(&f.uid, "uid", -1, "only of the user `UID`")
	cmd.Flags().StringVar(&f.since, "since", "", "only from this `TIME` on: a date, RFC 3339, or a span such as 90m before now")
	cmd.Flags().StringArrayVar(&f.kinds, "type", nil, "only of this `KIND`, such as decision; may be repeated")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the lines as they are in the file")
	return cmd
}

// check reads what was given as text.
func (f *auditFilter) check(now time.Time) error {
	if f.uid < -1 || f.uid > int64(audit.ManyUIDs) {
		return usage(errorf("cannot use uid %d", f.uid))
	}
	for _, k := range f.kinds {
		if known := audit.Kinds(); !slices.Contains(known, audit.Kind(k)) {
			names := make([]string, 0, len(known))
			for _, k := range known {
				names = append(names, string(k))
			}
			return fail(exitUsage, "one of "+strings.Join(names, " "), errorf("cannot use type %q", k))
		}
	}
	if f.since == "" {
		return nil
	}
	if d, err := time.ParseDuration(f.since); err == nil && d >= 0 {
		f.from = now.Add(-d)
		return nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, f.since, time.Local); err == nil {
			f.from = t
			return nil
		}
	}
	return fail(exitUsage, "2026-01-31, 2026-01-31T12:00:00Z or 90m", errorf("cannot use time %q", f.since))
}

func (f *auditFilter) fits(r audit.Record) bool {
	switch {
	case f.session != "" && r.Subject.Session != f.session, f.uid >= 0 && int64(r.Subject.UID) != f.uid, r.Time.Before(f.from),
		len(f.kinds) > 0 && !slices.Contains(f.kinds, string(r.Kind)):
		return false
	case f.process == "":
		return true
	}
	var of struct {
		Process string `json:"process"`
	}
	return json.Unmarshal(r.Raw, &of) == nil && of.Process == f.process // what does not say of which process it is, is of none
}

func (c *cli) auditShow(file string, f auditFilter, asJSON bool) error {
	read := 0
	var errs []error
	for e, err := range audit.ReadLog(file) {
		if err != nil {
			c.badRecord(err)
			errs = []error{err}
			continue
		}
		read++
		if f.fits(e.Record) {
			if err := c.printRecord(e, asJSON); err != nil {
				return err
			}
		}
	}
	return auditUnread(read, errs)
}

// badRecord says on standard error what is no record; pinfold audit verify judges it.
func (c *cli) badRecord(err error) {
	_, _ = io.WriteString(c.stderr, legible(err.Error())+"\n") // nothing is left to do where standard error cannot be written
}

func (c *cli) printRecord(e audit.Entry, asJSON bool) error {
	if asJSON {
		return c.printf("%s\n", e.Raw)
	}
	return c.printf("%s\n", recordText(e.Record, c.style(c.stdout)))
}

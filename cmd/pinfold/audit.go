package main

import (
	"context"
	"encoding/hex"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"pinfold/audit"

	"github.com/spf13/cobra"
)

// maxTailLines is how many records audit tail can print.
const maxTailLines = 10000

// defaultAudit is the audit file of the service, for an ordinary user of the own daemon.
func (c *cli) defaultAudit() string { return filepath.Join(c.defaultState(), "audit.log") }

// defaultState is the state directory of the service, for an ordinary user of the own daemon.
func (c *cli) defaultState() string {
	dir := "/var/lib/pinfold"
	if os.Geteuid() != 0 {
		if home := c.getenv("HOME"); filepath.IsAbs(home) {
			dir = filepath.Join(home, ".local", "state", "pinfold")
		}
		if state := c.getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
			dir = filepath.Join(state, "pinfold")
		}
	}
	return dir
}

func (c *cli) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Verify and read the audit record",
		Long:  "Reads the audit file and those that were closed before it, which lie in the directory FILE.d beside it.",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.auditVerifyCommand(), c.auditTailCommand(), c.auditShowCommand())
	return cmd
}

func (c *cli) auditVerifyCommand() *cobra.Command {
	var file, head string
	cmd := &cobra.Command{
		Use:   "verify [flags]",
		Short: "Say whether the chain of records holds",
		Long: "Each record has the hash of the one before. Prints FILE:LINE of each place where that does not hold, and the head\n" +
			"of the chain. Exit 0 if it holds, 1 if it does not. That the end of the file was cut off, or all of it written anew,\n" +
			"shows only with --head and a head that was kept elsewhere: the daemon logs it at each start and end.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			want, err := headNamed(head)
			if err != nil {
				return err
			}
			return c.auditVerify(file, want)
		},
	}
	cmd.Flags().StringVar(&file, "file", c.defaultAudit(), "the audit `FILE`")
	cmd.Flags().StringVar(&head, "head", "", "the chain must have this `HEAD`, as an earlier verify or the daemon's log says it")
	return cmd
}

// headNamed reads SEQ:HASH, or a hash.
func headNamed(text string) (audit.Head, error) {
	if text == "" {
		return audit.Head{}, nil
	}
	var h audit.Head
	seq, sum, ok := strings.Cut(text, ":")
	if !ok {
		seq, sum = "0", text
	}
	n, err := strconv.ParseUint(seq, 10, 64)
	if b, herr := hex.DecodeString(sum); err != nil || herr != nil || len(b) != len(audit.Genesis)/2 {
		return h, fail(exitUsage, "pinfold audit verify, which prints one", errorf("cannot use head %q: it is NUMBER:HASH", text))
	}
	return audit.Head{Seq: n, SHA256: strings.ToLower(sum)}, nil
}

func (c *cli) auditVerify(file string, want audit.Head) error {
	r, err := audit.Verify(file, want)
	if err != nil {
		return fail(exitFailed, "pinfold audit verify --file FILE, as a user who may read it", err)
	}
	s := c.style(c.stdout)
	for _, p := range r.Problems {
		if err := c.printf("%s\n", s.red(legible(p.String()))); err != nil {
			return err
		}
	}
	if r.More > 0 {
		if err := c.printf("and %d more\n", r.More); err != nil {
			return err
		}
	}
	if !r.Held {
		if err := c.printf("%s\n", s.red("the chain has no record "+want.String()+": its end was cut off, or it was written anew")); err != nil {
			return err
		}
	}
	if err := c.printf("%s", verifyText(r)); err != nil {
		return err
	}
	if len(r.Problems) > 0 || !r.Held {
		return fail(exitFailed, "sed -n LINEp FILE | sha256sum, which is the prev of the line after", errorf("the chain does not hold"))
	}
	return c.printf("%s\n", s.green("the chain holds"))
}

// verifyText sums up a report.
func verifyText(r audit.Report) string {
	rows := [][]string{
		{"records", strconv.Itoa(r.Records) + " in " + strconv.Itoa(r.Files) + " files"},
		{"gaps", strconv.Itoa(r.Gaps) + ", with " + strconv.FormatInt(r.Lost, 10) + " events lost and " + strconv.FormatInt(r.TornBytes, 10) + " torn bytes set aside"},
	}
	if r.FromSeq > 1 {
		rows = append(rows, []string{"begins", "with record " + strconv.FormatUint(r.FromSeq, 10) + ": the files before it are not here"})
	}
	if len(r.Absent) > 0 {
		rows = append(rows, []string{"not here", legible(strings.Join(r.Absent, " "))})
	}
	if r.Records > 0 {
		rows = append(rows, []string{"head", r.Head.String()})
	}
	return table(rows)
}

func (c *cli) auditTailCommand() *cobra.Command {
	var file string
	var follow, asJSON bool
	var n int
	cmd := &cobra.Command{
		Use:   "tail [flags]",
		Short: "Print the last records, and with -f those that come",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n < 0 || n > maxTailLines {
				return usage(errorf("cannot print %d records: it is 0 to %d", n, maxTailLines))
			}
			return c.auditTail(cmd.Context(), file, n, follow, asJSON)
		},
	}
	cmd.Flags().StringVar(&file, "file", c.defaultAudit(), "the audit `FILE`")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with records as they are written")
	cmd.Flags().IntVarP(&n, "lines", "n", 10, "print the last `N` records")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the lines as they are in the file")
	return cmd
}

func (c *cli) auditTail(ctx context.Context, file string, n int, follow, asJSON bool) error {
	last, errs := audit.Last(file, max(n, 1))
	for _, err := range errs {
		c.badRecord(err)
	}
	var seq uint64
	if len(last) > 0 {
		seq = last[len(last)-1].Seq
	}
	for _, e := range last[max(0, len(last)-n):] {
		if err := c.printRecord(e, asJSON); err != nil {
			return err
		}
	}
	if !follow {
		return auditUnread(len(last), errs)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	for e, err := range audit.Follow(ctx, file, seq) {
		if err == nil {
			err = c.printRecord(e, asJSON)
			if err != nil {
				return err
			}
			continue
		}
		c.badRecord(err)
	}
	if ctx.Err() == nil {
		return fail(exitFailed, "pinfold audit tail --file FILE", errorf("cannot go on following %s", file))
	}
	return nil
}

// auditUnread is the error of a log of which nothing could be read.
func auditUnread(records int, errs []error) error {
	if records > 0 || len(errs) == 0 {
		return nil
	}
	return fail(exitFailed, "pinfold audit verify", errorf("no record could be read"))
}

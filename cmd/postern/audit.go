package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"postern/internal/core/record"
	"postern/internal/operator/journal"
)

func newAuditCmd() *cobra.Command {
	c := holds(&cobra.Command{
		Use:   "audit",
		Short: "Prove that the audit log is whole",
		Long: `Every line of the audit log holds the hash of the line before it, and a ledger says which files there are and how they end.
docs/reference/audit.md describes both.`,
		Example: `  postern audit verify`,
	})
	c.AddCommand(newAuditVerifyCmd())
	return c
}

func newAuditVerifyCmd() *cobra.Command {
	var at place
	c := &cobra.Command{
		Use:   "verify [DIR]",
		Short: "Check every chain of the audit log, and name the first fault of each file",
		Long: `Reads every file of the log directory (DIR, else the one that postern run writes here) and checks that no record was edited, removed,
added, moved or brought from elsewhere. A session that is running, or whose process was killed, has no end yet: that is said, and
is no fault. What follows the end of a killed session's last whole record cannot be known.

The log is not signed: who may write the directory can rewrite all of it. Keep the ledger's head, printed last, somewhere else; as long
as ledger.jsonl verifies and still holds that hash, nothing before it was rewritten.`,
		Example: `  postern audit verify
  postern audit verify /var/lib/postern/audit`,
		Annotations: ends("0    every file is whole\n1    one is damaged, or could not be read\n2    the command line was wrong"),
		Args:        takes(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			at.dir = strings.Join(args, "")
			dir, err := at.find(c.ErrOrStderr())
			if err != nil {
				return err
			}
			report, err := journal.Verify(dir)
			if err != nil {
				return noLog(dir, err)
			}
			printReport(c.OutOrStdout(), report)
			if !report.Intact() {
				return &exitError{code: 1}
			}
			return nil
		},
	}
	at.policyFlag(c)
	return c
}

// printReport writes a line for each file and one for all.
func printReport(out io.Writer, r journal.Report) {
	bad, width := 0, 0
	for _, f := range r.Files {
		width = max(width, len(f.Name))
	}
	for _, f := range r.Files {
		name := pad(f.Name, width)
		if f.Line > 0 {
			name = fmt.Sprintf("%s:%d", f.Name, f.Line)
		}
		unit := "records"
		if f.Name == record.LedgerName {
			unit = "entries"
		}
		text := fmt.Sprintf("%-8s %s  %d %s", f.State, name, f.Records, unit)
		if f.State == journal.Damaged {
			bad++
			text = fmt.Sprintf("%-8s %s  %s", f.State, name, f.Problem)
		} else if f.Problem != "" {
			text += ", " + f.Problem
		}
		fmt.Fprintln(out, record.Escape(text))
	}
	verdict := "intact"
	if bad > 0 {
		verdict = fmt.Sprintf("%d DAMAGED", bad)
	}
	fmt.Fprintf(out, "%d sessions, %d files, %d records: %s\n", r.Sessions, len(r.Files), r.Records, verdict)
	if bad == 0 && r.Entries > 0 {
		fmt.Fprintf(out, "ledger head %s (entry %d)\n", r.Head, r.Entries)
	}
}

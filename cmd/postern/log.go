package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"postern/internal/operator/config"
	"postern/internal/operator/journal"
	"postern/internal/trusted/audit"
)

// logOptions are the flags of postern log.
type logOptions struct {
	place
	session string
	since   string
	last    int
	follow  bool
	denied  bool
	json    bool
}

const (
	followEvery = 200 * time.Millisecond // how often a followed log is looked at
	followLast  = 10                     // records that -f begins with
	mostLast    = 100_000                // -n beyond this is refused: they are held in memory
)

func newLogCmd() *cobra.Command {
	var o logOptions
	c := &cobra.Command{
		Use:   "log",
		Short: "Show what sandboxes asked for, and what they were answered",
		Long: `Reads the audit log, merges all sessions by time, and prints one line a record:

  time  [session]  verdict  what was asked for  reason or rule  event  why

"allow" is a decision; the line with a status that follows it says what became of the request. "DENY" is a refusal: give its
event to postern explain. Times are local. What a sandbox sent is escaped. Colour is used on a terminal unless NO_COLOR is set.`,
		Example: `  postern log -f                    # as it happens
  postern log --denied --since 1h   # what was refused in the last hour
  postern log --session s7k2 --json # one session's records as they are stored`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.dir, err = o.find(c.ErrOrStderr()); err != nil {
				return err
			}
			return runLog(c.Context(), c.OutOrStdout(), o, newPrinter(c.OutOrStdout(), time.Now(), time.Local))
		},
	}
	f := c.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on as records are written")
	f.BoolVar(&o.denied, "denied", false, "only what was refused")
	f.StringVar(&o.session, "session", "", "only the session whose `ID` begins so")
	f.StringVar(&o.since, "since", "", "only what is younger than `DUR`: 90s, 15m, 8h, 7d")
	f.BoolVar(&o.json, "json", false, "print the stored lines")
	f.IntVarP(&o.last, "last", "n", 0, "only the last `N` records (default: all, or 10 with -f)")
	o.flags(c)
	return c
}

// place is where a log is looked for: in a directory, else where a policy says, else where it is by default.
type place struct{ dir, config string }

func (p *place) flags(c *cobra.Command) {
	c.Flags().StringVar(&p.dir, "dir", "", "read the log in `DIR`")
	p.policyFlag(c)
}

func (p *place) policyFlag(c *cobra.Command) {
	c.Flags().StringVar(&p.config, "config", "", "read the log that the policy `FILE` names (default: the policy that postern run would use here)")
}

// find is the log's directory. A policy that postern run would not use here does not decide; that is said, and the default is read.
func (p place) find(stderr io.Writer) (string, error) {
	if p.dir != "" {
		return p.dir, nil
	}
	work, err := os.Getwd()
	if err != nil && p.config == "" {
		return audit.DefaultDir(os.Getenv, os.Geteuid())
	}
	f, err := config.Open(p.config, work)
	switch {
	case err == nil && f.AuditDir() != "":
		return f.AuditDir(), nil
	case err != nil && p.config != "":
		return "", err
	}
	dir, missing := audit.DefaultDir(os.Getenv, os.Geteuid())
	if missing == nil && err != nil && !errors.Is(err, config.ErrNotFound) {
		why, _, _ := strings.Cut(err.Error(), "\n")
		fmt.Fprintf(stderr, "postern: %s; this is the log in %s\n", why, visible(dir))
	}
	return dir, missing
}

// noLog says what a missing directory means.
func noLog(dir string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no audit log in %s\n  hint: postern run writes the first one; --dir names another place", visible(dir))
	}
	return err
}

// parseSince reads a duration, in days too.
func parseSince(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, usage(fmt.Sprintf("--since %q: not a duration", s), "90s, 15m, 8h or 7d")
	}
	return d, nil
}

func runLog(ctx context.Context, out io.Writer, o logOptions, p *printer) error {
	q := journal.Query{Session: o.session}
	if o.since != "" {
		d, err := parseSince(o.since)
		if err != nil {
			return err
		}
		q.Since = p.now.Add(-d)
	}
	if o.last < 0 || o.last > mostLast {
		return usage(fmt.Sprintf("-n %d: not a number of records", o.last), fmt.Sprintf("a number up to %d", mostLast))
	}
	if o.follow && o.last == 0 {
		o.last = followLast
	}
	r, err := journal.NewReader(o.dir, q)
	if err != nil {
		return noLog(o.dir, err)
	}
	defer r.Close()
	p.sessions = o.session == ""
	v := &view{out: bufio.NewWriter(out), printer: p, options: o}
	if err := v.begin(r); err != nil || !o.follow {
		return err
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := errors.Join(r.Next(v.show), v.out.Flush()); err != nil {
			return err
		}
	}
}

// view prints the records that the options ask for.
type view struct {
	out     *bufio.Writer
	printer *printer
	options logOptions
}

// begin prints what is there, or the last of it.
func (v *view) begin(r *journal.Reader) error {
	if v.options.last == 0 {
		return errors.Join(r.Next(v.show), v.out.Flush())
	}
	ring, next := make([]journal.Entry, 0, min(v.options.last, 1024)), 0
	err := r.Next(func(e journal.Entry) error {
		if !v.wanted(e) {
			return nil
		}
		e.Line = bytes.Clone(e.Line)
		if len(ring) < v.options.last {
			ring = append(ring, e)
			return nil
		}
		ring[next] = e
		next = (next + 1) % len(ring)
		return nil
	})
	if err != nil {
		return err
	}
	for i := range ring {
		if err := v.show(ring[(next+i)%len(ring)]); err != nil {
			return err
		}
	}
	return v.out.Flush()
}

func (v *view) wanted(e journal.Entry) bool {
	return e.Err != nil || !v.options.denied || e.Verdict == "deny"
}

func (v *view) show(e journal.Entry) error {
	if !v.wanted(e) {
		return nil
	}
	if e.Err == nil && v.options.json {
		_, err := v.out.Write(append(e.Line, '\n'))
		return err
	}
	if e.Err != nil {
		fmt.Fprintf(v.out, "%s: a line that is no record: run `postern audit verify`\n", visible(e.File))
		return nil
	}
	return v.printer.print(v.out, &e.Stored)
}

// onTerminal reports whether colour may be used.
func onTerminal(out io.Writer, getenv func(string) string) bool {
	f, ok := out.(*os.File)
	return ok && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"postern/internal/core/record"
	"postern/internal/daemon"
	"postern/internal/sandbox/inspect"
)

func newDoctorCmd() *cobra.Command {
	var o daemon.DoctorOptions
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Try the sandbox's walls on this machine, and say which hold",
		Long: `Makes a sandbox as postern run would in this directory, with the same policy, and runs an inspector in it that tries
the walls from inside. Meanwhile servers of the host listen for what must not arrive. Nothing is left behind but the
session's audit records; no credential is read, and nothing is sent to the world.

Each protection is held, NOT HELD, or not available where this machine has nothing to hold. A protection that is not
held says what that means and how to mend it. docs/reference/doctor.md lists all of them.`,
		Example: `  postern doctor
  postern doctor --profile ci --json | jq '.checks[] | select(.status != "held")'`,
		Annotations: ends("0    every essential protection is held, or not available\n1    one is not held, or doctor could not examine it\n2    the command line was wrong"),
		Args:        takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := daemon.Doctor(c.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(c.OutOrStdout())
				enc.SetIndent("", "  ")
				enc.SetEscapeHTML(false)
				err = enc.Encode(r)
			} else {
				printFindings(c.OutOrStdout(), r, &printer{colour: onTerminal(c.OutOrStdout(), os.Getenv)})
			}
			if err == nil && !r.OK {
				err = &exitError{code: 1}
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Config, "config", "", "policy `FILE`; naming it is trusting it (default: as postern run finds it)")
	profileFlag(c, &o.Profile)
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

const (
	titleWidth   = 62  // columns of what a check is about
	evidenceMost = 100 // runes of the evidence for what holds; --json has all of it
)

// printFindings writes the report for people: a line for each check, and below those that do not hold what it means.
func printFindings(out io.Writer, r *daemon.Report, p *printer) {
	policy := r.Policy
	if policy == "" {
		policy = "no policy"
	}
	fmt.Fprintf(out, "postern doctor: profile %s of %s, uid %d, Linux %s\n", record.Escape(r.Profile), record.Escape(policy), r.UID, record.Escape(r.Kernel))
	group, unmade := "", 0
	for _, e := range r.Checks {
		if !e.Made() {
			unmade++
			continue
		}
		if g := e.Group(); g != group {
			group = g
			fmt.Fprintf(out, "\n%s\n", p.paint(grey, group))
		}
		printEntry(out, e, p)
	}
	if unmade > 0 {
		fmt.Fprintf(out, "\nchecks that need a sandbox and were not made: %d\n", unmade)
	}
	printList(out, "relaxations of profile "+r.Profile, r.Relaxations, p)
	printList(out, "warnings", r.Warnings, p)
	printList(out, "missing on this machine", r.Notes, p)
	fmt.Fprintf(out, "\ndoctor: %d held, %d not held, %d not available\n", r.Held, r.NotHeld, r.NotAvailable)
}

func printEntry(out io.Writer, e daemon.Entry, p *printer) {
	word, colour, most := "NOT HELD", red, math.MaxInt
	switch e.Status {
	case inspect.Held:
		word, colour, most = "held", green, evidenceMost
	case inspect.Unavailable:
		word, colour = "not available", yellow
	}
	line := fmt.Sprintf("  %s  %s", p.paint(colour, pad(word, 13)), record.Escape(e.Title))
	if e.Evidence != "" {
		line = fmt.Sprintf("  %s  %s  %s", p.paint(colour, pad(word, 13)), pad(record.Escape(e.Title), titleWidth), p.paint(grey, shorten(record.Escape(e.Evidence), most)))
	}
	fmt.Fprintln(out, line)
	if e.Status == inspect.Held {
		return
	}
	if e.Status == inspect.NotHeld && e.Means != "" {
		fmt.Fprintf(out, "%17s%s\n", "", record.Escape(e.Means))
	}
	for i, l := range strings.Split(strings.TrimSpace(e.Remedy), "\n") {
		lead := "  "
		if i == 0 {
			lead = "→ "
		}
		if l != "" || i > 0 {
			fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("%17s%s%s", "", lead, record.Escape(l)), " "))
		}
	}
}

func printList(out io.Writer, title string, list []string, p *printer) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s\n", p.paint(grey, record.Escape(title)))
	for _, l := range list {
		fmt.Fprintf(out, "  %s\n", record.Escape(l))
	}
}

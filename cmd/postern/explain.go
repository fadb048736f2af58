package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"postern/internal/core/gate"
	"postern/internal/core/git"
	"postern/internal/core/policy"
	"postern/internal/core/record"
	"postern/internal/operator/config"
	"postern/internal/operator/journal"
)

func newExplainCmd() *cobra.Command {
	var at place
	c := &cobra.Command{
		Use:   "explain EVENT",
		Short: "Say why a request was refused or allowed, and what line would allow it",
		Long: `EVENT is the id that a refused client was shown and that postern log prints; its first few characters are enough. Prints what was
asked for, which rule decided or that none did, what that means, and for a refusal the lines for postern.yaml that would allow
exactly this. Whether they should stand there is yours to decide.`,
		Example: `  postern explain e3k9x0b2m4n6p8q1r
  postern explain e3k9`,
		Args: takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			d, err := at.find(c.ErrOrStderr())
			if err != nil {
				return err
			}
			records, err := findEvent(d, args[0])
			if err != nil {
				return err
			}
			explainEvent(c.OutOrStdout(), records, time.Local)
			return nil
		},
	}
	at.flags(c)
	return c
}

const (
	shortestEvent = 4 // characters that are enough to look for
	mostRecords   = 16
)

// findEvent reads the records of one event: its decision and its outcome.
func findEvent(dir, id string) ([]record.Stored, error) {
	if len(id) < shortestEvent || id[0] != 'e' || strings.ContainsFunc(id, notOfAnID) {
		return nil, usage("an event begins with e and has sixteen more letters and digits", "postern log shows them")
	}
	var found []record.Stored
	var events []string
	err := journal.Read(dir, journal.Query{}, func(e journal.Entry) error {
		name := e.Event.String()
		if e.Err != nil || !strings.HasPrefix(name, id) {
			return nil
		}
		if !slices.Contains(events, name) && len(events) < mostRecords {
			events = append(events, name)
		}
		if len(found) < mostRecords {
			found = append(found, e.Stored)
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, noLog(dir, err)
	case len(events) > 1:
		return nil, fmt.Errorf("several events begin with %s: %s", id, strings.Join(events, ", "))
	case len(found) == 0:
		return nil, fmt.Errorf("no event %s in %s\n  hint: of many equal refusals within a second only the first hundred and the last are kept with their ids; postern log shows their count",
			id, visible(dir))
	}
	return found, nil
}

func notOfAnID(r rune) bool { return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z') }

func explainEvent(out io.Writer, records []record.Stored, zone *time.Location) {
	for i := range records {
		r := &records[i]
		at := r.Time.In(zone).Format("2006-01-02 15:04:05 MST")
		switch {
		case r.Kind == record.Outcome:
			explainOutcome(out, &r.Record)
		case r.Kind == record.Decision && r.Verdict == "allow":
			fmt.Fprintf(out, "%s was allowed at %s\n\n", r.Event, at)
			explainDecision(out, &r.Record)
		case r.Kind == record.Decision:
			fmt.Fprintf(out, "%s was refused at %s\n\n", r.Event, at)
			explainDecision(out, &r.Record)
			suggest(out, &r.Record)
		default:
			fmt.Fprintf(out, "%s is a note of %s\n\n", r.Event, at)
			row(out, "note", r.Detail)
			row(out, "session", r.Session.String())
		}
	}
}

// row writes one labelled line; the value may hold what a sandbox sent.
func row(out io.Writer, label, value string) {
	if value != "" {
		fmt.Fprintf(out, "  %-10s  %s\n", label, record.Escape(value))
	}
}

func explainDecision(out io.Writer, r *record.Record) {
	info := r.Reason.Info()
	row(out, "asked", asked(r))
	if r.Git != "" {
		row(out, "request", r.Method+" "+urlOf(r))
	}
	row(out, "reason", string(r.Reason)+": "+info.Meaning)
	row(out, "detail", r.Detail)
	if r.Rule == "" && strings.HasSuffix(string(r.Reason), ".not_listed") {
		row(out, "rule", "none: what no rule allows is refused")
	}
	row(out, "rule", r.Rule)
	if r.Credential != "" {
		row(out, "credential", r.Credential+" (fingerprint "+r.Receipt+")")
	}
	if r.Count > 1 {
		row(out, "count", fmt.Sprintf("stands for %d refusals like this", r.Count))
	}
	row(out, "session", r.Session.String())
	if r.Verdict != "allow" {
		row(out, "remedy", info.Remedy)
	}
}

func explainOutcome(out io.Writer, r *record.Record) {
	text := fmt.Sprintf("%d bytes up, %d bytes down, in %s", r.BytesIn, r.BytesOut, durationText(r.Duration))
	if r.Status != 0 {
		text = fmt.Sprintf("status %d, ", r.Status) + text
	}
	row(out, "outcome", text)
	if failed(r) {
		info := r.Reason.Info()
		row(out, "failure", string(r.Reason)+": "+info.Meaning)
		row(out, "detail", r.Detail)
		row(out, "remedy", info.Remedy)
	}
}

// suggest writes the lines that would allow what was refused, when there are any.
func suggest(out io.Writer, r *record.Record) {
	a, ok := actionOf(r)
	if !ok {
		return
	}
	section, line := config.Suggest(a, policy.Decision{Reason: r.Reason})
	if line == "" {
		return
	}
	fmt.Fprintf(out, "\nThese lines in the session's profile of postern.yaml would allow it:\n\n    %s:\n      %s\n", section, line)
}

// actionOf reads back what was asked for; false when it never was in canonical form.
func actionOf(r *record.Record) (policy.Action, bool) {
	host, err := gate.ParseHost(r.Host)
	if err != nil {
		return policy.Action{}, false
	}
	a := policy.Action{Kind: policy.Connect, Host: host, Port: gate.Port(r.Port), Scheme: gate.HTTPS}
	if r.Scheme == gate.HTTP.String() {
		a.Scheme = gate.HTTP
	}
	if r.Action != "request" {
		return a, true
	}
	if a.Method, err = gate.ParseMethod(r.Method); err != nil {
		return policy.Action{}, false
	}
	if a.Path, err = gate.ParsePath(r.Path); err != nil && !strings.HasSuffix(r.Path, "…") { // a path that was cut goes without
		return policy.Action{}, false
	}
	a.Kind, a.Upgrade = policy.Request, r.Reason == gate.ReasonUpgradeNotListed
	for op := git.DiscoverFetch; op <= git.Push; op++ {
		if op.String() == r.Git {
			a.Git.Op = op
		}
	}
	if a.Git.Op != git.NotGit {
		if a.Git.Repo, err = gate.ParseRepo(r.Repo); err != nil {
			return policy.Action{}, false
		}
	}
	return a, true
}

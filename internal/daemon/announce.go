package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"postern/internal/core/gate"
	"postern/internal/core/record"
	"postern/internal/operator/config"
)

// lookForCredentials finds out before the start what would else be found out by the first request: a file that is missing, or that the
// broker will refuse. It reads none, and runs no command.
func (r *run) lookForCredentials(context.Context) error {
	names := slices.SortedFunc(maps.Keys(r.profile.Credentials), func(a, b gate.CredentialName) int { return strings.Compare(a.String(), b.String()) })
	var errs []error
	for _, name := range names {
		c := r.profile.Credentials[name]
		if c.Source.File == "" {
			continue
		}
		if problem, remedy := sourceProblem(c.Source, os.Geteuid()); problem != "" {
			errs = append(errs, fmt.Errorf("credential %s: %s\n  hint: %s", name, problem, remedy))
		}
	}
	return errors.Join(errs...)
}

// announce names everything that is weaker than usual, once, before the command runs. The audit log has it in full; a person is told
// in a line for each kind.
func (r *run) announce(context.Context) error {
	machine := slices.Concat(r.process.Notes(), r.set.Notes)
	all := slices.Clone(machine)
	for _, given := range r.profile.Relaxations {
		all = append(all, given.String())
	}
	for _, n := range append(all, r.profile.Warnings...) {
		if err := r.audit.Append(&record.Record{Kind: record.Notice, Event: newEvent(), Session: r.id, Detail: n}); err != nil {
			return err
		}
	}
	for _, n := range append(machine, relaxed(r.profile.Relaxations)...) {
		r.say(n)
	}
	if n := len(r.profile.Warnings); n > 0 {
		r.say(fmt.Sprintf("warnings about the policy: %d; postern policy check %s", n, r.sources[0]))
	}
	return nil
}

// relaxed has a line for each kind of relaxation, with the hosts that it is for.
func relaxed(all []config.Relaxation) (lines []string) {
	var keys []string
	hosts := map[string][]string{}
	for _, r := range all {
		if hosts[r.Key] == nil {
			keys = append(keys, r.Key)
		}
		if host := strings.TrimSuffix(r.Host, ":443"); !slices.Contains(hosts[r.Key], host) {
			hosts[r.Key] = append(hosts[r.Key], host)
		}
	}
	for _, k := range keys {
		lines = append(lines, "relaxed: "+k+" ("+strings.Join(hosts[k], ", ")+")")
	}
	return lines
}

// whichLog is the flag that leads postern log to this session's log where it would look into another.
func (r *run) whichLog() string {
	if r.Config == "" || r.profile.Audit.Dir == "" {
		return ""
	}
	return " --config " + r.Config
}

func (r *run) say(text string) {
	if !r.Quiet {
		fmt.Fprintln(r.Stderr, "postern:", text)
	}
}

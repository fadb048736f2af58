package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"postern/internal/core/gate"
	"postern/internal/core/record"
)

// printer writes records as lines for people.
type printer struct {
	colour   bool
	sessions bool // name the session on every line
	zone     *time.Location
	now      time.Time
	day      string // of the last line
}

const (
	whatWidth = 44 // columns of what was asked for, when it is not longer
	whyWidth  = 18 // columns of the reason or the rule
	whatMost  = 100
)

// SGR colours; 0 is none.
const (
	red    = 31
	green  = 32
	yellow = 33
	grey   = 90
)

func newPrinter(out io.Writer, now time.Time, zone *time.Location) *printer {
	return &printer{colour: onTerminal(out, os.Getenv), zone: zone, now: now, day: now.In(zone).Format(time.DateOnly)}
}

// print writes one line, and before it the day when it is another than the line before had.
func (p *printer) print(out io.Writer, r *record.Stored) error {
	at := r.Time.In(p.zone)
	if day := at.Format(time.DateOnly); day != p.day {
		p.day = day
		fmt.Fprintln(out, p.paint(grey, "── "+day+" "+at.Weekday().String()[:3]+" ──"))
	}
	var b strings.Builder
	b.WriteString(p.paint(grey, at.Format(time.TimeOnly)) + " ")
	if p.sessions {
		b.WriteString(p.paint(grey, (r.Session.String() + "      ")[:6]) + " ")
	}
	verdict, colour := verdictOf(&r.Record)
	b.WriteString(p.paint(colour, pad(verdict, 5)) + " ")
	switch r.Kind {
	case record.SessionStart, record.SessionEnd:
		b.WriteString("session " + r.Session.String() + "  " + record.Escape(r.Detail))
	case record.Notice:
		b.WriteString(record.Escape(r.Detail))
	default:
		fmt.Fprintf(&b, "%s  %s  %s  %s", pad(shorten(record.Escape(asked(&r.Record)), whatMost), whatWidth), pad(record.Escape(why(&r.Record)), whyWidth),
			p.paint(grey, r.Event.String()), record.Escape(told(&r.Record)))
	}
	_, err := fmt.Fprintln(out, strings.TrimRight(b.String(), " "))
	return err
}

func (p *printer) paint(colour int, s string) string {
	if !p.colour || colour == 0 {
		return s
	}
	return "\x1b[" + strconv.Itoa(colour) + "m" + s + "\x1b[0m"
}

// verdictOf is the first word of a line, and its colour.
func verdictOf(r *record.Record) (string, int) {
	switch r.Kind {
	case record.Decision:
		if r.Verdict == "deny" {
			return "DENY", red
		}
		return r.Verdict, green
	case record.Outcome:
		if failed(r) {
			return "FAIL", yellow
		}
		if r.Status != 0 {
			return strconv.Itoa(r.Status), 0
		}
		return "done", 0
	case record.SessionStart:
		return "START", 0
	case record.SessionEnd:
		return "END", 0
	}
	return "note", yellow
}

// failed reports whether an allowed request came to nothing.
func failed(r *record.Record) bool {
	return r.Kind == record.Outcome && r.Reason != gate.ReasonAllowed && r.Reason != gate.ReasonNone
}

// asked is what the sandbox wanted, raw.
func asked(r *record.Record) string {
	switch {
	case r.Git != "":
		return "git " + r.Git + " " + r.Repo
	case r.Action == "request":
		return r.Method + " " + urlOf(r)
	}
	return r.Action + " " + hostPort(r, true)
}

func urlOf(r *record.Record) string {
	usual := r.Scheme == "https" && r.Port == 443 || r.Scheme == "http" && r.Port == 80
	return r.Scheme + "://" + hostPort(r, !usual) + r.Path
}

func hostPort(r *record.Record, port bool) string {
	if !port || r.Port == 0 {
		return r.Host
	}
	if strings.Contains(r.Host, ":") {
		return "[" + r.Host + "]:" + strconv.Itoa(int(r.Port))
	}
	return r.Host + ":" + strconv.Itoa(int(r.Port))
}

// why is the reason of a refusal or failure, or the rule that allowed.
func why(r *record.Record) string {
	switch {
	case r.Kind == record.Decision && r.Verdict == "allow":
		return r.Rule
	case r.Kind == record.Decision || failed(r):
		return string(r.Reason)
	}
	return amounts(r)
}

// told is the last column: why, in words.
func told(r *record.Record) string {
	s := r.Detail
	switch {
	case s != "":
	case r.Verdict == "deny" || failed(r):
		s = r.Reason.Info().Meaning
	case r.Kind == record.Decision && r.Credential != "":
		s = "with credential " + r.Credential
	}
	if r.Count > 1 {
		s = "×" + strconv.FormatInt(r.Count, 10) + "  " + s
	}
	return s
}

// amounts is what travelled and how long it took.
func amounts(r *record.Record) string {
	return "↑" + sizeText(r.BytesIn) + " ↓" + sizeText(r.BytesOut) + " " + durationText(r.Duration)
}

func sizeText(n int64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return strconv.FormatInt(n, 10) + "B"
	}
	f, u := float64(n)/1000, 0
	for f >= 999.5 && u < len(units)-1 {
		f, u = f/1000, u+1
	}
	if f < 9.95 {
		return strconv.FormatFloat(f, 'f', 1, 64) + units[u:u+1] + "B"
	}
	return strconv.FormatFloat(f, 'f', 0, 64) + units[u:u+1] + "B"
}

func durationText(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func pad(s string, width int) string {
	if n := utf8.RuneCountInString(s); n < width {
		return s + strings.Repeat(" ", width-n)
	}
	return s
}

// shorten cuts a text that was escaped to at most so many runes; postern explain shows all of it.
func shorten(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	n := 0
	for i := range s {
		if n++; n == most {
			return s[:i] + "…"
		}
	}
	return s
}

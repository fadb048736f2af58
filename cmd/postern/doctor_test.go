package main

import (
	"bytes"
	"strings"
	"testing"

	"postern/internal/daemon"
	"postern/internal/sandbox/inspect"
)

func examined() *daemon.Report {
	return &daemon.Report{
		Version: 1, Kernel: "6.12.0", UID: 1000, Policy: "/w/postern.yaml", Profile: "ci", Held: 1, NotHeld: 1, NotAvailable: 2,
		Checks: []daemon.Entry{
			{ID: "network.links", Title: "lo is the only interface", Essential: true, Status: inspect.Held, Evidence: strings.Repeat("x", 300)},
			{ID: "machine.apparmor", Title: "permitted", Essential: true, Status: inspect.NotHeld, Evidence: "refused \x1b[2J", Means: "nothing works", Remedy: "write this:\n\nprofile {\n  userns,\n}"},
			{ID: "limits.cgroup", Title: "bounded", Status: inspect.Unavailable, Evidence: "none", Means: "it may use all", Remedy: "delegate"},
			{ID: "files.home", Title: "home is empty", Status: inspect.Unavailable, Evidence: "the sandbox did not start"},
		},
		Relaxations: []string{"postern.yaml:3: tls: tunnel"}, Notes: []string{"no cgroup"},
	}
}

func TestReportIsForPeople(t *testing.T) {
	var out bytes.Buffer
	printFindings(&out, examined(), &printer{})
	want := "postern doctor: profile ci of /w/postern.yaml, uid 1000, Linux 6.12.0\n" +
		"\nnetwork\n" +
		"  held           lo is the only interface                                        " + strings.Repeat("x", 99) + "…\n" +
		"\nmachine\n" +
		"  NOT HELD       permitted                                                       refused \\x1b[2J\n" +
		"                 nothing works\n" +
		"                 → write this:\n" +
		"\n" +
		"                   profile {\n" +
		"                     userns,\n" +
		"                   }\n" +
		"\nlimits\n" +
		"  not available  bounded                                                         none\n" +
		"                 → delegate\n" +
		"\nchecks that need a sandbox and were not made: 1\n" +
		"\nrelaxations of profile ci\n  postern.yaml:3: tls: tunnel\n" +
		"\nmissing on this machine\n  no cgroup\n" +
		"\ndoctor: 1 held, 1 not held, 2 not available\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestReportIsInColourWhereAsked(t *testing.T) {
	var out bytes.Buffer
	printFindings(&out, examined(), &printer{colour: true})
	for _, want := range []string{"\x1b[31mNOT HELD     \x1b[0m", "\x1b[32mheld         \x1b[0m", "\x1b[33mnot available\x1b[0m"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not there:\n%q", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b[2J") {
		t.Error("the evidence reached the terminal unescaped")
	}
}

func TestDoctorSaysHowItEnds(t *testing.T) {
	var out bytes.Buffer
	if code := execute([]string{"doctor", "--help"}, &out, &out); code != 0 || !strings.Contains(out.String(), "Exit status:") {
		t.Errorf("exit %d:\n%s", code, out.String())
	}
	out.Reset()
	if code := execute([]string{"doctor", "now"}, &out, &out); code == 0 {
		t.Error("an argument is not refused")
	}
}

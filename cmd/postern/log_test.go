package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"postern/internal/core/gate"
	"postern/internal/core/policy"
	"postern/internal/core/record"
	"postern/internal/operator/config"
	"postern/internal/trusted/audit"
)

// diary is a log directory whose clock and ids are fixed, so that what is printed of it can be compared.
type diary struct {
	t    *testing.T
	dir  string
	at   time.Time
	logs map[byte]*audit.Log
	n    byte
}

func newDiary(t *testing.T) *diary {
	t.Helper()
	d := &diary{t: t, dir: filepath.Join(t.TempDir(), "audit"), at: time.Date(2026, 11, 21, 14, 3, 0, 0, time.UTC), logs: map[byte]*audit.Log{}}
	t.Cleanup(func() {
		for _, l := range d.logs {
			_ = l.Close()
		}
	})
	return d
}

func (d *diary) now() time.Time {
	d.at = d.at.Add(time.Second)
	return d.at
}

func (d *diary) open(session byte) {
	d.t.Helper()
	l, err := audit.Open(audit.Config{Dir: d.dir, Session: gate.NewSessionID([10]byte{session}), Detail: "run claude", Now: d.now})
	if err != nil {
		d.t.Fatal(err)
	}
	d.logs[session] = l
}

func (d *diary) write(session byte, r record.Record) string {
	d.t.Helper()
	if r.Event.IsZero() && r.Kind != record.Notice {
		d.n++
		r.Event = gate.NewEventID([10]byte{d.n, 0xff})
	}
	if err := d.logs[session].Commit(d.t.Context(), &r); err != nil {
		d.t.Fatal(err)
	}
	return r.Event.String()
}

func (d *diary) close(session byte) {
	d.t.Helper()
	if err := d.logs[session].Close(); err != nil {
		d.t.Fatal(err)
	}
	delete(d.logs, session)
}

func request(method, host, path string) record.Record {
	return record.Record{Kind: record.Decision, Verdict: "deny", Action: "request", Scheme: "https", Host: host, Port: 443, Method: method, Path: path}
}

func because(r record.Record, why gate.Reason) record.Record {
	r.Reason = why
	return r
}

// day writes what a day of two sessions looks like, and returns the event of the refused POST.
func (d *diary) day() string {
	d.open(1)
	d.write(1, record.Record{Kind: record.Notice, Detail: "tls: tunnel for git.example: its bytes are not read"})
	ok := request("POST", "api.anthropic.com", "/v1/messages")
	ok.Verdict, ok.Reason, ok.Rule, ok.Credential, ok.Receipt = "allow", gate.ReasonAllowed, "preset claude:14", "claude", "0badf00d"
	ok.Event = gate.NewEventID([10]byte{200})
	d.write(1, ok)
	denied := d.write(1, because(request("POST", "evil.example", "/v1"), gate.ReasonHostNotListed))
	d.open(2)
	ok.Kind, ok.Verdict, ok.Rule = record.Outcome, "", ""
	ok.Status, ok.BytesIn, ok.BytesOut, ok.Duration = 200, 1234, 56789, 812*time.Millisecond
	d.write(1, ok)
	push := because(request("GET", "github.com", "/acme/widgets/info/refs"), gate.ReasonPushNotListed)
	push.Git, push.Repo = "discover-push", "github.com/acme/widgets"
	d.write(2, push)
	d.write(2, because(record.Record{Kind: record.Decision, Verdict: "deny", Action: "connect", Scheme: "https", Host: "192.0.2.7", Port: 22}, gate.ReasonSSH))
	d.write(2, because(request("G\x1b[2JT", "a\u202eb\u009b.example", "/\xff\r\nx"), gate.ReasonMethodUnknown))
	flood := because(request("GET", "telemetry.example", "/t"), gate.ReasonHostNotListed)
	flood.Count = 4711
	d.write(2, flood)
	bad := request("GET", "api.example", "/")
	bad.Kind, bad.Verdict, bad.Reason, bad.Detail, bad.Status = record.Outcome, "", gate.ReasonDial, "connection refused", 502
	d.write(2, bad)
	d.at = d.at.Add(24 * time.Hour)
	d.close(1)
	d.close(2)
	return denied
}

func (d *diary) log(o logOptions, colour bool) string {
	d.t.Helper()
	var out bytes.Buffer
	o.dir = d.dir
	p := newPrinter(&out, d.at, time.UTC)
	p.colour = colour
	if err := runLog(d.t.Context(), &out, o, p); err != nil {
		d.t.Fatal(err)
	}
	return out.String()
}

func wantText(t *testing.T, got, want string) {
	t.Helper()
	if want = strings.TrimPrefix(want, "\n"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestLogPrintsADayOfTwoSessions(t *testing.T) {
	d := newDiary(t)
	d.day()
	wantText(t, d.log(logOptions{}, false), `
── 2026-11-21 Sat ──
14:03:03 s04000 START session s0400000000000000  run claude
14:03:04 s04000 note  tls: tunnel for git.example: its bytes are not read
14:03:05 s04000 allow POST https://api.anthropic.com/v1/messages    preset claude:14    es000000000000000  with credential claude
14:03:06 s04000 DENY  POST https://evil.example/v1                  host.not_listed     e07zg000000000000  no rule allows this host
14:03:09 s08000 START session s0800000000000000  run claude
14:03:10 s04000 200   POST https://api.anthropic.com/v1/messages    ↑1.2kB ↓57kB 812ms  es000000000000000
14:03:11 s08000 DENY  git discover-push github.com/acme/widgets     push.not_listed     e0bzg000000000000  this session may fetch from this repository but not push to it
14:03:12 s08000 DENY  connect 192.0.2.7:22                          protocol.ssh        e0fzg000000000000  SSH does not leave the sandbox
14:03:13 s08000 DENY  G\x1b[2JT https://a\u202eb\u009b.example/\xff\x0d\x0ax  method.unknown      e0kzg000000000000  the method is not one that can be forwarded
14:03:14 s08000 DENY  GET https://telemetry.example/t               host.not_listed     e0qzg000000000000  ×4711  no rule allows this host
14:03:15 s08000 FAIL  GET https://api.example/                      upstream.unreachable  e0vzg000000000000  connection refused
── 2026-11-22 Sun ──
14:03:16 s04000 END   session s0400000000000000
14:03:18 s08000 END   session s0800000000000000
`)
}

func TestLogOfOneSessionNamesItOnce(t *testing.T) {
	d := newDiary(t)
	d.day()
	wantText(t, d.log(logOptions{session: gate.NewSessionID([10]byte{1}).String(), denied: true}, false), `
── 2026-11-21 Sat ──
14:03:06 DENY  POST https://evil.example/v1                  host.not_listed     e07zg000000000000  no rule allows this host
`)
}

func TestLogShowsTheLast(t *testing.T) {
	d := newDiary(t)
	d.day()
	all := strings.Split(d.log(logOptions{denied: true}, false), "\n")
	got := strings.Split(d.log(logOptions{denied: true, last: 2}, false), "\n")
	if len(got) != 4 || got[1] != all[len(all)-3] || got[2] != all[len(all)-2] {
		t.Errorf("%q", got)
	}
}

func TestLogSinceLeavesOutWhatIsOlder(t *testing.T) {
	d := newDiary(t)
	d.day()
	names, err := filepath.Glob(filepath.Join(d.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names { // the files are as young as their last record says
		if err := os.Chtimes(n, d.at, d.at); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.log(logOptions{since: "1h"}, false); strings.Count(got, "\n") != 2 || !strings.Contains(got, "END") {
		t.Errorf("%s", got)
	}
	if got := d.log(logOptions{since: "2d"}, false); strings.Count(got, "\n") < 12 {
		t.Errorf("%s", got)
	}
	for _, bad := range []string{"yesterday", "-1h", "1", "0s"} {
		if err := runLog(t.Context(), io.Discard, logOptions{place: place{dir: d.dir}, since: bad}, newPrinter(io.Discard, d.at, time.UTC)); err == nil {
			t.Errorf("--since %s was accepted", bad)
		}
	}
}

func TestLogNeverPassesWhatMovesATerminal(t *testing.T) {
	d := newDiary(t)
	d.day()
	for _, o := range []logOptions{{}, {json: true}} {
		if got := d.log(o, false); strings.ContainsFunc(got, func(r rune) bool {
			return r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x200b && r <= 0x202e || r == 0xfffd)
		}) {
			t.Errorf("%q", got)
		}
	}
	if got := d.log(logOptions{denied: true}, true); !strings.Contains(got, "\x1b[31mDENY \x1b[0m") {
		t.Error("no colour")
	}
}

func TestLogAsJSONPrintsTheStoredLines(t *testing.T) {
	d := newDiary(t)
	d.day()
	n := 0
	for line := range strings.Lines(d.log(logOptions{json: true}, false)) {
		s, err := record.Parse([]byte(strings.TrimSuffix(line, "\n")))
		if err != nil || record.Sum([]byte(strings.TrimSuffix(line, "\n"))) != s.Hash {
			t.Fatalf("%v: %s", err, line)
		}
		n++
	}
	if n != 13 {
		t.Errorf("%d lines", n)
	}
}

func TestNoColourWithoutATerminal(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if onTerminal(f, func(string) string { return "" }) || onTerminal(&bytes.Buffer{}, func(string) string { return "" }) {
		t.Error("a file is no terminal")
	}
}

func TestLogFollowsNewRecordsSessionsAndSegments(t *testing.T) {
	d := newDiary(t)
	d.open(1)
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	p := newPrinter(w, d.at, time.UTC)
	go func() {
		err := runLog(ctx, w, logOptions{place: place{dir: d.dir}, follow: true}, p)
		done <- errors.Join(err, w.Close())
	}()
	lines := bufio.NewScanner(r)
	next := func(want string) {
		t.Helper()
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Fatalf("got %q, want %q", lines.Text(), want)
		}
	}
	next("START")
	d.write(1, because(request("GET", "first.example", "/"), gate.ReasonHostNotListed))
	next("first.example")
	d.open(2)
	next("START")
	d.write(2, because(request("GET", "second.example", "/"), gate.ReasonHostNotListed))
	next("second.example")
	d.close(1)
	next("END")
	cancel()
	if lines.Scan() {
		t.Errorf("%q after the end", lines.Text())
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestLogOfNothingSaysWhatToDo(t *testing.T) {
	err := runLog(t.Context(), io.Discard, logOptions{place: place{dir: filepath.Join(t.TempDir(), "none")}}, newPrinter(io.Discard, time.Now(), time.UTC))
	if err == nil || !strings.Contains(err.Error(), "hint: postern run") {
		t.Error(err)
	}
}

func (d *diary) explain(event string) string {
	d.t.Helper()
	records, err := findEvent(d.dir, event)
	if err != nil {
		d.t.Fatal(err)
	}
	var out bytes.Buffer
	explainEvent(&out, records, time.UTC)
	return out.String()
}

func TestExplainSaysWhatWouldAllowARefusal(t *testing.T) {
	d := newDiary(t)
	wantText(t, d.explain(d.day()), "\n"+`e07zg000000000000 was refused at 2026-11-21 14:03:06 UTC

  asked       POST https://evil.example/v1
  reason      host.not_listed: no rule allows this host
  rule        none: what no rule allows is refused
  session     s0400000000000000
  remedy      add the host under `+"`allow:`"+` in postern.yaml, or a preset under `+"`use:`"+`

These lines in the session's profile of postern.yaml would allow it:

    allow:
      - {host: evil.example, methods: [POST], paths: ["/v1"]}
`)
}

func TestExplainSaysWhatBecameOfAnAllowedRequest(t *testing.T) {
	d := newDiary(t)
	d.day()
	wantText(t, d.explain(gate.NewEventID([10]byte{200}).String()[:6]), `
es000000000000000 was allowed at 2026-11-21 14:03:05 UTC

  asked       POST https://api.anthropic.com/v1/messages
  reason      allowed: a rule allows it
  rule        preset claude:14
  credential  claude (fingerprint 0badf00d)
  session     s0400000000000000
  outcome     status 200, 1234 bytes up, 56789 bytes down, in 812ms
`)
}

func TestExplainRefusesWhatIsNoEvent(t *testing.T) {
	d := newDiary(t)
	d.day()
	for _, bad := range []string{"", "e", "s123456", "../../etc", "e1\x1b[2J", "ezzzzzzzz"} {
		if _, err := findEvent(d.dir, bad); err == nil || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	d.open(3)
	d.write(3, record.Record{Kind: record.Decision, Event: gate.NewEventID([10]byte{9, 9, 9, 1}), Verdict: "deny"})
	d.write(3, record.Record{Kind: record.Decision, Event: gate.NewEventID([10]byte{9, 9, 9, 2}), Verdict: "deny"})
	if _, err := findEvent(d.dir, gate.NewEventID([10]byte{9, 9, 9}).String()[:5]); err == nil || !strings.Contains(err.Error(), "several") {
		t.Error(err)
	}
}

// TestTheLinesOfExplainAllowExactlyTheRequest puts what explain prints into a policy and asks it again.
func TestTheLinesOfExplainAllowExactlyTheRequest(t *testing.T) {
	port, plain, git, slash, upgrade := request("GET", "a.example", "/x/y"), request("GET", "a.example", "/"), request("POST", "github.com", "/acme/widgets/git-receive-pack"), request("GET", "a.example", "/a%2Fb/c"), request("GET", "a.example", "/ws")
	port.Port = 8443
	plain.Scheme, plain.Port = "http", 80
	git.Git, git.Repo = "push", "github.com/acme/widgets"
	for name, r := range map[string]record.Record{
		"host":    because(request("POST", "evil.example", "/v1/a"), gate.ReasonHostNotListed),
		"port":    because(port, gate.ReasonPortNotListed),
		"scheme":  because(plain, gate.ReasonSchemeNotListed),
		"method":  because(request("DELETE", "a.example", "/x"), gate.ReasonMethodNotListed),
		"path":    because(request("GET", "a.example", "/caf%C3%A9/%22x%22"), gate.ReasonPathNotListed),
		"slash":   because(slash, gate.ReasonEncodedSlash),
		"upgrade": because(upgrade, gate.ReasonUpgradeNotListed),
		"repo":    because(git, gate.ReasonRepoNotListed),
		"push":    because(git, gate.ReasonPushNotListed),
		"connect": because(record.Record{Kind: record.Decision, Verdict: "deny", Action: "connect", Scheme: "https", Host: "b.example", Port: 443}, gate.ReasonHostNotListed),
		"cut":     because(request("GET", "a.example", "/"+strings.Repeat("x", 2000)), gate.ReasonPathNotListed),
	} {
		t.Run(name, func(t *testing.T) {
			d := newDiary(t)
			d.open(1)
			text := d.explain(d.write(1, r))
			_, lines, ok := strings.Cut(text, "would allow it:\n\n")
			if !ok {
				t.Fatalf("no lines:\n%s", text)
			}
			file := filepath.Join(t.TempDir(), "postern.yaml")
			if err := os.WriteFile(file, []byte("version: 1\nprofiles:\n  default:\n"+lines), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := config.Load(file)
			if err != nil {
				t.Fatalf("%v\n%s", err, lines)
			}
			p, err := f.Profile("default")
			if err != nil {
				t.Fatal(err)
			}
			a, ok := actionOf(&r)
			if !ok {
				t.Fatal("the request is not canonical")
			}
			s := policy.Subject{Session: gate.NewSessionID([10]byte{1})}
			if got := p.Policy.Decide(s, a); got.Verdict != policy.Allow {
				t.Errorf("still refused, %s:\n%s", got.Reason, lines)
			}
			a.Host, _ = gate.ParseHost("other.example")
			if a.Git.Op == 0 && p.Policy.Decide(s, a).Verdict != policy.Deny {
				t.Error("another host is allowed too")
			}
		})
	}
}

func TestExplainOffersNoLinesAgainstADenyRuleOrAMalformedRequest(t *testing.T) {
	d := newDiary(t)
	d.open(1)
	ruled := because(request("GET", "a.example", "/"), gate.ReasonRuleDenies)
	ruled.Rule = "postern.yaml:31"
	for _, r := range []record.Record{ruled, because(request("GET", "a b", "/"), gate.ReasonMalformedHost), because(request("GET", "a.example", "/../x"), gate.ReasonMalformedPath)} {
		if got := d.explain(d.write(1, r)); strings.Contains(got, "would allow") {
			t.Errorf("%s", got)
		}
	}
}

func TestVerifyPrintsALineForEachFile(t *testing.T) {
	d := newDiary(t)
	d.day()
	verify := func() (string, error) {
		var out bytes.Buffer
		c := newAuditCmd()
		c.SetOut(&out)
		c.SetArgs([]string{"verify", d.dir})
		c.SilenceErrors, c.SilenceUsage = true, true
		err := c.Execute()
		return out.String(), err
	}
	got, err := verify()
	head := got[strings.LastIndex(got, "head ")+5:]
	if err != nil || len(head) < 64 {
		t.Fatal(err, got)
	}
	wantText(t, strings.Replace(got, head[:64], "HEAD", 1), `
ok       ledger.jsonl                                4 entries
ok       20261121T140301Z-s0400000000000000.1.jsonl  6 records
ok       20261121T140307Z-s0800000000000000.1.jsonl  7 records
2 sessions, 3 files, 13 records: intact
ledger head HEAD (entry 4)
`)

	names, err := filepath.Glob(filepath.Join(d.dir, "2*.jsonl"))
	if err != nil || len(names) != 2 {
		t.Fatal(names, err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(names[0], bytes.Replace(b, []byte("evil.example"), []byte("good.example"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err = verify()
	var exit *exitError
	if !errors.As(err, &exit) || exit.code != 1 {
		t.Errorf("%v", err)
	}
	wantText(t, got, `
ok       ledger.jsonl                                4 entries
DAMAGED  20261121T140301Z-s0400000000000000.1.jsonl:4  edited: the line does not have its hash
ok       20261121T140307Z-s0800000000000000.1.jsonl  7 records
2 sessions, 3 files, 10 records: 1 DAMAGED
`)
}

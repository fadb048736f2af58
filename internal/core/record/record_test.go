package record

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"postern/internal/core/gate"
)

var when = time.Date(2026, 11, 21, 14, 3, 7, 123456789, time.UTC)

// full has every field set, each to another value.
func full() *Record {
	return &Record{
		Kind: Decision, Event: gate.NewEventID([10]byte{1, 2, 3}), Session: gate.NewSessionID([10]byte{4, 5, 6}),
		Verdict: "deny", Reason: gate.ReasonHostNotListed, Rule: "postern.yaml:23", Action: "request", Scheme: "https", Host: "evil.example",
		Port: 443, Method: "POST", Path: "/v1", Git: "push", Repo: "github.com/acme/widgets", Credential: "github", Receipt: "deadbeef",
		Detail: "a clause", Status: 403, BytesIn: 1, BytesOut: 2, Duration: 3 * time.Second, Count: 4,
	}
}

func TestALineHoldsEveryFieldInOneOrder(t *testing.T) {
	line, sum := AppendJSON(nil, full(), Meta{Seq: 7, Time: when, Prev: Hash{9}})
	want := `{"v":1,"seq":7,"time":"2026-11-21T14:03:07.123456789Z","kind":"decision","event":"` + full().Event.String() + `","session":"` + full().Session.String() +
		`","verdict":"deny","reason":"host.not_listed","rule":"postern.yaml:23","action":"request","scheme":"https","host":"evil.example","port":443,"method":"POST","path":"/v1",` +
		`"git":"push","repo":"github.com/acme/widgets","credential":"github","receipt":"deadbeef","detail":"a clause","status":403,"bytes_in":1,"bytes_out":2,` +
		`"duration_ns":3000000000,"count":4,"prev":"` + Hash{9}.String() + `","hash":"` + sum.String() + `"}`
	if string(line) != want {
		t.Errorf("got  %s\nwant %s", line, want)
	}
	if Sum(line) != sum {
		t.Error("Sum disagrees with the encoder")
	}
}

func TestEveryFieldOfRecordIsWrittenAndReadBack(t *testing.T) {
	v := reflect.ValueOf(full()).Elem()
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the test's record leaves %s empty", v.Type().Field(i).Name)
		}
		one := &Record{}
		reflect.ValueOf(one).Elem().Field(i).Set(v.Field(i))
		line, _ := AppendJSON(nil, one, Meta{Seq: 1, Time: when})
		s, err := Parse(line)
		if err != nil || !reflect.DeepEqual(s.Record, *one) {
			t.Errorf("%s: %v\n%s", v.Type().Field(i).Name, err, line)
		}
	}
}

// forbidden lists what must never stand raw in a log that a terminal may show.
func forbidden(r rune) bool {
	switch {
	case r < 0x20, r >= 0x7f && r <= 0x9f, r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x2069, r == 0xfeff,
		r == 0x061c, r == 0x180e, r == 0xad, r >= 0xe0000 && r <= 0xe0fff:
		return true
	}
	return unicode.Is(unicode.C, r)
}

func TestNoDangerousRuneIsWrittenRaw(t *testing.T) {
	var buf []byte
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if utf8.RuneLen(r) < 0 || !forbidden(r) && r != '<' && r != '>' && r != '&' {
			continue
		}
		buf = appendEscaped(buf[:0], string(r))
		if buf[0] != '\\' || bytes.ContainsFunc(buf, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Fatalf("U+%04X stands raw: %q", r, buf)
		}
		if e := Escape(string(r)); forbidden(r) && e[0] != '\\' {
			t.Fatalf("Escape passes U+%04X: %q", r, e)
		}
	}
}

func TestEscapeSpellsForPeople(t *testing.T) {
	for in, want := range map[string]string{
		"":                  "",
		"plain /path?x=1":   "plain /path?x=1",
		"für 日本":            "für 日本",
		"\x1b[31m":          `\x1b[31m`,
		"a\r\nb":            `a\x0d\x0ab`,
		"\u009b2J":          `\u009b2J`,
		"\xff":              `\xff`,
		`\xff`:              `\\xff`,
		"\u202egpj.exe":     `\u202egpj.exe`,
		"tag\U000e0041":     `tag\U000e0041`,
		"\u2028":            `\u2028`,
		"heart\u2764\ufe0f": "heart\u2764" + `\ufe0f`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestNoTwoStringsAreSpelledAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gen := rapid.StringOf(rapid.RuneFrom([]rune{'\\', 'x', 'f', 'u', '0', '\u009b', 0xfffd, '"'}))
		a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
		if a != b && string(appendEscaped(nil, a)) == string(appendEscaped(nil, b)) {
			t.Fatalf("%q and %q look alike", a, b)
		}
		if a != b && Escape(a) == Escape(b) {
			t.Fatalf("%q and %q look alike on a terminal", a, b)
		}
	})
}

func TestTextsAreCutAtTheirLimitsAndMarked(t *testing.T) {
	for name, limit := range map[string]int{"Host": MaxHost, "Path": MaxPath, "Detail": MaxDetail, "Rule": MaxRule, "Repo": MaxRepo, "Method": MaxWord} {
		for _, unit := range []string{"x", "é", "\U0001f600", "\xff", "\x00"} {
			r := &Record{Kind: Notice}
			f := reflect.ValueOf(r).Elem().FieldByName(name)
			f.SetString(strings.Repeat(unit, limit))
			if len(unit) == 1 {
				if got := roundTrip(t, r); !reflect.DeepEqual(got, *r) {
					t.Errorf("%s: cut although at its limit", name)
				}
			}
			f.SetString(strings.Repeat(unit, limit+1))
			cut := roundTrip(t, r)
			s := reflect.ValueOf(cut).FieldByName(name).String()
			if len(s) > limit || !strings.HasSuffix(s, mark) || utf8.ValidString(unit) && !utf8.ValidString(s) {
				t.Errorf("%s of %q: %d bytes, ends %q", name, unit, len(s), s[len(s)-4:])
			}
			if again := roundTrip(t, &cut); !reflect.DeepEqual(again, cut) {
				t.Errorf("%s: cutting is not final", name)
			}
		}
	}
}

func roundTrip(t *testing.T, r *Record) Record {
	t.Helper()
	line, _ := AppendJSON(nil, r, Meta{Seq: 1, Time: when})
	s, err := Parse(line)
	if err != nil {
		t.Fatalf("%v\n%s", err, line)
	}
	return s.Record
}

func TestTheLongestRecordFitsALine(t *testing.T) {
	r := full()
	v := reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		if v.Field(i).Kind() == reflect.String {
			v.Field(i).SetString(strings.Repeat("\u0001", 4096))
		}
	}
	line, _ := AppendJSON(nil, r, Meta{Seq: 1<<64 - 1, Time: when})
	if len(line) > MaxLine {
		t.Errorf("%d bytes, more than MaxLine", len(line))
	}
	if _, err := Parse(line); err != nil {
		t.Error(err)
	}
}

func TestAQueryOrUserinfoNeverReachesALine(t *testing.T) {
	for in, want := range map[string]string{"u:pw@evil.example": "…@evil.example", "@": "…@", "a@b@c": "…@c", "plain": "plain"} {
		if got := roundTrip(t, &Record{Kind: Decision, Host: in}); got.Host != want {
			t.Errorf("host %q became %q, want %q", in, got.Host, want)
		}
	}
	for in, want := range map[string]string{"/a?key=s": "/a", "/a#s": "/a", "?s": "", "/a": "/a"} {
		if got := roundTrip(t, &Record{Kind: Decision, Path: in}); got.Path != want {
			t.Errorf("path %q became %q, want %q", in, got.Path, want)
		}
	}
}

func TestParseRefusesEverySpellingButOne(t *testing.T) {
	good, _ := AppendJSON(nil, full(), Meta{Seq: 7, Time: when})
	line := string(good)
	for name, bad := range map[string]string{
		"empty":               "",
		"cut short":           line[:len(line)-1],
		"trailing bytes":      line + " ",
		"leading space":       " " + line,
		"another version":     strings.Replace(line, `"v":1`, `"v":2`, 1),
		"space after a colon": strings.Replace(line, `"seq":7`, `"seq": 7`, 1),
		"leading zero":        strings.Replace(line, `"seq":7`, `"seq":07`, 1),
		"exponent":            strings.Replace(line, `"port":443`, `"port":443e0`, 1),
		"port too large":      strings.Replace(line, `"port":443`, `"port":65979`, 1),
		"explicit zero":       strings.Replace(line, `,"status":403`, `,"status":0`, 1),
		"explicit empty":      strings.Replace(line, `"method":"POST"`, `"method":""`, 1),
		"unknown key":         strings.Replace(line, `,"count":4`, `,"count":4,"x":1`, 1),
		"repeated key":        strings.Replace(line, `,"count":4`, `,"count":4,"count":4`, 1),
		"other order":         strings.Replace(line, `"method":"POST","path":"/v1"`, `"path":"/v1","method":"POST"`, 1),
		"needless escape":     strings.Replace(line, `"POST"`, `"P\u004fST"`, 1),
		"raw control":         strings.Replace(line, `"POST"`, "\"P\x1bST\"", 1),
		"raw bidi":            strings.Replace(line, `"POST"`, "\"P\u202eST\"", 1),
		"raw invalid UTF-8":   strings.Replace(line, `"POST"`, "\"P\xffST\"", 1),
		"unknown escape":      strings.Replace(line, `"POST"`, `"P\tST"`, 1),
		"other time zone":     strings.Replace(line, `123456789Z`, `123456789+00:00`, 1),
		"short time":          strings.Replace(line, `.123456789Z`, `Z`, 1),
		"bad event id":        strings.Replace(line, `"event":"e`, `"event":"x`, 1),
		"upper-case hash":     strings.Replace(line, `"prev":"00`, `"prev":"AA`, 1),
		"too long":            strings.Repeat("x", MaxLine+1),
	} {
		if bad == line {
			t.Fatalf("%s: the case changes nothing", name)
		}
		if _, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%s: accepted %s", name, bad)
		} else if len(err.Error()) > 200 {
			t.Errorf("%s: the error repeats the line", name)
		}
	}
}

func TestLedgerLinesAreReadBackExactly(t *testing.T) {
	e := LedgerEntry{Kind: LedgerNext, Session: gate.NewSessionID([10]byte{1}), Start: "20261121T140307Z", Segment: 3, Last: 99, Head: Hash{7}}
	line, sum := AppendLedger(nil, &e, Meta{Seq: 5, Time: when, Prev: Hash{1}})
	s, err := ParseLedger(line)
	if err != nil || s.LedgerEntry != e || s.Hash != sum || s.Seq != 5 || !json.Valid(line) || Sum(line) != sum {
		t.Fatalf("%+v %v\n%s", s, err, line)
	}
	for _, bad := range []string{
		strings.Replace(string(line), "segment.closed", "segment.forged", 1),
		strings.Replace(string(line), `"segment":3`, `"segment":0`, 1),
		strings.Replace(string(line), `"start":"2026`, `"start":"../2026`, 1),
		strings.Replace(string(line), `"last":99`, `"last":099`, 1),
		string(line[:len(line)-2]),
	} {
		if _, err := ParseLedger([]byte(bad)); err == nil {
			t.Errorf("accepted %s", bad)
		}
	}
}

// FuzzRecordRoundTrip: whatever a sandbox puts into the text fields, the line is one line of JSON that parses back to the same record.
func FuzzRecordRoundTrip(f *testing.F) {
	f.Add("evil.example", "/v1", "POST", "why", uint16(443), int64(5), int64(0))
	f.Add("a\u009b2J@\x00", "/\u202e\xff\\x?q", "G\r\nET", "\"},{\"v\":1", uint16(0), int64(-1<<63), int64(1<<62))
	f.Add("\ufeff", `\u0041\\`, "\u2028", "<script>&\U000e0041", uint16(1), int64(-7), int64(1)<<60)
	f.Fuzz(func(t *testing.T, host, path, method, detail string, port uint16, n, ns int64) {
		r := Record{Kind: Decision, Host: host, Path: path, Method: method, Detail: detail, Port: port, BytesIn: n, Duration: time.Duration(n)}
		m := Meta{Seq: uint64(n), Time: time.Unix(0, ns), Prev: Hash{byte(n)}}
		line, sum := AppendJSON([]byte("before"), &r, m)
		line = line[len("before"):]
		if !json.Valid(line) || bytes.ContainsAny(line, "\r\n") || !utf8.Valid(line) || bytes.ContainsFunc(line, forbidden) || len(line) > MaxLine {
			t.Fatalf("not one safe line of JSON: %q", line)
		}
		s, err := Parse(line)
		if err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if s.Hash != sum || Sum(line) != sum || s.Seq != m.Seq || !s.Time.Equal(m.Time) || s.Prev != m.Prev {
			t.Fatalf("meta changed: %+v", s.Meta)
		}
		if len(host) <= MaxHost && !strings.Contains(host, "@") && s.Host != host ||
			len(path) <= MaxPath && !strings.ContainsAny(path, "?#") && s.Path != path ||
			len(method) <= MaxWord && s.Method != method || len(detail) <= MaxDetail && s.Detail != detail ||
			s.Port != port || s.BytesIn != n || s.Duration != time.Duration(n) {
			t.Fatalf("the record changed: %+v", s.Record)
		}
		if again, _ := AppendJSON(nil, &s.Record, s.Meta); !bytes.Equal(again, line) {
			t.Fatalf("written again it differs:\n%s\n%s", line, again)
		}
	})
}

// FuzzParse: what Parse accepts is exactly what the encoder writes.
func FuzzParse(f *testing.F) {
	line, _ := AppendJSON(nil, full(), Meta{Seq: 1, Time: when})
	f.Add(line)
	f.Add([]byte(`{"v":1,"seq":1,"time":"2026-11-21T14:03:07.123456789Z","host":"\\x9b\ud83d\ude00","prev":"`))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, line []byte) {
		s, err := Parse(line)
		if err != nil {
			return
		}
		again, _ := AppendJSON(nil, &s.Record, s.Meta)
		if !sameButHash(again, line) {
			t.Fatalf("accepted %q, writes %q", line, again)
		}
	})
}

func FuzzEscape(f *testing.F) {
	f.Add("\x1b]0;x\a\u009b\xff\\")
	f.Fuzz(func(t *testing.T, s string) {
		e := Escape(s)
		if strings.ContainsFunc(e, forbidden) || !utf8.ValidString(e) {
			t.Fatalf("%q", e)
		}
	})
}

func TestEncodingAllocatesNothing(t *testing.T) {
	r, buf := full(), make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() { AppendJSON(buf, r, Meta{Seq: 7, Time: when}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	r, buf := full(), make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		AppendJSON(buf, r, Meta{Seq: 7, Time: when})
	}
}

func BenchmarkParse(b *testing.B) {
	line, _ := AppendJSON(nil, full(), Meta{Seq: 7, Time: when})
	for b.Loop() {
		if _, err := Parse(line); err != nil {
			b.Fatal(err)
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	records, ledger, ok := strings.Cut(string(page), "\n## The ledger\n")
	if !ok {
		t.Fatal("the page has no section on the ledger")
	}
	line, _ := AppendJSON(nil, full(), Meta{Seq: 1, Time: when})
	entry, _ := AppendLedger(nil, &LedgerEntry{Kind: LedgerOpened, Session: full().Session, Start: "20261121T140307Z", Segment: 1}, Meta{Seq: 1, Time: when})
	for _, c := range []struct {
		line []byte
		text string
	}{{line, records}, {entry, ledger}} {
		var want []string
		for d := json.NewDecoder(bytes.NewReader(c.line)); ; {
			tok, err := d.Token()
			if err != nil {
				break
			}
			if key, ok := tok.(string); ok {
				want = append(want, key)
				if _, err := d.Token(); err != nil {
					t.Fatal(err)
				}
			}
		}
		var got []string
		for row := range strings.Lines(c.text) {
			if cell, ok := strings.CutPrefix(row, "| `"); ok && strings.Count(row, "|") >= 4 {
				got = append(got, cell[:strings.IndexByte(cell, '`')])
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("documented: %v\nwritten:    %v", got, want)
		}
	}
	for _, limit := range []int{MaxWord, MaxRule, MaxHost, MaxPath, MaxRepo, MaxDetail} {
		if !strings.Contains(records, "| "+strconv.Itoa(limit)+" |") {
			t.Errorf("the limit %d is not documented", limit)
		}
	}
}
